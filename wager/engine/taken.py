"""A step that was taken up to its commit, and what is made of it: the outcome for the policy, the report."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import NamedTuple

from wager.engine.rows import StepRow
from wager.engine.telemetry import StageClock, StepReport
from wager.policy import Plan, RowOutcome, StepOutcome
from wager.records import Verdict
from wager.target import NO_CHOICES, Choices


class StepTaken(NamedTuple):
    """One step, or several equal plain ones that native code took at once."""

    rows: Many[StepRow]
    verdicts: Many[Verdict | None]
    clock: StageClock
    """The times of the stages so far."""
    choices: Choices = NO_CHOICES
    is_typical: bool = True
    """Whether its time is that of others of its kind."""
    num_steps: int = 1
    native: bool = False
    """Whether native code has taken it."""

    def of_running(self) -> StepTaken:
        """The step of those whose text has not ended in a step that was taken with this one.

        A stop string is found only afterwards. Nothing is learned from the time of what is left.
        """
        pairs = zip(self.rows, self.verdicts, strict=True)
        left = [(row, verdict) for row, verdict in pairs if row.sequence.finish is None]
        if len(left) == len(self.rows):
            return self
        rows, verdicts = [row for row, _ in left], [verdict for _, verdict in left]
        return self._replace(rows=rows, verdicts=verdicts, is_typical=False)


def outcome_of(step: StepTaken, bets: Plan, learn_ms: float) -> StepOutcome:
    """The outcome of the step as the policy is told it; it covers the whole time of the step.

    The time of deciding and of learning (`learn_ms`, from the previous step) is charged to the draft, the
    rest to the pass. Of a native step all that the host does is charged to the draft, and to nobody where
    there is none: it is shared by many plain steps. Of several steps it is the mean.
    """
    shares, num_tokens, drafted, stage_ms = [], 0, False, step.clock.ms
    for row in step.rows:
        verdict, offer, num_nodes = row.verdict, row.offer, row.tree.num_nodes
        accepted = 0 if verdict is None else len(verdict.accepted)
        shares.append(RowOutcome(row.view, offer, num_nodes, accepted, row.emitted, row.draft))
        num_tokens += row.num_tokens + num_nodes
        drafted = drafted or offer.drafter is not None
    deciding_ms = stage_ms["bet"] + stage_ms["draft"] + stage_ms["arrange"] + learn_ms
    verify_ms, other_ms = stage_ms["verify"], sum([stage_ms[stage] for stage in _OTHERS])
    if step.native:
        deciding_ms = deciding_ms + other_ms if drafted else 0.0
    elif drafted:
        verify_ms += other_ms
    else:
        verify_ms, deciding_ms = verify_ms + other_ms + deciding_ms, 0.0
    num = step.num_steps
    return StepOutcome(
        shares,
        num_tokens,
        verify_ms / num,
        deciding_ms / num,
        is_typical=step.is_typical,
        plan=bets,
        num_steps=num,
        native=step.native,
    )


_OTHERS = ("plan", "accept", "commit", "emit")


def report_of(outcome: StepOutcome, stage_ms: dict[str, float]) -> StepReport:
    """The numbers of the step for telemetry."""
    bets, drafters, accepted, emitted = [], [], 0, 0
    for share in outcome.rows:
        bets.append(share.num_nodes)
        drafters.append(share.offer.drafter or "")
        accepted += share.accepted
        emitted += share.emitted
    return StepReport(
        num_rows=len(bets),
        num_tokens=outcome.num_tokens,
        num_nodes=sum(bets),
        num_drafting=len(drafters) - drafters.count(""),
        accepted=accepted,
        emitted=emitted,
        stage_ms=stage_ms,
        bets=bets,
        drafters=drafters,
        num_steps=outcome.num_steps,
    )
