"""One budget for all explorations, in time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policy.situations import FLAT, STEEP, World, known_costs, play
from wager.policy import Controller, Row
from wager.policy.auto import Auto
from wager.policy.exploration import EXPLORED_SHARE, MOST_SAVED, START_STEPS, Exploration
from wager.trace.costs import CostCurve

STEP_MS = 5.0


@given(st.lists(st.tuples(st.floats(0.1, 50.0), st.floats(0.0, 20.0)), max_size=200))
@settings(deadline=None, max_examples=60)
def test_no_more_is_spent_than_the_share_and_the_start(steps: list[tuple[float, float]]) -> None:
    budget = Exploration()
    elapsed = spent = 0.0
    for time_ms, price_ms in steps:
        budget.consider(price_ms)
        if budget.affords(price_ms):
            budget.spend(price_ms)
            spent += price_ms
        budget.earn(time_ms, STEP_MS)
        elapsed += time_ms
        assert spent <= EXPLORED_SHARE * elapsed + START_STEPS * STEP_MS + 1e-9


def test_it_saves_for_a_few_explorations_of_the_present_price_at_most() -> None:
    budget = Exploration()
    budget.consider(2.0)
    assert not budget.affords(0.1), "before the first step nothing is known of time"
    for _ in range(100_000):
        budget.earn(STEP_MS, STEP_MS)
    assert budget.credit_ms == pytest.approx(MOST_SAVED * 2.0)
    budget.consider(0.1)
    budget.earn(STEP_MS, STEP_MS)
    assert budget.credit_ms == pytest.approx(MOST_SAVED * 2.0), "what was saved is kept"


def test_the_steps_until_an_exploration_is_affordable() -> None:
    budget = Exploration(share=0.01)
    budget.earn(0.0, STEP_MS)
    budget.spend(START_STEPS * STEP_MS)
    budget.consider(10.0)
    steps = budget.steps_until(1.0, STEP_MS)
    assert steps == 20
    for _ in range(steps):
        assert not budget.affords(1.0 - 1e-9)
        budget.earn(STEP_MS, STEP_MS)
    assert budget.affords(1.0 - 1e-9)
    assert budget.steps_until(0.5, STEP_MS) == 0


@pytest.mark.parametrize("points", [FLAT, STEEP])
@pytest.mark.parametrize("num_rows", [1, 4, 16])
def test_a_useless_drafter_costs_no_more_than_the_budget(points: dict[int, float], num_rows: int) -> None:
    """In the world's own time: what explorations lose is what they were expected to lose, or soon is."""
    curve = CostCurve({size * num_rows: ms for size, ms in points.items()})
    controller = Controller(
        "auto", known_costs({size * num_rows: ms for size, ms in points.items()}, num_rows)
    )
    policy = controller.policy
    assert isinstance(policy, Auto)
    played = play(controller, World(curve, {"draft": 0.0}), 2000, [Row(i) for i in range(num_rows)])
    elapsed = sum(one.time_ms for one in played)
    lost = sum(one.time_ms - one.plain_ms for one in played)
    # Until the first drafts were compared with the text, nobody knows that the drafter is useless.
    early = sum(one.time_ms - one.plain_ms for one in played[:100])
    assert early <= 4.0 * played[0].plain_ms
    assert lost - early <= 1.5 * EXPLORED_SHARE * elapsed + START_STEPS * played[0].plain_ms
    assert any(any(one.drafters) for one in played[1000:]), "it goes on looking"
