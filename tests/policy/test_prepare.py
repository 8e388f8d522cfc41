"""Plans made early: the same plan, used only for the rows and the knowledge that it was made of."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.policy.situations import FLAT, World, known_costs, play, share, step
from tests.policy.test_pure import NAMES, state_of
from wager.policy import Controller, Draft, Plan, Row
from wager.trace.costs import CostCurve

ROWS = [Row("a", 10, target_p1=0.9), Row("b", 20, target_p1=0.9)]
DRAFTS = [Draft("draft", 8, np.zeros((8, 1)))] * 2
DESCRIBED = [Draft("draft", 8)] * 2
"""The same drafts while they are in flight: their scores are not known."""


def learned(name: str) -> Controller:
    controller = Controller(name, known_costs(FLAT, rows=2))
    play(controller, World(CostCurve(FLAT)), 60, ROWS)
    return controller


class Counting(Controller):
    """Counts how often the policy itself is asked."""

    def __init__(self, name: str = "auto") -> None:
        super().__init__(name, known_costs(FLAT, rows=2))
        play(self, World(CostCurve(FLAT)), 60, ROWS)
        self.asked = 0
        policy, ask = self.policy, self.policy.plan

        def plan(rows: Sequence[Row]) -> Plan:
            self.asked += 1
            return ask(rows)

        policy.plan = plan  # type: ignore[method-assign]

    def asks_for(self, rows: Sequence[Row]) -> bool:
        """Whether the policy is asked for a plan of these rows."""
        before = self.asked
        self.plan(rows)
        return self.asked > before


@pytest.mark.parametrize("name", NAMES)
def test_an_early_plan_is_the_plan_that_is_found_later(name: str) -> None:
    early, late = learned(name), learned(name)
    early.prepare([row._replace(num_pending=7) for row in ROWS], DRAFTS)
    plans = [controller.plan(ROWS) for controller in (early, late)]
    assert state_of(plans[0]) == state_of(plans[1])
    blind = [
        controller.blind_bet(plan, ROWS, DESCRIBED)
        for controller, plan in zip((early, late), plans, strict=True)
    ]
    assert state_of(blind[0]) == state_of(blind[1])


def test_a_prepared_plan_is_used_once_the_rows_come_as_expected() -> None:
    controller = Counting()
    controller.prepare(ROWS, DRAFTS)
    assert controller.asked == 1
    assert not controller.asks_for(ROWS)
    grown = [row._replace(context_len=row.context_len + 5) for row in ROWS]
    assert not controller.asks_for(grown), "a few tokens more make no difference to any price"


@pytest.mark.parametrize(
    "change",
    [
        {"request_id": "c"},
        {"phase": "code"},
        {"num_pending": 2},
        {"max_nodes": 3},
        {"max_depth": 2},
        {"context_len": 50_000},
        {"target_p1": 0.1},
        {"drafters": ("other",)},
        {"drafters": ("other", "draft")},
        {"grades": ("/long",)},
        {"emits": False},
    ],
)
def test_a_prepared_plan_is_not_used_for_other_rows(change: dict[str, object]) -> None:
    controller = Counting()
    controller.prepare(ROWS, DRAFTS)
    other = ROWS[1]._replace(**change)  # type: ignore[arg-type]
    assert controller.asks_for([ROWS[0], other])
    assert controller.asks_for(ROWS[:1])
    assert controller.asks_for(ROWS[::-1])


def test_a_prepared_plan_is_not_used_after_something_was_learned() -> None:
    controller = Counting()
    for change in (
        lambda: controller.learn(step(*[share(row=row) for row in ROWS])),
        lambda: controller.forget("somebody"),
        lambda: controller.set_policy("auto"),
    ):
        controller.prepare(ROWS, DRAFTS)
        assert not controller.asks_for(ROWS)
        change()
        assert controller.asks_for(ROWS)


def test_a_plan_of_another_policy_is_not_used() -> None:
    controller = learned("auto")
    controller.prepare(ROWS, DRAFTS)
    controller.set_policy("ar")
    assert not controller.plan(ROWS).drafts


@pytest.mark.parametrize("odd", [Row("b", 20, nodes=3), Row("b", 20, emits=False)])
def test_steps_of_prompts_and_of_requests_with_a_bet_of_their_own_are_not_prepared(odd: Row) -> None:
    controller = Counting()
    controller.prepare([ROWS[0], odd], DRAFTS)
    assert controller.asked == 0


def test_a_prepared_blind_bet_is_used_for_the_same_drafts_alone() -> None:
    controller = learned("auto")
    controller.prepare(ROWS, DRAFTS)
    plan = controller.plan(ROWS)
    bets: list[object] = []
    ask = controller.policy.blind_bet

    def count(*arguments: object) -> object:
        bets.append(arguments)
        return ask(*arguments)  # type: ignore[arg-type]

    controller.policy.blind_bet = count  # type: ignore[method-assign, assignment]
    assert controller.blind_bet(plan, ROWS, list(DESCRIBED)) is not None
    assert not bets
    assert controller.blind_bet(plan, ROWS, [DESCRIBED[0], None]) is not None
    assert controller.blind_bet(plan, ROWS, [Draft("draft", 4)] * 2) is not None
    assert len(bets) == 2


def test_drafts_without_probabilities_are_prepared_as_known_ones() -> None:
    """A copy is at hand before the device runs: its guesses are known, if not how good they are."""
    controller = learned("auto")
    controller.prepare(ROWS, DESCRIBED)
    plan = controller.plan(ROWS)
    known = [Draft("draft", 8, has_come=True)] * 2
    assert controller.blind_bet(plan, ROWS, known) == controller.policy.blind_bet(plan, ROWS, known)
