"""Prelaunches the next plain pass behind the choices of the pass in flight.

Assumption: no row drafts in the next step. Its pass then depends on this pass's choices, which are on the
device already, and on prompts, which the host knows. The scheduler plans it before the verdict: rows that go
on have one pending token that only the device knows, prompts are read on, and waiting requests are admitted,
so that the device is not idle across an admission. The host hands out tokens and learns while the device
runs. A row that ends in the step between is left out when the result is read.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from torch import Tensor

from wager.engine.context import EngineParts
from wager.engine.drafting import Drafting
from wager.engine.observation import inquire, rows_of
from wager.engine.pipeline import InFlight, Pipeline, Strategy
from wager.engine.rows import NO_TREE, StepRow
from wager.engine.scheduler import Planned
from wager.target import PendingChoices, RunResult, RunRow

ASKED_FIRST = 16
"""Rows up to which the policy is asked before the next pass is launched; a row takes some 40 us."""
_UNREAD = (0,)
"""Stands for a pending token that only the device knows yet."""


class PlainPrelaunch:
    """Launches plain passes early."""

    def __init__(self, parts: EngineParts, drafting: Drafting, pipeline: Pipeline) -> None:
        self._parts, self._drafting, self._pipeline = parts, drafting, pipeline
        self._may_draft = False
        """Whether a row may draft in the step behind the pass that was launched last."""
        self._has_asked = False
        """Whether drafters were asked since the latest launch."""

    def can_follow(self, rows: Many[StepRow]) -> bool:
        """Whether a plain pass can follow the pass of these rows before its choices are read."""
        parts = self._parts
        return (
            len(rows) <= parts.runner.max_prelaunch_rows and not parts.wants_p1 and all(map(_is_free, rows))
        )

    def launch_behind(self, rows: list[StepRow], result: RunResult, pending: PendingChoices) -> bool:
        """Launch the next pass of these rows behind the choices of this one, unless a row may draft then.

        The policy is asked about few rows before that. Many take longer than a pass may leave, so it is asked
        once the next pass is launched, about the step behind that. Returns whether the device stood still
        because asking about many took too long. Precondition: `can_follow`; the choices are on the device.
        """
        assert pending.device_tokens is not None
        may_draft, self._may_draft = self._may_draft, False
        if may_draft:
            return False
        coming = self._coming(rows)
        if coming is not None and len(coming) <= ASKED_FIRST:
            if self._drafts(coming):
                return False
            coming = None
        self._launch(rows, result, pending.device_tokens)
        is_late, self._has_asked = self._has_asked and pending.is_done, coming is not None
        if coming is not None:
            self._may_draft = self._drafts(coming)
        return is_late

    def _coming(self, rows: list[StepRow]) -> list[StepRow] | None:
        """The rows of the next step as the policy sees them, as far as it wants to see them.

        They are as before this pass, without those that end with it or have just read their prompt. None: no
        row will draft; an empty list: this is not known yet.
        """
        going_on = [row for row in rows if not row.is_judged or row.sequence.num_left > 1]
        planned = [Planned(row.sequence, 1 if row.is_judged else row.num_tokens) for row in going_on]
        if not planned:
            return []
        inquiry = inquire(self._parts, planned, self._pipeline.num_plain)
        if not inquiry.asks:
            return None
        decoding = [one for one, row in zip(planned, going_on, strict=True) if row.num_tokens == 1]
        return rows_of(self._parts, self._drafting, decoding, inquiry)

    def _drafts(self, coming: list[StepRow]) -> bool:
        """Whether the policy lets one of these rows draft, or does not know."""
        return not coming or self._parts.controller.plan([row.view for row in coming]).drafts

    def _launch(self, rows: list[StepRow], result: RunResult, chosen: Tensor) -> None:
        """Launch the next pass; `chosen` are the tokens that this one chose, on the device."""
        parts = self._parts
        plan = parts.scheduler.plan_behind([Planned(row.sequence, row.num_tokens) for row in rows])
        if plan is None:
            return
        # The features must be kept now, because the next pass overwrites them.
        self._drafting.keep(rows, result, [range(row.num_tokens) for row in rows])
        places, read = dict[int, int](), dict[int, int]()
        for row in rows:
            read[id(row.sequence)] = row.num_tokens
            if row.is_judged:
                places[id(row.sequence)] = len(places)
        asked = [
            _next_row(planned, read.get(id(planned.sequence), 0), index < plan.num_unread)
            for index, planned in enumerate(plan.rows)
        ]
        chosen_at = [places[id(planned.sequence)] for planned in plan.rows[: plan.num_unread]]
        following = parts.runner.run_behind(asked, chosen, chosen_at)
        self._pipeline.add(InFlight(Strategy.PLAIN, plan.rows, following, _is_plain))


def _is_plain(rows: Many[StepRow]) -> bool:
    """Rows that were planned from the pass in flight have no trees: `observe` offers them no drafter."""
    return True


def _is_free(row: StepRow) -> bool:
    """Whether the row guesses nothing and the host takes no part in its choice."""
    if row.tree.num_nodes or row.offer.drafter is not None or row.view.nodes:
        return False
    return not row.is_judged or (row.needs_no_host and row.sequence.params.logprobs is None)


def _next_row(planned: Planned, num_read: int, is_unread: bool) -> RunRow:
    """The row of a planned sequence of which the pass in flight reads `num_read` tokens."""
    sequence, num_tokens = planned
    start = sequence.num_cached + num_read
    if is_unread:
        return RunRow(_UNREAD, NO_TREE, start, sequence.pages)
    stop = start + num_tokens
    return RunRow(sequence.tokens[start:stop], NO_TREE, start, sequence.pages, stop == len(sequence.tokens))
