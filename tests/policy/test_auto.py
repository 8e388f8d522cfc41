"""The default policy: known optima, limits, and what it takes from other modules."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policy.situations import (
    DRAFT_MS,
    FLAT,
    assert_closed,
    awake,
    bet,
    calibrator,
    claims,
    drafting,
    known_costs,
    nodes_of,
    share,
    step,
    taught,
)
from wager.costs import MAX_TOKENS, CostModel, PassTime
from wager.policy import PLAIN, Draft, Evidence, Experience, Offer, Row, StepOutcome
from wager.policy.auto import Auto, AutoConfig
from wager.policy.calibration import Calibrator

ROW = Row("r")


def path_probs(increments: np.ndarray) -> np.ndarray:
    """Probabilities of every path of a tree draft, best first, by listing them all."""
    depths, ranks = increments.shape
    paths = [path for depth in range(1, depths + 1) for path in product(range(ranks), repeat=depth)]
    scores = [sum(increments[d, rank] for d, rank in enumerate(path)) for path in paths]
    return np.sort(np.exp(scores))[::-1]


def best_value(probs: np.ndarray, costs: np.ndarray, rate: float) -> tuple[float, np.ndarray]:
    """The highest value of any number of nodes, and the value of each number from 0."""
    counts = np.arange(len(probs) + 1)
    values = np.concatenate(([0.0], np.cumsum(probs))) - rate * (costs[1 + counts] - costs[1])
    return float(values.max()), values


def bet_of(policy: Auto, logprobs: np.ndarray, row: Row = ROW) -> int:
    return bet(policy, [row], [Draft("draft", len(logprobs), logprobs)]).num_nodes


@st.composite
def situations(draw: st.DrawFn) -> tuple[np.ndarray, dict[int, float]]:
    """A draft, and a cost curve with a step up of any height at any size."""
    depths, ranks = draw(st.sampled_from([(15, 1), (4, 2), (3, 3), (2, 4)]))
    random = np.random.default_rng(draw(st.integers(0, 10_000)))
    sharpness = draw(st.sampled_from([0.3, 1.0, 4.0]))
    logits = random.normal(size=(depths, ranks + 1)) * sharpness
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rises = draw(st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.1, 0.5, 2.0]), min_size=39, max_size=39))
    # The ledger does not allow a first step that is longer than this, whatever the bet is worth.
    times = 5.0 + np.minimum(np.concatenate(([0.0], np.cumsum(rises))), 7.0)
    return np.log(-np.sort(-probs[:, :ranks], axis=1)), {size + 1: float(t) for size, t in enumerate(times)}


@given(situations())
@settings(deadline=None, max_examples=120)
def test_the_bet_is_the_best_of_all_numbers_of_nodes(situation: tuple[np.ndarray, dict[int, float]]) -> None:
    logprobs, points = situation
    experience = known_costs(points)
    forest = bet(Auto(experience), [ROW], [Draft("draft", len(logprobs), logprobs)])
    costs = experience.costs.curve(1, 0)
    probs = path_probs(Calibrator().log_acceptance(logprobs))
    if logprobs.shape[1] == 1:
        probs = np.exp(np.cumsum(Calibrator().log_acceptance(logprobs)))
    best, values = best_value(probs, costs, 1.0 / costs[1])
    assert values[forest.num_nodes] == pytest.approx(best, abs=1e-9)
    assert np.exp(forest.score) == pytest.approx(probs[: forest.num_nodes])
    assert_closed(forest)


def test_a_stair_is_jumped_when_what_lies_behind_it_is_worth_it() -> None:
    """The first guess does not pay for the step up, all together do: stopping at a descent is wrong."""
    points = {n: 5.0 if n == 1 else 10.0 for n in range(1, 33)}
    experience = known_costs(points)
    likely = np.full((8, 1), np.log(0.8))
    assert bet_of(Auto(experience), likely) == 8
    assert bet_of(Auto(experience), likely[:1]) == 0


def test_free_places_of_a_bucket_are_filled() -> None:
    experience = Experience(CostModel(buckets=(1, 8, 16), warm_up=0))
    for size, time_ms in ((1, 5.0), (8, 6.0), (16, 12.0)):
        for _ in range(5):
            experience.costs.observe_pass(size, 1, 0, time_ms)
    assert bet(Auto(experience), [ROW], [claims(0.6, 15)]).num_nodes == 7


def test_free_places_of_a_bucket_go_to_the_next_best_nodes_of_all_rows() -> None:
    """Two rows and six guesses fill the bucket of eight, whichever row they belong to."""
    experience = Experience(CostModel(buckets=(1, 2, 4, 8, 16), warm_up=0))
    experience.costs.load(
        [PassTime(size, 2, 0, ms) for size, ms in ((2, 5.0), (4, 5.1), (8, 6.0), (16, 12.0))]
    )
    forest = bet(awake(Auto(experience), 2), [Row("poor"), Row("rich")], [claims(0.05), claims(0.9, 5)])
    assert forest.num_nodes == 6
    assert np.bincount(forest.row).tolist() == [1, 5]


def test_what_was_learned_of_the_drafter_decides() -> None:
    """The policy's own calibration is the one that the same evidence gives a calibrator of its own."""
    experience = known_costs({n: 5.0 + 0.25 * n for n in range(1, 40)})
    policy, mirror = Auto(experience), Calibrator()
    sure = np.full((12, 1), np.log(0.9))
    lies = Evidence("draft", "", sure[:1], np.array([-1]))
    before = bet_of(policy, sure)
    for _ in range(40):
        policy.learn(StepOutcome([share()], 1, 5.25, evidence=[lies]))
        mirror.learn(lies)
    forest = bet(policy, [ROW], [Draft("draft", 12, sure)])
    assert before > 4
    assert forest.num_nodes < before
    probs = np.exp(np.cumsum(mirror.log_acceptance(sure)))
    costs = experience.costs.curve(1, 0)
    best, values = best_value(probs, costs, 1.0 / costs[1])
    assert values[forest.num_nodes] == pytest.approx(best, abs=1e-9)


def test_a_drafter_that_is_best_where_it_is_unsure_is_still_taken_best_first() -> None:
    policy = Auto(known_costs(FLAT))
    policy.yields.learn_evidence(Evidence("draft", "", np.log([[0.5]]), np.array([0])))
    calibrator(policy.yields).weights = [0.0, -0.5, 0.0]
    logprobs = np.log([[0.6, 0.3, 0.05], [0.5, 0.2, 0.1]])
    forest = bet(policy, [ROW], [Draft("draft", 2, logprobs)])
    assert forest.num_nodes and forest.rank[0] == 2
    assert (np.diff(forest.score) <= 0.0).all()
    assert_closed(forest)


def test_phases_are_learned_apart() -> None:
    policy = Auto(known_costs({n: 5.0 + 0.25 * n for n in range(1, 40)}))
    sure = np.full((12, 1), np.log(0.9))
    code, prose = Row("r", phase="code"), Row("r", phase="prose")
    assert bet_of(policy, sure, code) == bet_of(policy, sure, prose)
    for _ in range(60):
        true = Evidence("draft", "code", sure[:1], np.array([0]))
        lies = Evidence("draft", "prose", sure[:1], np.array([-1]))
        policy.learn(StepOutcome([share(row=code)], 1, 5.25, evidence=[true]))
        policy.learn(StepOutcome([share(row=prose)], 1, 5.25, evidence=[lies]))
    assert bet_of(policy, sure, code) > bet_of(policy, sure, prose)


def test_the_faster_the_long_run_the_dearer_the_time() -> None:
    """Time spent on a doubtful guess is worth more where tokens come quickly anyway."""
    points = {n: 5.0 + 0.5 * n for n in range(1, 40)}
    doubtful = np.log(np.array([0.9, 0.6, 0.6, 0.6, 0.6, 0.6])[:, None])
    slow, quick = Auto(known_costs(points)), Auto(known_costs(points))
    before = bet_of(slow, doubtful)
    for _ in range(200):
        quick.learn(step(share(6, accepted=6), verify_ms=8.5, draft_ms=DRAFT_MS))
    assert 0 < bet_of(quick, doubtful) < before


@pytest.mark.parametrize("logprob", [np.log(1e-6), np.log(0.01), -np.inf])
def test_a_worthless_draft_is_not_verified(logprob: float) -> None:
    policy = Auto(known_costs({n: 5.0 + 0.2 * n for n in range(1, 40)}))
    assert bet_of(policy, np.full((6, 3), logprob)) == 0


def test_before_anything_was_measured_nothing_is_bet() -> None:
    policy, rows = Auto(Experience()), [Row("r"), Row("s")]
    plan = policy.plan(rows)
    assert plan.offers == (PLAIN, PLAIN) and not plan.drafts
    policy.learn(step(share())._replace(plan=plan))


@pytest.mark.parametrize("num_rows", [1, 3])
def test_where_no_draft_came_nothing_is_verified(num_rows: int) -> None:
    """Every drafter may have failed: then the rows are plain ones."""
    policy, rows = awake(Auto(known_costs(FLAT, rows=num_rows)), num_rows), [Row(i) for i in range(num_rows)]
    plan = policy.plan(rows)
    assert policy.arrange(plan, rows, [None] * num_rows).num_nodes == 0
    blind = policy.blind_bet(plan, rows, [None] * num_rows)
    assert blind is None or sum(blind.nodes) == 0


def test_rows_that_cannot_bet_stay_plain() -> None:
    policy = awake(Auto(known_costs(FLAT, rows=4)), 4)
    rows = [Row("a", drafters=()), Row("b", max_depth=0), Row("c", max_nodes=0), Row("d")]
    plan = policy.plan(rows)
    assert plan.offers == (PLAIN, PLAIN, PLAIN, Offer("draft"))
    sure = Draft("draft", 4, np.full((4, 2), -0.7))
    forest = policy.arrange(plan, rows, [None, None, None, sure])
    assert set(forest.row.tolist()) == {3}


def test_a_prompt_chunk_that_yields_nothing_is_not_drafted_for() -> None:
    policy = awake(Auto(known_costs({2: 5.0, 31: 5.05, 64: 5.1}, rows=2)), 2)
    plan = policy.plan([Row("prompt", num_pending=30, emits=False), Row("r")])
    assert plan.offers == (PLAIN, Offer("draft"))
    assert plan.prediction is not None and 1.0 < plan.prediction.tokens < 9.0


def test_a_prompt_chunk_that_fills_the_table_leaves_no_room() -> None:
    policy = Auto(known_costs(FLAT))
    row = Row("r", num_pending=2 * MAX_TOKENS)
    assert not policy.plan([row]).drafts
    nearly = Row("r", num_pending=MAX_TOKENS - 3)
    assert bet_of(policy, np.full((4, 1), -0.01), nearly) <= 3


def test_no_draft_is_made_where_a_prompt_takes_all_places() -> None:
    policy = awake(Auto(known_costs(FLAT, rows=2)), 2)
    reading = Row("new", num_pending=2000, emits=False)
    assert not policy.plan([ROW, reading]).drafts
    assert policy.plan([ROW, Row("new")]).drafts


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6), st.booleans()), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(1, 20),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=80)
def test_every_ceiling_is_kept(
    limits: list[tuple[int, int, bool]], max_nodes: int, max_batch_nodes: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    limits = [(*limits[0][:2], True), *limits[1:]]
    num_rows = len(limits)
    experience = known_costs({num_rows: 5.0, num_rows + 60: 5.01}, rows=num_rows)
    config = AutoConfig(max_nodes=max_nodes, max_batch_nodes=max_batch_nodes)
    policy = awake(Auto(experience, config), num_rows)
    rows = [Row(i, max_nodes=most, max_depth=deep) for i, (most, deep, _) in enumerate(limits)]
    drafts = [
        Draft("draft", 5, np.log(random.dirichlet(np.ones(4), 5)[:, :3])) if has_draft else None
        for *_, has_draft in limits
    ]
    taught(policy, [Row(i) for i in range(num_rows)], claims(0.9, 5), 3)
    plan = policy.plan(rows)
    forest = policy.arrange(plan, rows, drafts)
    assert_closed(forest)
    described = [
        draft and Draft("draft", min(5, deep)) for draft, (_, deep, _) in zip(drafts, limits, strict=True)
    ]
    blind = policy.blind_bet(plan, rows, described)
    for counts in (np.bincount(forest.row, minlength=num_rows), blind.nodes if blind else [0] * num_rows):
        assert sum(counts) <= max_batch_nodes
        for count, (most, _, has_draft) in zip(counts, limits, strict=True):
            assert count <= min(most, max_nodes) * has_draft
    for i, (_, deep, _) in enumerate(limits):
        assert max(forest.depth[forest.row == i], default=0) <= deep


def test_a_pass_grows_by_doubling_beyond_what_was_measured() -> None:
    policy = Auto(known_costs({1: 5.0, 4: 5.0}))
    assert bet_of(policy, np.full((15, 1), -0.001)) <= 7


def test_a_hopeless_row_gets_nothing() -> None:
    policy = awake(Auto(known_costs({2: 5.0, 40: 8.0}, rows=2)), 2)
    forest = bet(policy, [Row(0), Row(1)], [claims(0.99, 6), claims(1e-4, 6)])
    assert np.bincount(forest.row, minlength=2).tolist() == [6, 0]


def test_a_spine_draft_keeps_to_its_spine() -> None:
    logprobs = np.log(np.full((3, 2), 0.45))
    forest = bet(Auto(known_costs(FLAT)), [ROW], [Draft("draft", 3, logprobs, spine_only=True)])
    assert forest.num_nodes == 6
    parents = [forest.rank[parent] for parent in forest.parent.tolist() if parent >= 0]
    assert parents == [0] * 4


def test_a_row_with_a_short_draft_shares_a_pass_with_a_tree() -> None:
    policy = awake(Auto(known_costs({2: 5.0, 60: 5.1}, rows=2)), 2)
    rows = [Row("a", drafters=("lookup",)), Row("b")]
    tree = Draft("draft", 3, np.log(np.array([[0.6, 0.3], [0.6, 0.3], [0.6, 0.3]])))
    forest = bet(policy, rows, [Draft("lookup", 2), tree])
    assert [node for node in nodes_of(forest) if node[0] == 0] == [(0, 1, 0), (0, 2, 0)]
    assert sum(node[0] == 1 for node in nodes_of(forest)) == 2 + 4 + 8


def test_a_request_that_is_behind_does_not_bet() -> None:
    experience = known_costs(FLAT, rows=2)
    experience.ledger.post("rich", 100.0, 400.0, 80)
    experience.ledger.post("poor", 100.0, 60.0, 12)
    assert drafting(awake(Auto(experience), 2).plan([Row("rich"), Row("poor")])) == ["draft", None]


def test_a_server_that_is_behind_does_not_bet_for_anyone() -> None:
    experience = known_costs(FLAT)
    experience.ledger.post("gone", 1000.0, 900.0, 180)
    experience.ledger.close("gone")
    assert not Auto(experience).plan([Row("new")]).drafts


def test_the_cost_of_plain_decoding_is_measured_again_where_that_costs_little() -> None:
    """Every bet is measured against it: a bet that is worth little gives way to a plain step."""
    for chance, refreshed in ((0.25, True), (0.95, False)):
        experience = known_costs(FLAT)
        policy = awake(Auto(experience), 1)
        taught(policy, [ROW], claims(chance))
        assert policy.plan([ROW]).drafts
        for _ in range(3000):
            experience.costs.observe_pass(4, 1, 0, FLAT[4])
        assert policy.plan([ROW]).drafts is not refreshed


def test_a_step_may_be_learned_after_the_next_was_planned() -> None:
    """Where a device waits for the host, learning comes a step late: the plan says what it is about."""
    draft, early, late = claims(0.9, 6), Auto(known_costs(FLAT)), Auto(known_costs(FLAT))
    plans = [policy.plan([ROW]) for policy in (early, late)]
    nodes = [bet(policy, [ROW], [draft]).num_nodes for policy in (early, late)]
    outcome = StepOutcome([share(nodes[0], 2)._replace(draft=draft)], 1 + nodes[0], 5.05, DRAFT_MS)
    early.learn(outcome._replace(plan=plans[0]))
    late.plan([ROW._replace(context_len=5)])
    late.learn(outcome._replace(plan=plans[1]))
    assert nodes[0] == nodes[1] > 0
    assert early.plan([ROW]).prediction == late.plan([ROW]).prediction
    assert bet(early, [ROW], [draft]).num_nodes == bet(late, [ROW], [draft]).num_nodes
