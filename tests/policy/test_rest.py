"""Silence: while nothing pays, nobody is asked; it ends when a look is due, and where the rows change."""

import numpy as np
import pytest

from tests.policy.situations import STEEP, World, gained, known_costs, play
from wager.policy import PLAIN, Coming, Controller, CostCurve, Row
from wager.policy.auto import Auto
from wager.policy.base import MANY
from wager.policy.gain import Probe
from wager.policy.rest import Rest

ROWS = [Row("r", drafters=("draft",))]


def waiting(interval: int) -> list[Probe]:
    """Of a drafter at which the next look comes after so many steps."""
    probe = Probe()
    probe.interval = interval
    assert not probe.due()
    return [probe]


@pytest.mark.parametrize(("interval", "steps"), [(2, 0), (5, 3), (16, 14), (48, 16)])
def test_a_rest_lasts_until_a_look_is_due(interval: int, steps: int) -> None:
    rest, probes = Rest(), waiting(interval)
    rest.begin(ROWS, probes)
    rested = 0
    rest.tick()
    while rest.holds(1):
        rested += 1
        rest.tick()
    assert rested == steps
    assert rest.end() == steps and rest.end() == 0
    probes[0].skip(steps)
    assert probes[0].due() == (interval < 18)


def test_a_rest_is_for_as_many_rows_as_it_was_begun_with() -> None:
    rest = Rest()
    rest.begin(ROWS * 3, waiting(40))
    rest.tick()
    assert rest.holds(3) and not rest.holds(2) and not rest.holds(4)
    rest.cut(1)
    assert not rest.holds(3)


def test_news_of_few_does_not_wake_a_crowd() -> None:
    rest = Rest()
    for num_rows in (64, 16, 2):
        rest.begin([Row(i) for i in range(num_rows)], waiting(4000))
        rest.tick()
    rest.cut(14)
    assert [num for num in (64, 16, 2) if rest.holds(num)] == [64]
    rest.cut(64)
    assert not rest.holds(64)


def test_many_rows_rest_until_half_of_them_have_gone() -> None:
    rest = Rest()
    rest.begin([Row(i) for i in range(64)], waiting(4))
    rest.tick()
    assert [num for num in (32, 33, 63, 64, 70, 96, 97) if rest.holds(num)] == [33, 63, 64, 70, 96]


def test_a_rest_of_many_goes_on_when_as_many_are_back() -> None:
    rest = Rest()
    rest.begin([Row(i) for i in range(64)], waiting(1400))
    rest.tick()
    rest.begin([Row(i) for i in range(20)], waiting(4))
    for _ in range(1300):
        rest.tick()
    assert rest.holds(64) and not rest.holds(20), "the look at many was not due yet, that at fewer was"
    for _ in range(100):
        rest.tick()
    assert not rest.holds(64)


@pytest.mark.parametrize(("num_rows", "steps"), [(16, 64), (32, 128), (64, 1024)])
def test_the_larger_a_crowd_the_longer_it_rests(num_rows: int, steps: int) -> None:
    rest = Rest()
    rest.begin([Row(i) for i in range(num_rows)], waiting(4))
    rested = 0
    rest.tick()
    while rest.holds(num_rows):
        rested += 1
        rest.tick()
    assert rested == steps


def test_a_drafter_that_found_nothing_is_asked_again_at_once_unless_there_are_many_rows() -> None:
    for num_rows, rests in ((1, False), (7, False), (8, True)):
        rest = Rest()
        rest.begin(ROWS, waiting(40))  # it is known that there is one
        rest.begin([Row(i, drafters=()) for i in range(num_rows)], [])
        rest.tick()
        assert rest.holds(num_rows) is rests


def test_a_useless_drafter_is_asked_rarely_and_tried_as_often_as_ever() -> None:
    controller = Controller("auto", known_costs(STEEP))
    world = World(CostCurve(STEEP), stands={"draft": 0.01}, claims=0.5)
    policy, asked, drafted = controller.policy, 0, 0
    assert isinstance(policy, Auto)
    for _ in range(600):
        asked += not policy.rests(Coming(1, 1))
        (played,) = play(controller, world, 1, [Row("r", drafters=("draft",))])
        drafted += played.drafters != (None,)
    assert 600 // 48 <= drafted <= asked < 200


def test_a_resting_policy_offers_nothing_and_a_new_row_wakes_it() -> None:
    policy = Auto(known_costs(STEEP))
    policy._rest.begin(ROWS, waiting(40))
    policy._rest.tick()
    assert policy.rests(Coming(1, 1)) and policy.offer(ROWS) == [PLAIN]
    assert not policy.rests(Coming(2, 2))
    assert np.isfinite(policy.prediction.time_ms)


def test_who_may_not_bet_rests_whatever_look_is_due() -> None:
    experience = known_costs(STEEP)
    experience.ledger.post("gone", 1000.0, 900.0, 180)
    policy = Auto(experience)
    assert policy.offer(ROWS) == [PLAIN]
    assert policy.rests(Coming(1, 1, ahead=1)) and policy.rests(Coming(2, 2, ahead=1)), "whoever comes"


def test_who_cannot_draft_at_all_does_not_rest() -> None:
    policy = Auto(known_costs(STEEP))
    assert policy.offer([Row("r", drafters=())]) == [PLAIN]
    assert not policy.rests(Coming(1, 1, ahead=1)), "its drafter may find something at the next step"


def test_a_prompt_that_takes_all_places_makes_a_plain_step() -> None:
    policy = Auto(known_costs(STEEP))
    assert policy.rests(Coming(2, 2000)) and not policy.rests(Coming(2, 200))


def test_a_drafter_that_nobody_would_choose_keeps_nobody_awake() -> None:
    """The other one is better, and not worth its time either: only its next look counts."""
    policy = Auto(known_costs(STEEP, drafters=("bad", "worse")))
    row = Row("r", drafters=("bad", "worse"))
    for name, gain in (("bad", -1.0), ("worse", -2.0)):
        gained(policy, row, gain, drafter=name)
        policy._known.line(name, "").probe(1).interval = 10 if name == "bad" else 1
    assert policy.offer([row]) == [PLAIN]
    policy._rest.tick()
    assert policy.rests(Coming(1, 1, ahead=7)) and not policy.rests(Coming(1, 1, ahead=9))


def test_a_crowd_that_is_about_to_end_is_not_asked() -> None:
    policy = Controller("auto", known_costs(STEEP)).policy
    assert policy.rests(Coming(MANY, MANY, left=7)) and not policy.rests(Coming(MANY, MANY, left=8))
    assert not policy.rests(Coming(MANY - 1, MANY - 1, left=1))
