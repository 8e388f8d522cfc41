"""When the policy learns from a step: at its end, or while the next pass runs.

Learning takes host time in which a device would be idle. So on a device the outcome of a step that drafted
waits until the next pass has been launched. There the next step is planned early as well. Whether learning
waits depends on the device and on the step alone, never on who observes the engine.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from wager.engine.context import EngineParts
from wager.engine.delivery import Delivery
from wager.engine.rows import StepRow
from wager.engine.telemetry import StageClock
from wager.policy import StepOutcome


class Learning:
    """Hands outcomes to the controller, each exactly once and in order."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self.waiting: Many[StepOutcome] = ()
        """The outcomes of the previous step, where learning from it waits for the next pass."""
        self.learn_ms = 0.0
        """What the learn stage of the latest step took; the next step is charged for it."""

    def take_in(self, outcomes: Many[StepOutcome], delivery: Delivery, clocks: Many[StageClock]) -> None:
        """Learn from steps of one plan and make the terminal events of the requests that ended in them.

        On a device, after a step that drafted, learning waits until the next pass runs. It does not wait if a
        request has ended, because the account of an ended request must be complete.
        """
        clock = StageClock()
        drafted = any(share.offer.drafter is not None for outcome in outcomes for share in outcome.rows)
        if drafted and self._parts.runner.has_kernels and not delivery.has_ended:
            self.waiting = outcomes
        else:
            self._learn(outcomes)
            delivery.close_ended()
        clock.mark("learn")
        self.learn_ms = clock.ms["learn"]
        for own in clocks:
            own.ms["learn"] = self.learn_ms / len(clocks)

    def _learn(self, outcomes: Many[StepOutcome]) -> None:
        """Tell the controller what steps cost and yielded, and which drafts have an outcome by now."""
        evidence = self._parts.draft_outcomes.take_complete()
        overlaps = self._parts.runner.has_kernels
        told = [outcome._replace(overlaps=overlaps) for outcome in outcomes] if overlaps else list(outcomes)
        if evidence and told:
            told[0] = told[0]._replace(evidence=evidence)
        self._parts.controller.learn(*told)

    def catch_up(self) -> None:
        """Learn from the previous step if that has waited."""
        outcomes, self.waiting = self.waiting, ()
        if outcomes:
            self._learn(outcomes)

    def prepare(self, rows: Many[StepRow]) -> None:
        """Let the policy plan the step behind the pass in flight, on a device and if that pass has drafts."""
        drafts = [row.draft for row in rows]
        if self._parts.runner.has_kernels and any(drafts):
            self._parts.controller.prepare([row.view for row in rows], drafts)

    def drop(self) -> None:
        """Discard the outcomes that wait: the step after them has failed."""
        self.waiting = ()
