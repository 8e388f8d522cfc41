"""`auto` against drafters of known quality, over many steps: what it comes to in the long run."""

import numpy as np
import pytest

from tests.policy.situations import (
    FLAT,
    STEEP,
    World,
    known_costs,
    play,
)
from wager.policy import (
    Controller,
    CostCurve,
    CostModel,
    Draft,
    Experience,
    Offer,
    Row,
)
from wager.policy.auto import Auto
from wager.policy.cost import DraftTime, PassTime


@pytest.mark.parametrize("points", [FLAT, STEEP, {1: 5.0, 8: 7.0, 16: 12.5, 32: 15.0}])
@pytest.mark.parametrize("stands", [0.0, 0.1, 0.5, 0.9])
def test_never_slower_than_plain_decoding(points: dict[int, float], stands: float) -> None:
    """Below 1 % of the time and one plain step to begin with by no more than the one step that went wrong."""
    times: list[float] = []
    controller = Controller(
        "auto",
        Experience(CostModel(warm_up=0)),
        on_decision=lambda decision: times.append(float(str(decision["actual_ms"]))),
    )
    world, total = World(CostCurve(points), {"draft": stands}, claims=0.8), controller.experience.ledger.total
    for _ in range(400):
        play(controller, world, 1)
        assert total.balance_ms >= -(0.01 * total.elapsed_ms + points[1] + max(times))


def test_a_drafter_that_never_hits_is_left_alone_but_for_rare_probes() -> None:
    controller = Controller("auto", known_costs(FLAT))
    played = play(controller, World(CostCurve(FLAT), {"draft": 0.0}), 1000)
    late = [one.drafters[0] for one in played[500:]].count("draft")
    assert 4 <= late <= 75


def test_a_good_drafter_is_used_all_the_time() -> None:
    controller = Controller("auto", known_costs(FLAT))
    played = play(controller, World(CostCurve(FLAT), {"draft": 0.9}), 300)
    assert np.mean([one.drafters[0] is not None for one in played[20:]]) > 0.98
    speedup = controller.experience.ledger.total.speedup
    assert speedup is not None and speedup > 4.0


def test_a_drafter_that_turns_good_is_found_and_one_that_turns_bad_is_left() -> None:
    controller = Controller("auto", known_costs(FLAT))
    play(controller, World(CostCurve(FLAT), {"draft": 0.0}), 300)
    found = play(controller, World(CostCurve(FLAT), {"draft": 0.9}, seed=1), 300)
    assert np.mean([one.drafters[0] is not None for one in found[150:]]) > 0.95
    left = play(controller, World(CostCurve(FLAT), {"draft": 0.0}, seed=2), 600)
    assert np.mean([one.drafters[0] is not None for one in left[400:]]) < 0.15


@pytest.mark.parametrize("order", [("good", "bad"), ("bad", "good")])
def test_of_several_drafters_the_better_is_chosen(order: tuple[str, ...]) -> None:
    controller = Controller("auto", known_costs(FLAT, drafters=order))
    world = World(CostCurve(FLAT), {"good": 0.9, "bad": 0.1})
    played = play(controller, world, 300, [Row("r", drafters=order)])
    assert [one.drafters[0] for one in played[100:]].count("good") > 190


def test_of_equal_drafters_the_cheaper_is_chosen() -> None:
    experience = known_costs(FLAT, drafters=())
    for _ in range(4):
        experience.costs.observe_draft("dear", 1, 2.0)
        experience.costs.observe_draft("cheap", 1, 0.1)
    assert Auto(experience).offer([Row("r", drafters=("dear", "cheap"))]) == [Offer("cheap")]


@pytest.mark.parametrize(("stands", "low", "high"), [(0.95, 6, 8), (0.05, 0, 2)])
def test_a_lookup_without_probabilities_is_sized_by_how_it_survives(
    stands: float, low: int, high: int
) -> None:
    points = {n: 5.0 + 0.1 * n for n in range(1, 40)}
    controller = Controller("auto", known_costs(points))
    world = World(CostCurve(points), {"draft": stands}, with_logprobs=False)
    play(controller, world, 200)
    rows = [Row("r")]
    controller.offer(rows)
    assert low <= controller.arrange(rows, [Draft("draft", 8)]).num_nodes <= high


def share_drafting(controller: Controller, world: World, num_rows: int, steps: int = 300) -> float:
    """How often a crowd drafts, most of it at once, once it has got under way."""
    rows = [Row((num_rows, i)) for i in range(num_rows)]
    played = play(controller, world, steps, rows)
    return float(
        np.mean([2 * len([name for name in one.drafters if name]) > num_rows for one in played[30:]])
    )


@pytest.mark.parametrize("begin_ms", [0.0, 3.0])
def test_a_crowd_drafts_where_that_pays_whatever_larger_ones_found(begin_ms: float) -> None:
    """Of 64 rows a step that drafts takes four plain ones and gives less than three; of 16 hardly two."""
    curve = CostCurve({8: 4.4, 16: 4.6, 32: 4.75, 64: 5.2, 128: 6.0, 256: 12.0, 512: 30.0})
    world = World(curve, {"draft": 0.7}, claims=0.7, depths=4, row_ms=0.15, begin_ms=begin_ms)
    controller = Controller("auto", Experience(CostModel(warm_up=0)))
    controller.experience.costs.load(
        [PassTime(16 * n, rows, 0, curve(16 * n)) for rows in (16, 64) for n in (1, 2, 4, 8, 16, 32)],
        [DraftTime("draft", rows, 0, 0.5 + 0.1 * rows) for rows in (16, 64)],
    )
    total = controller.experience.ledger.total
    assert share_drafting(controller, world, 64) < 0.05
    assert share_drafting(controller, world, 16) > 0.8
    assert share_drafting(controller, world, 64) < 0.05
    assert share_drafting(controller, world, 16) > 0.9, "what was found is kept"
    assert total.lowest_ms > -0.02 * total.elapsed_ms
