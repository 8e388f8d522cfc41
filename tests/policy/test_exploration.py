"""One budget for all explorations, in time."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policy.situations import FLAT, STEEP, World, known_costs, play
from wager.policy import Controller, Row
from wager.policy.auto import Auto
from wager.policy.exploration import (
    EXPLORED_SHARE,
    GAINED_SHARE,
    LONGEST_PAUSE,
    MOST_SAVED,
    START_STEPS,
    Exploration,
)
from wager.policy.ledger import START_ALLOWANCE
from wager.trace.costs import CostCurve

STEP_MS = 5.0


@given(st.lists(st.tuples(st.floats(0.1, 50.0), st.floats(0.0, 20.0)), max_size=200))
@settings(deadline=None, max_examples=60)
def test_no_more_is_spent_than_the_share_and_the_start(steps: list[tuple[float, float]]) -> None:
    budget = Exploration()
    elapsed = spent = 0.0
    for time_ms, price_ms in steps:
        if budget.affords(price_ms):
            budget.settle(-price_ms, STEP_MS)
            spent += price_ms
        budget.earn(time_ms, STEP_MS)
        elapsed += time_ms
        assert spent <= EXPLORED_SHARE * elapsed + START_STEPS * STEP_MS + 1e-9


def test_it_saves_for_a_few_plain_steps_at_most() -> None:
    budget = Exploration()
    assert not budget.affords(0.1), "before the first step nothing is known of time"
    for _ in range(100_000):
        budget.earn(STEP_MS, STEP_MS)
    assert budget.credit_ms == pytest.approx(MOST_SAVED * STEP_MS)
    budget.settle(100.0, STEP_MS)
    assert budget.credit_ms == pytest.approx(MOST_SAVED * STEP_MS), "nor does it save what it has won"


def test_what_an_exploration_wins_is_given_back() -> None:
    budget = Exploration()
    budget.earn(0.0, STEP_MS)
    budget.settle(-5.0, STEP_MS)
    budget.settle(3.0, STEP_MS)
    assert budget.credit_ms == pytest.approx(START_STEPS * STEP_MS - 2.0)


def test_part_of_what_was_gained_may_be_spent() -> None:
    frugal, rich = Exploration(), Exploration()
    frugal.earn(10.0, STEP_MS)
    rich.earn(10.0, STEP_MS, gained_ms=40.0)
    assert rich.credit_ms == pytest.approx(frugal.credit_ms + GAINED_SHARE * 40.0)


def test_each_draft_explored_in_vain_makes_the_pause_longer() -> None:
    budget, explored = Exploration(), list[int]()
    for number in range(200):
        budget.earn(STEP_MS, STEP_MS)
        if budget.is_due:
            explored.append(number)
            budget.settle_draft(-0.1, STEP_MS)
    pauses = [after - before for before, after in pairwise(explored)]
    assert pauses == [*range(1, LONGEST_PAUSE), *[LONGEST_PAUSE] * (len(pauses) - LONGEST_PAUSE + 1)]
    budget.settle_draft(0.1, STEP_MS)
    assert budget.is_due, "one that gained ends the pauses"


@pytest.mark.parametrize("points", [FLAT, STEEP])
@pytest.mark.parametrize("num_rows", [1, 4, 16])
def test_a_useless_drafter_costs_what_the_ledger_allows_and_soon_the_budget(
    points: dict[int, float], num_rows: int
) -> None:
    """In the world's own time. Until enough drafts were compared with the text, bets seem to pay."""
    curve = CostCurve({size * num_rows: ms for size, ms in points.items()})
    controller = Controller(
        "auto", known_costs({size * num_rows: ms for size, ms in points.items()}, num_rows)
    )
    policy = controller.policy
    assert isinstance(policy, Auto)
    played = play(controller, World(curve, {"draft": 0.0}), 2000, [Row(i) for i in range(num_rows)])
    elapsed = sum(one.time_ms for one in played)
    lost = sum(one.time_ms - one.plain_ms for one in played)
    assert lost <= 0.01 * elapsed + (START_ALLOWANCE + 1.0) * played[0].plain_ms
    late = played[1300:]
    late_ms = sum(one.time_ms for one in late)
    lost = sum(one.time_ms - one.plain_ms for one in late)
    assert lost <= 1.2 * EXPLORED_SHARE * late_ms + START_STEPS * played[0].plain_ms
    assert any(any(one.drafters) for one in played[1000:]), "it goes on looking"
