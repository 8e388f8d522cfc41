"""Plain plans that stand: decisions stay as they are, and steps in which nothing pays are hardly planned."""

from typing import Any

import pytest

from wager.policy import PLAIN, Offer, Plan, Row, RowOutcome, StepOutcome
from wager.policy.auto import Auto
from wager.policy.standing import NEARLY, STANDING_STEPS, Price, StandingPlan
from wager.trace import Noise, ReplayOptions, demo_traces, load_costs, replay

PRICE = Price(2.0, 1.0)
PLAN = Plan((PLAIN,))


def outcome(rows: list[Row], plan: Plan | None = PLAN) -> StepOutcome:
    return StepOutcome([RowOutcome(row, PLAIN, 0, 0, 1) for row in rows], len(rows), 5.0, plan=plan)


def kept(rows: list[Row]) -> StandingPlan:
    standing = StandingPlan()
    standing.learn(outcome(rows), PRICE, has_learned=False)
    return standing


def test_a_plan_stands_for_a_few_steps_of_the_same_rows() -> None:
    standing = kept([Row(1, context_len=10, max_depth=100)])
    assert standing.price == Price(NEARLY * 2.0, NEARLY * 1.0)
    later = [Row(1, context_len=11, max_depth=99)]  # a step later nothing has changed that matters
    for _ in range(STANDING_STEPS):
        assert standing.plan_of(later) is standing.plan_of(later) is PLAN
        standing.learn(outcome(later), PRICE, has_learned=False)
    assert standing.plan_of(later) is None


@pytest.mark.parametrize(
    "change",
    [
        {"request_id": 2},
        {"context_len": 5000},
        {"phase": "thinking"},
        {"num_pending": 7},
        {"max_nodes": 3},
        {"max_depth": 0},
        {"drafters": ("draft", "lookup")},
        {"grades": ("long",)},
        {"emits": False},
    ],
)
def test_other_rows_need_a_plan_of_their_own(change: dict[str, Any]) -> None:
    row = Row(1, context_len=10)
    assert kept([row]).plan_of([row._replace(**change)]) is None
    assert kept([row]).plan_of([row, row._replace(request_id=2)]) is None
    assert kept([row]).plan_of([row]) is PLAN


def test_it_falls_when_something_is_learned_or_another_plan_was_made() -> None:
    rows = [Row(1)]
    drafts = Plan((Offer("draft"),))
    cases = ((PLAN, PRICE, True), (Plan((PLAIN,)), None, False), (None, None, False), (drafts, PRICE, False))
    for taken, price, has_learned in cases:
        standing = kept(rows)
        standing.learn(outcome(rows, taken), price, has_learned=has_learned)
        assert standing.plan_of(rows) is None


@pytest.mark.parametrize(("kind", "most"), [("prose", 0.6), ("dialog", 1.0)])
def test_decisions_stay_and_few_are_computed(kind: str, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts of the prose at 0.8 do not pay on this machine, those of the dialogue do."""
    traces = [one for one in demo_traces().traces if (one.kind, one.temperature) == (kind, "t08")]
    assert traces
    views, view = [0], Auto._view

    def counted(self: Auto, rows: Any) -> Any:
        views[0] += 1
        return view(self, rows)

    monkeypatch.setattr(Auto, "_view", counted)

    def run() -> tuple[Any, int]:
        views[0] = 0
        found = replay(traces, load_costs("moe"), "auto", ReplayOptions(noise=Noise(0.05, seed=1)))
        return [(step.num_nodes, step.emitted) for step in found.steps], views[0]

    with_standing, few = run()
    monkeypatch.setattr(StandingPlan, "plan_of", lambda *_: None)
    without, all_of_them = run()
    assert with_standing == without
    assert few <= most * all_of_them
