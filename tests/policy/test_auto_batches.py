"""`auto` in batches: who drafts, what a step of many rows is allowed to lose, and what batches teach."""

import numpy as np
import pytest

from tests.policy.situations import (
    FLAT,
    Played,
    World,
    awake,
    claims,
    drafting,
    known_costs,
    loss_of,
    lowest_balance,
    play,
    share,
    speedup,
    step,
    taught,
)
from wager.costs import CostModel, DraftShape, DraftTime, PassTime
from wager.policy import Coming, Controller, Experience, Row
from wager.policy.auto import Auto
from wager.policy.exploration import EXPLORED_SHARE
from wager.trace.costs import CostCurve

CURVE = CostCurve({1: 4.2, 8: 4.4, 16: 4.6, 32: 4.75, 64: 5.2, 128: 6.0, 256: 12.0, 512: 30.0})


def rows_of(num_rows: int, **fields: object) -> list[Row]:
    return [Row((num_rows, i))._replace(**fields) for i in range(num_rows)]  # type: ignore[arg-type]


def device() -> Controller:
    controller = Controller("auto", Experience(CostModel(warm_up=0)))
    controller.experience.costs.load(
        [PassTime(16 * n, rows, 0, CURVE(16 * n)) for rows in (16, 64) for n in (1, 2, 4, 8, 16, 32)],
        [DraftTime("draft", rows, 0, 0.5 + 0.1 * rows) for rows in (16, 64)],
    )
    return controller


def share_drafting(played: list[Played]) -> float:
    """Share of the steps in which most rows drafted."""
    return float(np.mean([2 * sum(map(bool, one.drafters)) > len(one.drafters) for one in played]))


@pytest.mark.parametrize("begin_ms", [0.0, 3.0])
def test_a_batch_drafts_where_that_pays_whatever_larger_ones_found(begin_ms: float) -> None:
    """Of 64 rows a step that drafts takes four plain ones and gives less than three; of 16 hardly two."""
    world = World(CURVE, {"draft": 0.7}, claims=0.7, depths=4, row_ms=0.15, begin_ms=begin_ms)
    controller = device()
    total = controller.experience.ledger.total
    for repeated in (False, True):
        large = play(controller, world, 300, rows_of(64))
        small = play(controller, world, 300, rows_of(16))
        assert share_drafting(large[30:]) < 0.05
        assert share_drafting(small[30:]) > (0.9 if repeated else 0.8), "what was found is kept"
    assert total.lowest_ms > -0.02 * total.elapsed_ms


@pytest.mark.parametrize("num_rows", [2, 4, 8, 24, 48])
@pytest.mark.parametrize("stands", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("begin_ms", [0.0, 4.0])
def test_a_batch_is_never_slower_than_plain_decoding(num_rows: int, stands: float, begin_ms: float) -> None:
    """Requests come and go, costs are unknown at first, drafts take time for every row."""
    controller = Controller("auto", Experience(CostModel(warm_up=0)))
    world = World(CURVE, {"draft": stands}, claims=0.8, depths=8, row_ms=0.1, begin_ms=begin_ms)
    played = list[Played]()
    for turn in range(12):
        rows = [Row((i, turn // 3 if i % 3 == 0 else 0)) for i in range(num_rows)]
        played += play(controller, world, 50, rows)
    elapsed = sum(one.time_ms for one in played)
    worst = max(one.time_ms for one in played)
    assert lowest_balance(played) >= -(0.01 * elapsed + 2.0 * played[0].time_ms + worst)
    assert speedup(played) > 0.985


def test_the_first_step_of_a_batch_size_is_plain() -> None:
    """Its time is the measure of all bets."""
    controller = Controller("auto", known_costs(FLAT))
    world = World(CURVE, {"draft": 0.95}, claims=0.95)
    for num_rows in (2, 3, 5, 17):
        first, second = play(controller, world, 2, rows_of(num_rows))
        assert not any(first.drafters)
        assert any(second.drafters), "and then it is known"


def test_drafters_of_many_rows_are_asked_now_and_then_in_long_plain_runs() -> None:
    policy = Auto(known_costs(FLAT))
    asked = {
        rows: [policy.inquire(Coming(rows, rows, num_plain=n)).asks for n in range(200)]
        for rows in (1, 8, 64)
    }
    assert all(asked[1])
    assert sum(asked[8]) == pytest.approx(200 / 3, abs=4) and sum(asked[64]) == pytest.approx(200 / 6, abs=7)
    assert all(asked[64][:4]), "not at once: a plain step or two may lie between two that draft"


@pytest.mark.parametrize("num_rows", [16, 17])
def test_asking_that_delays_steps_of_many_rows_pauses(num_rows: int) -> None:
    """A plain step in flight that took long because drafters were asked about the step behind it."""
    experience = known_costs({num_rows: 5.0, 2 * num_rows: 5.5}, num_rows)
    policy, rows = Auto(experience), [Row(i, drafters=()) for i in range(num_rows)]

    def take(verify_ms: float, *, is_typical: bool) -> bool:
        plan = policy.plan(rows)
        outcome = step(*[share(row=row) for row in rows], verify_ms=verify_ms)
        policy.learn(outcome._replace(plan=plan, is_typical=is_typical, overlaps=True))
        return policy.inquire(Coming(num_rows, num_rows, num_plain=1)).asks

    assert take(5.0, is_typical=True)
    assert take(7.0, is_typical=False) == (num_rows <= 16)
    waited = sum(not take(5.0, is_typical=True) for _ in range(400))
    assert waited == (0 if num_rows <= 16 else pytest.approx(2.0 / (5.0 * EXPLORED_SHARE), abs=4))


def test_drafts_are_made_for_the_rows_to_which_they_are_worth_most() -> None:
    """Each further row makes the draft dearer: those who gain little are left out."""
    rows = rows_of(8)
    experience = known_costs({8 * n: 5.0 + 0.05 * n for n in (1, 2, 4, 8)}, rows=8, drafters=())
    for num_rows, draft_ms in ((1, 0.2), (2, 0.3), (4, 0.5), (8, 9.0)):
        for _ in range(20):
            experience.costs.observe_drafts({"draft": DraftShape(num_rows)}, draft_ms)
    policy = awake(Auto(experience), 8)
    good = {1, 3, 6}
    for _ in range(60):
        for i, row in enumerate(rows):
            taught(policy, [row], claims(0.8 if i in good else 0.02), 1)
    drafters = [i for i, name in enumerate(drafting(policy.plan(rows))) if name]
    assert good <= set(drafters) and len(drafters) == 4


def test_an_exploration_of_a_large_batch_may_look_at_a_few_rows() -> None:
    rows = rows_of(64)
    experience = known_costs({64 * n: 5.0 * n for n in (1, 2, 4)}, rows=64, drafters=())
    for num_rows in (1, 2, 4, 8, 16, 32, 64):
        for _ in range(5):
            experience.costs.observe_drafts({"draft": DraftShape(num_rows)}, 0.1 * num_rows)
    controller = Controller("auto", experience)
    world = World(CostCurve({64: 5.0, 128: 10.0, 256: 20.0}), {"draft": 0.05}, claims=0.5, row_ms=0.1)
    played = play(controller, world, 1500, rows)
    explored = [sum(map(bool, one.drafters)) for one in played if any(one.drafters)]
    assert explored and min(explored) <= 8
    assert speedup(played) > 0.99


def test_what_one_batch_size_teaches_holds_for_every_other() -> None:
    """Yields contain no prices: a drafter that is known to be good is used at once by a batch."""
    controller = Controller("auto", Experience(CostModel(warm_up=0)))
    world = World(CostCurve({1: 5.0, 200: 6.0}), {"draft": 0.8})
    play(controller, world, 60)
    played = play(controller, world, 12, rows_of(4))
    assert share_drafting(played[2:]) > 0.8


def test_a_row_that_is_behind_leaves_the_others_to_draft() -> None:
    policy, rows = awake(Auto(known_costs({4 * n: ms for n, ms in FLAT.items()}, rows=4)), 4), rows_of(4)
    taught(policy, rows, claims(0.8))
    policy.experience.ledger.post(rows[0].request_id, 100.0, 10.0, 1, shared=False)
    assert drafting(policy.plan(rows)) == [None, "draft", "draft", "draft"]
    policy.experience.ledger.total.balance_ms = -1000.0
    assert not policy.plan(rows).drafts


@pytest.mark.parametrize(("copying", "drafting_", "runs"), [(0.95, 0.3, "copy"), (0.3, 0.9, "block")])
def test_a_batch_runs_the_drafter_that_is_worth_most_to_all_of_it(
    copying: float, drafting_: float, runs: str
) -> None:
    rows = [Row(i, drafters=("copy", "block") if i < 8 else ("block",)) for i in range(16)]
    experience = known_costs({16 * n: 5.0 + 0.2 * n for n in (1, 2, 4, 8)}, 16, ("copy", "block"), 1.5)
    policy = awake(Auto(experience), 16)
    taught(policy, rows[:8], claims(copying, drafter="copy"))
    taught(policy, rows, claims(drafting_, drafter="block"))
    assert set(drafting(policy.plan(rows))) - {None} == {runs}


@pytest.mark.parametrize(("copying", "drafts"), [(16, True), (1, False)])
def test_the_many_do_not_pay_for_the_few(copying: int, drafts: bool) -> None:
    """A step that copies takes half as long again: good for all, and not for one row of sixteen."""
    rows = [Row(i, drafters=("copy",) if i < copying else ()) for i in range(16)]
    experience = known_costs({16: 5.0, 16 + 7 * copying: 8.0, 256: 8.0}, rows=16, drafters=("copy",))
    policy = awake(Auto(experience), 16)
    taught(policy, rows[:copying], claims(0.9, 7, "copy"))
    plan = policy.plan(rows)
    assert plan.drafts is drafts or loss_of(plan) > 0.0


def test_noise_does_not_make_a_batch_lose() -> None:
    for seed in range(2):
        controller = Controller("auto", Experience(CostModel(warm_up=0)))
        world = World(CURVE, {"draft": 0.3}, seed=seed, row_ms=0.1, noise=0.2, stall_chance=0.01)
        assert speedup(play(controller, world, 800, rows_of(16))) > 0.98
