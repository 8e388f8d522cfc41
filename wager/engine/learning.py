"""When the policy learns from a step: at its end, or while the next pass runs.

Learning takes host time in which a device would be idle. So on a device the outcome of a step that drafted
waits until the next pass has been launched. There the next step is planned early as well. Whether learning
waits depends on the device and on the step alone, never on who observes the engine.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from wager.engine.context import EngineParts
from wager.engine.rows import StepRow
from wager.policy import StepOutcome

PLAIN_MEMORY = 0.1
"""Weight of the latest step in the time that plain decoding spends on deciding."""


class Learning:
    """Hands outcomes to the controller, each exactly once and in order."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self.waiting: StepOutcome | None = None
        """The outcome of the previous step, where learning from it waits for the next pass."""
        self._plain_ms = 0.0
        """Time of deciding in steps in which no drafter was asked: what plain decoding spends on it, too."""
        self.learn_ms = 0.0
        """What the learn stage of the latest step took; the next step is charged for it."""

    def postpone(self, outcome: StepOutcome, has_ended: bool) -> bool:
        """Keep the outcome until the next pass runs, if that is possible; returns whether it is.

        It is on a device, after a step that drafted, and while no request has ended: the account of an ended
        request must be complete.
        """
        if has_ended or not _has_drafted(outcome) or not self._parts.runner.has_kernels:
            return False
        self.waiting = outcome
        return True

    def learn(self, outcome: StepOutcome) -> None:
        """Tell the controller what a step cost and yielded, and which drafts have an outcome by now."""
        evidence = self._parts.draft_outcomes.take_complete()
        overlaps = self._parts.runner.has_kernels
        outcome = self._divided(outcome, overlaps)
        self._parts.controller.learn(outcome._replace(evidence=evidence, overlaps=overlaps))

    def _divided(self, outcome: StepOutcome, overlaps: bool) -> StepOutcome:
        """The outcome whose pass has the time that plain decoding spends on deciding, and no more.

        Otherwise plain decoding would look as slow as steps in which drafters are asked in vain. A device
        runs while the host decides, so there the time of a step that did not draft is not divided.
        """
        deciding_ms = outcome.draft_ms
        if overlaps:
            moved_ms = 0.0 if _has_drafted(outcome) else deciding_ms
        else:
            if not any(share.row.drafters for share in outcome.rows):
                self._plain_ms += PLAIN_MEMORY * (deciding_ms - self._plain_ms)
            moved_ms = min(self._plain_ms, deciding_ms)
        return outcome._replace(verify_ms=outcome.verify_ms + moved_ms, draft_ms=deciding_ms - moved_ms)

    def catch_up(self) -> None:
        """Learn from the previous step if that has waited."""
        outcome, self.waiting = self.waiting, None
        if outcome is not None:
            self.learn(outcome)

    def prepare(self, rows: Many[StepRow]) -> None:
        """Let the policy plan the step behind the pass in flight, on a device and if that pass has drafts."""
        drafts = [row.draft for row in rows]
        if self._parts.runner.has_kernels and any(drafts):
            self._parts.controller.prepare([row.view for row in rows], drafts)

    def drop(self) -> None:
        """Discard the outcome that waits: the step after it has failed."""
        self.waiting = None


def _has_drafted(outcome: StepOutcome) -> bool:
    return any(share.offer.drafter is not None for share in outcome.rows)
