"""`auto` against drafters of known quality, over many steps: what it comes to in the long run."""

import numpy as np
import pytest

from tests.policy.situations import (
    FLAT,
    STEEP,
    Played,
    World,
    drafting,
    known_costs,
    lowest_balance,
    play,
    share,
    speedup,
    step,
)
from wager.costs import CostModel, DraftShape
from wager.policy import Coming, Controller, Evidence, Experience, Row
from wager.policy.auto import Auto
from wager.trace.blindly import Blindly
from wager.trace.costs import CostCurve

CURVES = [FLAT, STEEP, {1: 5.0, 8: 7.0, 16: 12.5, 32: 15.0}]
FLOOR = 0.01


def unmeasured() -> Experience:
    return Experience(CostModel(warm_up=0))


def drafted(played: list[Played]) -> float:
    """Share of the steps in which somebody drafted."""
    return float(np.mean([any(one.drafters) for one in played]))


@pytest.mark.parametrize("kind", [Controller, Blindly])
@pytest.mark.parametrize("points", CURVES)
@pytest.mark.parametrize("stands", [0.0, 0.1, 0.5, 0.9])
def test_never_slower_than_plain_decoding(
    kind: type[Controller], points: dict[int, float], stands: float
) -> None:
    """Below the floor and one plain step to begin with by no more than the one step that went wrong."""
    times: list[float] = []
    controller = kind(
        "auto", unmeasured(), on_step=lambda step, _: times.append(step.verify_ms + step.draft_ms)
    )
    world, total = World(CostCurve(points), {"draft": stands}, claims=0.8), controller.experience.ledger.total
    for _ in range(400):
        play(controller, world, 1)
        assert total.balance_ms >= -(FLOOR * total.elapsed_ms + points[1] + max(times))


@pytest.mark.parametrize("stands", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_noise_and_stalls_do_not_make_it_lose(stands: float, seed: int) -> None:
    """True times count: the account of the world itself stays above the floor."""
    controller = Controller("auto", unmeasured())
    world = World(
        CostCurve(CURVES[2]), {"draft": stands}, claims=0.8, seed=seed, noise=0.2, stall_chance=0.01
    )
    played = play(controller, world, 1500)
    elapsed = sum(one.time_ms for one in played)
    assert lowest_balance(played) >= -(0.02 * elapsed + 5.0 + max(one.time_ms for one in played))
    assert speedup(played) > (1.5 if stands == 0.9 else 0.97)


@pytest.mark.parametrize("points", CURVES)
def test_a_drafter_that_never_hits_is_tried_and_left_alone(points: dict[int, float]) -> None:
    controller = Controller("auto", known_costs(points))
    played = play(controller, World(CostCurve(points), {"draft": 0.0}), 1000)
    assert 4 <= sum(one.drafters[0] is not None for one in played[500:]) <= 75
    assert speedup(played) > 0.985


def test_a_drafter_that_pays_for_nothing_is_not_verified() -> None:
    """One more guess costs as much as a plain step: no bet pays, whatever is drafted."""
    controller = Controller("auto", known_costs(STEEP))
    played = play(controller, World(CostCurve(STEEP), {"draft": 0.5}, claims=0.5), 500)
    assert sum(one.num_nodes for one in played[100:]) <= 10
    assert speedup(played) > 0.985


def test_a_good_drafter_is_used_all_the_time() -> None:
    controller = Controller("auto", known_costs(FLAT))
    played = play(controller, World(CostCurve(FLAT), {"draft": 0.9}), 300)
    assert drafted(played[20:]) > 0.98
    assert speedup(played) > 4.0


def test_a_drafter_that_turns_good_is_found_and_one_that_turns_bad_is_left() -> None:
    controller = Controller("auto", known_costs(FLAT))
    play(controller, World(CostCurve(FLAT), {"draft": 0.0}), 300)
    found = play(controller, World(CostCurve(FLAT), {"draft": 0.9}, seed=1), 300)
    assert drafted(found[150:]) > 0.95
    left = play(controller, World(CostCurve(FLAT), {"draft": 0.0}, seed=2), 800)
    assert drafted(left[600:]) < 0.15


def test_a_drafter_that_was_useless_for_long_comes_back() -> None:
    controller = Controller("auto", known_costs(CURVES[2]))
    play(controller, World(CostCurve(CURVES[2]), {"draft": 0.0}), 2000)
    back = play(controller, World(CostCurve(CURVES[2]), {"draft": 0.9}, seed=1), 600)
    assert drafted(back[300:]) > 0.95


@pytest.mark.xfail(
    strict=True, reason="explorations verify nothing where no node pays, so passes are not timed"
)
def test_a_machine_on_which_passes_become_dear_and_cheap_again() -> None:
    dear, cheap = CostCurve(STEEP), CostCurve(FLAT)
    controller = Controller("auto", unmeasured())
    play(controller, World(dear, {"draft": 0.6}, claims=0.6), 400)
    after = play(controller, World(cheap, {"draft": 0.6}, claims=0.6, seed=1), 900)
    assert drafted(after[600:]) > 0.9


@pytest.mark.parametrize("order", [("good", "bad"), ("bad", "good")])
def test_of_several_drafters_the_better_is_chosen(order: tuple[str, ...]) -> None:
    controller = Controller("auto", known_costs(FLAT, drafters=order))
    world = World(CostCurve(FLAT), {"good": 0.9, "bad": 0.1})
    played = play(controller, world, 300, [Row("r", drafters=order)])
    assert [one.drafters[0] for one in played[100:]].count("good") > 190


def test_of_equal_drafters_the_cheaper_is_chosen() -> None:
    experience = known_costs(FLAT, drafters=())
    for _ in range(4):
        experience.costs.observe_drafts({"dear": DraftShape(1)}, 2.0)
        experience.costs.observe_drafts({"cheap": DraftShape(1)}, 0.1)
    assert drafting(Auto(experience).plan([Row("r", drafters=("dear", "cheap"))])) == ["cheap"]


def test_a_drafter_that_turned_good_takes_over_from_another() -> None:
    drafters = ("first", "second")
    rows = [Row("r", drafters=drafters)]
    controller = Controller("auto", known_costs(FLAT, drafters=drafters))
    play(controller, World(CostCurve(FLAT), {"first": 0.7, "second": 0.1}, claims=0.7), 300, rows)
    turned = World(CostCurve(FLAT), {"first": 0.1, "second": 0.8}, claims=0.7, seed=1)
    played = play(controller, turned, 600, rows)
    assert [one.drafters[0] for one in played[400:]].count("second") > 150


@pytest.mark.parametrize(("stands", "low", "high"), [(0.95, 6, 8), (0.05, 0, 2)])
def test_copies_without_probabilities_are_sized_by_how_they_survive(
    stands: float, low: int, high: int
) -> None:
    points = {n: 5.0 + 0.1 * n for n in range(1, 40)}
    controller = Controller("auto", known_costs(points))
    world = World(CostCurve(points), {"draft": stands}, with_logprobs=False)
    played = play(controller, world, 200)
    nodes = [one.num_nodes for one in played[100:] if one.drafters[0]]
    assert low <= np.mean(nodes) <= high


def test_copies_that_were_only_watched_are_used_once_they_would_have_paid() -> None:
    """Evidence without a bet: the text shows what a copy would have been worth."""
    points = {n: 5.0 + 0.5 * n for n in range(1, 40)}
    drafters = ("draft", "copy")
    for stood, chosen in ((9, "copy"), (0, "draft")):
        controller = Controller("auto", known_costs(points, drafters=drafters))
        world, rows = World(CostCurve(points), {"draft": 0.6}, claims=0.6), [Row("r", drafters=("draft",))]
        play(controller, world, 60, rows)
        seen = Evidence("copy", "", None, np.array([0] * stood + [-1]), request_id="r")
        for _ in range(20):
            controller.learn(step(share(), verify_ms=5.5)._replace(evidence=[seen]))
        assert drafting(controller.plan([Row("r", drafters=drafters)])) == [chosen]


def test_a_short_draft_is_asked_for_where_depth_gives_little() -> None:
    """Half as deep a draft takes three quarters of the time, and has nearly all of the yield."""
    points = {n: 5.0 + 0.1 * n for n in range(1, 40)}
    controller = Controller("auto", unmeasured())
    world = World(CostCurve(points), {"draft": 0.4}, claims=0.4, depths=16, drafts_ms={"draft": 1.6})
    played = play(controller, world, 800)
    depths = [one.depths[0] for one in played[400:] if one.drafters[0]]
    assert len(depths) > 50
    assert np.mean([depth in (4, 8) for depth in depths]) > 0.7, "and a whole one now and then"
    assert 0 in depths


def test_a_whole_draft_is_asked_for_where_depth_pays() -> None:
    controller = Controller("auto", unmeasured())
    world = World(CostCurve(FLAT), {"draft": 0.95}, claims=0.95, depths=16)
    played = play(controller, world, 300)
    assert np.mean([one.depths[0] == 0 for one in played[100:] if one.drafters[0]]) > 0.95


def test_who_cannot_draft_is_asked_again() -> None:
    """A drafter that found nothing in one step may find something in the next."""
    controller = Controller("auto", known_costs(FLAT))
    play(controller, World(CostCurve(FLAT), {"draft": 0.9}), 100)
    empty = Row("r", drafters=())
    for _ in range(50):
        play(controller, World(CostCurve(FLAT)), 1, [empty])
        assert controller.inquire(Coming(1, 1)).asks
    assert controller.plan([Row("r")]).drafts


def test_a_step_that_a_prompt_fills_and_one_without_room_are_plain() -> None:
    policy = Auto(known_costs(FLAT))
    assert not policy.inquire(Coming(1, 2000)).asks
    assert not policy.inquire(Coming(1, 1, max_depth=0)).asks
    assert policy.inquire(Coming(1, 1)).asks
