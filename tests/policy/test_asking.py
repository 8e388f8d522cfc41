"""How often to ask drafters that might find something: while it leads to bets often enough for its price."""

import numpy as np
import pytest

from tests.policy.situations import FLAT, known_costs, share, step
from wager.policy import Coming, Controller, Row, RowOutcome, StepOutcome
from wager.policy.asking import Asking
from wager.policy.auto_step import Step


def under_way(*, rested: bool = False, worthy: int = 0) -> Step:
    return Step(base_tokens=1, base_ms=5.0, has_rested=rested, num_worthy=worthy)


def learn(asking: Asking, times: int, ms: float, *, rested: bool) -> None:
    for _ in range(times):
        asking.learn(step(share(), verify_ms=ms), under_way(rested=rested))


def test_at_first_everybody_is_asked() -> None:
    assert Asking().pays(1)


def test_when_it_seldom_leads_to_a_bet_resting_is_tried() -> None:
    asking = Asking()
    learn(asking, 50, 5.0, rested=False)
    assert asking.pays(1)
    learn(asking, 150, 5.0, rested=False)
    assert not asking.pays(1)
    assert asking.pays(8), "more rows are another matter"


@pytest.mark.parametrize(("resting_ms", "pays"), [(4.99, True), (4.0, False)])
def test_what_asking_costs_is_what_resting_saves(resting_ms: float, pays: bool) -> None:
    asking = Asking()
    learn(asking, 150, 5.0, rested=False)
    learn(asking, 20, resting_ms, rested=True)
    # Asking has led to a bet in one step of twenty, lately.
    assert asking.pays(1) is pays


def test_bets_make_it_worth_asking_again() -> None:
    asking = Asking()
    learn(asking, 200, 5.0, rested=False)
    learn(asking, 20, 4.0, rested=True)
    assert not asking.pays(1)
    for _ in range(20):
        asking.learn(step(share(4, 4), verify_ms=5.1), under_way(worthy=1))
    assert asking.pays(1)


@pytest.mark.parametrize(("accepted", "pays"), [(4, True), (1, False)])
def test_what_counts_is_what_the_bets_gain(accepted: int, pays: bool) -> None:
    """Two steps in three lead to a bet that takes as long as two plain ones; asking costs a fifth of one."""
    asking, drafting = Asking(), under_way(worthy=1)
    learn(asking, 20, 4.0, rested=True)
    for _ in range(200):
        learn(asking, 1, 5.0, rested=False)
        for _ in range(2):
            asking.learn(step(share(4, accepted), verify_ms=8.0, draft_ms=2.0), drafting)
    assert asking.pays(1) is pays


def test_prompts_and_looks_say_nothing() -> None:
    asking = Asking()
    for _ in range(300):
        asking.learn(step(share(), verify_ms=50.0), Step(base_tokens=9, base_ms=5.0))
        looking = under_way()
        looking.probing.add(0)
        asking.learn(step(share(), verify_ms=50.0), looking)
    assert asking.pays(1)


def game(asking_ms: float, steps: int = 600) -> list[bool]:
    """A row for which no drafter finds anything, and asking them takes its time; whether they were asked."""
    controller, asked = Controller("auto", known_costs(FLAT)), []
    for turn in range(steps):
        row = Row("r", context_len=turn, drafters=())
        asked.append(not controller.policy.rests(Coming(1, 1, 100)))
        (offer,) = controller.offer([row])
        ms = 5.0 + asking_ms * asked[-1]
        controller.learn(StepOutcome([RowOutcome(row, offer, 0, 0, 1)], 1, ms))
    return asked


def test_auto_asks_less_often_where_asking_is_dear() -> None:
    dear, cheap = game(1.0)[300:], game(0.0)[300:]
    assert np.mean(dear) < 0.2
    assert np.mean(cheap) > 0.8
