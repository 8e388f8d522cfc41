"""How the time of a step is divided between its pass and deciding before the policy learns from it."""

from types import SimpleNamespace
from typing import Any

import pytest

from wager.engine.learning import Learning
from wager.policy import PLAIN, Offer, Row, RowOutcome, StepOutcome


class Recorded:
    """A controller that keeps what it is told."""

    def __init__(self) -> None:
        self.outcomes: list[StepOutcome] = []

    def learn(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)


def learning_of(*, has_kernels: bool) -> tuple[Learning, Recorded]:
    controller = Recorded()
    parts: Any = SimpleNamespace(
        controller=controller,
        runner=SimpleNamespace(has_kernels=has_kernels),
        draft_outcomes=SimpleNamespace(take_complete=list),
    )
    return Learning(parts), controller


def outcome_of(*, drafters: tuple[str, ...], offer: Offer = PLAIN, deciding_ms: float) -> StepOutcome:
    row = Row("r", drafters=drafters)
    return StepOutcome([RowOutcome(row, offer, 0, 0, 1)], 1, 5.0, deciding_ms)


def test_a_plain_step_is_priced_without_the_time_of_asking_in_vain() -> None:
    learning, controller = learning_of(has_kernels=False)
    for _ in range(100):
        learning.learn(outcome_of(drafters=(), deciding_ms=0.1))
    learning.learn(outcome_of(drafters=("draft",), deciding_ms=0.5))
    bare, asked = controller.outcomes[-2:]
    assert bare.verify_ms == pytest.approx(5.1, abs=1e-4) and bare.draft_ms == pytest.approx(0.0, abs=1e-4)
    assert asked.verify_ms == pytest.approx(5.1, abs=1e-4) and asked.draft_ms == pytest.approx(0.4, abs=1e-4)


def test_what_plain_decoding_decides_is_not_charged_to_drafts() -> None:
    learning, controller = learning_of(has_kernels=False)
    for _ in range(100):
        learning.learn(outcome_of(drafters=(), deciding_ms=0.1))
    learning.learn(outcome_of(drafters=("draft",), offer=Offer("draft"), deciding_ms=2.0))
    assert controller.outcomes[-1].draft_ms == pytest.approx(1.9, abs=1e-4)


def test_the_time_of_a_plain_step_is_whole_where_a_device_overlaps() -> None:
    learning, controller = learning_of(has_kernels=True)
    learning.learn(outcome_of(drafters=("draft",), deciding_ms=0.5))
    learning.learn(outcome_of(drafters=("draft",), offer=Offer("draft"), deciding_ms=0.5))
    plain, drafted = controller.outcomes
    assert (plain.verify_ms, plain.draft_ms) == (5.5, 0.0)
    assert (drafted.verify_ms, drafted.draft_ms) == (5.0, 0.5)
