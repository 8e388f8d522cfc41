"""V(plan): zero for plain decoding, more with every yield, less with every price, fair between rows."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policy.situations import (
    FLAT,
    awake,
    bet,
    claims,
    drafting,
    expected,
    known_costs,
    loss_of,
    share,
    step,
    taught,
    value_of,
)
from wager.costs import CostModel, DraftShape, PassTime
from wager.policy import Draft, Experience, Plan, Row
from wager.policy.auto import Auto
from wager.policy.experience import StepShape
from wager.policy.options import StepView, best_shares
from wager.policy.yields import CURVE_NODES

ROW = Row("r")
SLOPED = {n: 5.0 + 0.1 * n for n in range(1, 80)}


def planned(chance: float, points: dict[int, float], draft_ms: float, num_rows: int = 1) -> Plan:
    """A plan for rows whose drafts have long been known to be of this kind."""
    policy = awake(Auto(known_costs(points, num_rows, draft_ms=draft_ms)), num_rows)
    rows = [Row(i) for i in range(num_rows)]
    taught(policy, rows, claims(chance))
    return policy.plan(rows)


def view(weights: np.ndarray, prices: np.ndarray) -> StepView:
    """A step of which only the price of its nodes matters."""
    return StepView(
        StepShape(len(weights), 0, False),
        len(weights),
        len(weights),
        5.0,
        5.0,
        len(weights) / 5.0,
        prices,
        weights,
    )


CHANCES = st.floats(0.02, 0.98)


@given(CHANCES, CHANCES, st.floats(0.05, 10.0), st.sampled_from([1, 3]))
@settings(deadline=None, max_examples=40)
def test_the_value_rises_with_the_yield(one: float, other: float, draft_ms: float, num_rows: int) -> None:
    points = {n * num_rows: ms for n, ms in SLOPED.items()}
    low, high = (planned(chance, points, draft_ms, num_rows) for chance in sorted((one, other)))
    if drafting(low) == drafting(high):
        assert value_of(low) <= value_of(high) + 0.05 * num_rows


@given(CHANCES, st.floats(0.05, 10.0), st.floats(0.05, 10.0), st.floats(0.0, 0.5), st.floats(0.0, 0.5))
@settings(deadline=None, max_examples=40)
def test_the_value_falls_with_every_price(
    chance: float, one_ms: float, other_ms: float, one_slope: float, other_slope: float
) -> None:
    def value(draft_ms: float, slope: float) -> float:
        return value_of(planned(chance, {n: 5.0 + slope * (n - 1) for n in range(1, 40)}, draft_ms))

    cheap, dear = sorted((one_ms, other_ms))
    flat, steep = sorted((one_slope, other_slope))
    assert value(dear, flat) <= value(cheap, flat) + 1e-9
    # Where a steep curve leaves fewer places to a first step, nothing is won by that.
    assert value(cheap, steep) <= value(cheap, flat) + 1e-6


@given(CHANCES, st.floats(0.05, 10.0))
@settings(deadline=None, max_examples=40)
def test_what_is_planned_is_worth_more_than_plain_decoding_or_was_paid_for(
    chance: float, draft_ms: float
) -> None:
    """Plain decoding is worth 0; whoever takes less pays from the exploration budget."""
    plan = planned(chance, SLOPED, draft_ms)
    assert not plan.drafts or value_of(plan) > 0.0 or loss_of(plan) > 0.0
    assert plan.prediction is not None
    if not plan.drafts and not loss_of(plan):
        assert plan.prediction.tokens == 1.0
        assert plan.prediction.time_ms == pytest.approx(SLOPED[1], rel=0.01)


def test_the_value_is_tokens_less_the_time_at_the_plain_rate() -> None:
    """One row that is not faster than plain decoding yet: E - T / c."""
    policy = Auto(known_costs(SLOPED, draft_ms=1.0))
    taught(policy, [ROW], claims(0.8), 400)
    plan = policy.plan([ROW])
    curve = expected(policy.yields, ROW)
    costs = policy.experience.costs.curve(1, 0)
    nodes = np.arange(1, CURVE_NODES + 1)
    best = [max(0.0, float((w - (costs[1 + nodes] - costs[1]) / costs[1]).max())) for w in curve.curves]
    draft_ms = policy.experience.costs.draft_ms("draft", DraftShape(1))
    assert value_of(plan) == pytest.approx(curve.frequencies @ best - draft_ms / costs[1], rel=0.02)


def test_a_prediction_is_of_the_plan() -> None:
    plan = planned(0.8, SLOPED, 1.0)
    assert plan.prediction is not None
    assert 3.0 < plan.prediction.tokens < 5.2
    assert plan.prediction.time_ms >= SLOPED[1] + 1.0 - 0.01


# -- several rows


def test_a_row_that_is_quick_counts_for_less_than_a_slow_one() -> None:
    """The objective is the sum of the logarithms of their speeds: a tenth more is the same for both."""
    experience = Experience(CostModel(buckets=(2, 4, 8, 64), warm_up=0))
    experience.costs.load([PassTime(size, 2, 0, ms) for size, ms in ((2, 5.0), (4, 5.2), (8, 30.0))])
    policy, rows = awake(Auto(experience), 2), [Row("quick"), Row("slow")]
    drafts = [claims(0.55, 2), claims(0.5, 2)]
    assert np.bincount(bet(policy, rows, drafts).row).tolist() == [1, 1]
    closer = [claims(0.8, 2), claims(0.5, 2)]
    assert np.bincount(bet(policy, rows, closer).row, minlength=2).tolist() == [2, 0]
    for _ in range(100):
        policy.learn(step(share(2, 2, row=rows[0]), share(row=rows[1])))
    assert np.bincount(bet(policy, rows, drafts).row, minlength=2).tolist() == [0, 2]


def test_those_who_copy_do_not_make_time_dear_for_the_others() -> None:
    """Two of four rows copy a dozen tokens a step; a draft for the other two pays as it did before."""
    rows = [Row(i, drafters=("copy",) if i < 2 else ("block",)) for i in range(4)]
    points = {4 * n: 5.0 + 0.004 * n for n in (1, 2, 4, 8, 16)}
    values = []
    for copying in (False, True):
        policy = awake(Auto(known_costs(points, 4, drafters=("block",), draft_ms=1.5)), 4)
        taught(policy, rows[2:], claims(0.6, drafter="block"))
        for _ in range(100):
            tokens = 12 if copying else 0
            shares = [share(tokens, tokens, row=row, drafter="copy") for row in rows[:2]]
            policy.learn(step(*shares, *[share(row=row) for row in rows[2:]], verify_ms=5.0))
        plan = policy.plan([row if row.drafters == ("block",) else row._replace(drafters=()) for row in rows])
        assert drafting(plan) == [None, None, "block", "block"]
        values.append(value_of(plan))
    # A step that copies takes longer than a plain one, which makes the others a little slower.
    assert values[1] == pytest.approx(values[0], rel=0.1)


@given(st.integers(0, 999), st.integers(0, 9), st.floats(0.0, 0.6))
@settings(deadline=None, max_examples=60)
def test_no_other_share_of_the_nodes_is_worth_more(seed: int, places: int, price: float) -> None:
    """Of all ways to give three rows a number of nodes, none has a higher value."""
    random = np.random.default_rng(seed)
    curves = [np.sort(random.uniform(0.0, 1.0, 3))[::-1].cumsum() for _ in range(3)]
    weights = random.uniform(0.3, 1.0, 3)
    prices = price * np.arange(places + 1)
    nodes, value = best_shares(view(weights, prices), curves)

    def worth(counts: tuple[int, ...]) -> float:
        tokens = sum(w * curve[n - 1] for w, curve, n in zip(weights, curves, counts, strict=True) if n)
        return float(tokens - prices[sum(counts)])

    best = max(worth(counts) for counts in product(range(4), repeat=3) if sum(counts) <= places)
    assert value == pytest.approx(max(best, 0.0), abs=1e-9)
    assert worth(tuple(nodes)) == pytest.approx(value, abs=1e-9)


def test_one_row_takes_the_nodes_that_are_worth_their_price() -> None:
    curve, alone = np.array([0.5, 0.9, 1.2, 1.4]), np.ones(1)

    def shares(places: int, price: float) -> tuple[list[int], float]:
        return best_shares(view(alone, price * np.arange(places + 1)), [curve])

    assert shares(4, 0.0) == ([4], pytest.approx(1.4))
    assert shares(4, 0.35) == ([2], pytest.approx(0.2))
    assert shares(1, 0.35)[0] == [1]
    assert shares(4, 0.6) == ([0], 0.0)
    assert shares(0, 0.0) == ([0], 0.0)


@given(st.integers(0, 999))
@settings(deadline=None, max_examples=40)
def test_seen_drafts_of_several_rows_are_arranged_for_the_highest_value(seed: int) -> None:
    """The forest is the best number of the best nodes, each row's weighted alike at the start."""
    random = np.random.default_rng(seed)
    points = {3 * n: 5.0 + float(ms) for n, ms in enumerate(random.uniform(0.0, 0.8, 9).cumsum(), 1)}
    policy, rows = awake(Auto(known_costs(points, 3)), 3), [Row(i) for i in range(3)]
    drafts = [Draft("draft", 3, np.log(random.uniform(0.05, 0.95, (3, 1)))) for _ in rows]
    forest = bet(policy, rows, drafts)
    prices = policy.plan(rows).details.step.prices  # type: ignore[attr-defined]
    probs = np.concatenate([np.exp(policy.yields.log_acceptance(Row(0), d)[:, 0].cumsum()) for d in drafts])
    probs = np.sort(probs)[::-1]
    values = np.concatenate(([0.0], probs.cumsum())) - prices[: len(probs) + 1]
    assert values[forest.num_nodes] == pytest.approx(values.max(), abs=1e-9)


def test_before_a_start_pays_it_must_pay_for_the_start() -> None:
    """A drafter's first draft reads what it missed: whoever runs goes on where another would not begin."""
    experience = known_costs(SLOPED, draft_ms=2.0)
    policy = Auto(experience)
    taught(policy, [ROW], claims(0.4), 100)
    first = policy.plan([ROW])
    begins = value_of(first)
    for _ in range(8):
        experience.costs.observe_drafts({"draft": DraftShape(1, num_starting=1)}, 18.0)
        experience.costs.observe_drafts({"draft": DraftShape(1)}, 2.0)
    dear = value_of(policy.plan([ROW]))
    assert dear < begins - 0.1
    policy.learn(
        *experience.learn(step(share(4, 2), verify_ms=SLOPED[5], draft_ms=18.0)._replace(plan=first))
    )
    assert value_of(policy.plan([ROW])) > dear + 0.15, "and whoever stops will have to pay for it again"


def test_a_padded_pass_costs_what_its_bucket_costs() -> None:
    experience = Experience(CostModel(buckets=(1, 8), warm_up=0))
    experience.costs.load([PassTime(1, 1, 0, 5.0), PassTime(8, 1, 0, 5.5)])
    assert bet(Auto(experience), [ROW], [claims(0.3)]).num_nodes == 7


def test_flat_costs_leave_the_length_to_the_drafter() -> None:
    assert bet(Auto(known_costs(FLAT)), [ROW], [claims(0.9, 8)]).num_nodes == 8
