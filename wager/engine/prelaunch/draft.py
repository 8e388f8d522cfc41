"""Prelaunches the next draft of rows that drafted.

Assumption: a row that drafted in this step drafts again in the next one with the drafter that it used. The
draft is launched behind the choices of the pass in flight, on the device alone, where the drafter can do so;
otherwise with the verdict, before tokens are handed out. Behind the prompt of a request that runs alone, the
drafter is launched that drafted first for the request before. A draft that the next step does not ask for has
run in vain.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import partial

from torch import Tensor

from wager.draft.base import DraftRow, InFlightPass, InFlightRow
from wager.engine.context import EngineParts
from wager.engine.drafting import Drafting
from wager.engine.pipeline import Pipeline, Strategy
from wager.engine.rows import StepRow, draft_row_behind
from wager.engine.sequence import Sequence
from wager.records import Verdict
from wager.target import RunResult


class DraftPrelaunch:
    """Launches drafts early."""

    def __init__(self, parts: EngineParts, drafting: Drafting, pipeline: Pipeline) -> None:
        self._parts, self._drafting, self._pipeline = parts, drafting, pipeline
        self._first_drafter: str | None = None
        """The drafter of the first step of the latest request that ran alone."""

    def launch_behind(self, rows: list[StepRow], result: RunResult, chosen: Tensor) -> None:
        """Launch the next draft of all rows that drafted; `chosen` are this pass's choices, on the device.

        One drafter in use drafts for all of these rows, because a row may change from one to another.
        Nothing is launched where the host takes part in a verdict.
        """
        names = {row.offer.drafter for row in rows if row.offer.drafter is not None}
        tokens = result.token_ids
        if not names or tokens is None or not all(row.needs_no_host for row in rows):
            return
        drafted, places, first_choice = list[StepRow](), list[InFlightRow](), 0
        for row, first_token in zip(rows, result.inputs.starts, strict=False):
            if row.offer.drafter is not None:
                self._drafting.reserve_room(row, row.tree.num_nodes)
                drafted.append(row)
                places.append(row.in_flight_row(first_token, first_choice))
            first_choice += row.tree.num_nodes + 1
        verified = InFlightPass(places, chosen, tokens)
        for name in names:
            device = self._parts.drafters[name].device
            try:
                kept = None if device is None else device.follow(verified)
            except Exception as error:
                self._drafting.fail([row.sequence for row in drafted], error)
                return
            if kept is not None:
                for row in drafted:
                    row.next_draft_by = device
                self._parts.runner.commit_behind(kept)
                return

    def launch_with_verdicts(self, rows: list[StepRow], verdicts: Many[Verdict | None]) -> None:
        """Launch the next draft of rows whose verdict is known, unless it was launched behind the pass.

        Every drafter in use is asked for all of these rows: a row may change from one to another, and a draft
        that lacks a row would be made anew.
        """
        if not self._parts.runner.has_kernels:
            return
        if len(rows) == 1 and rows[0].sequence.stats.steps == 1:
            self._first_drafter = rows[0].offer.drafter
        owners, asked, first = dict[str, list[Sequence]](), list[DraftRow](), self._first_for(rows)
        for row, verdict in zip(rows, verdicts, strict=True):
            name, sequence = row.offer.drafter or first, row.sequence
            if name is None or verdict is None or row.close is not None:
                continue
            if row.next_draft_by is not None:
                confirm = row.next_draft_by.confirm
                call = partial(confirm, sequence.request_id, sequence.num_cached, verdict.target_token)
                self._drafting.guard([sequence], call)
                continue
            num_tokens = len(sequence.tokens) + len(verdict.accepted) + 1
            if verdict.target_token in sequence.request.end_ids or num_tokens >= sequence.max_len:
                continue
            self._drafting.reserve_room(row)
            owners.setdefault(name, []).append(sequence)
            asked.append(draft_row_behind(sequence, verdict))
        for name, own in owners.items():
            device = self._parts.drafters[name].device
            if device is not None:
                self._drafting.guard(own, partial(device.start, asked))

    def _first_for(self, rows: list[StepRow]) -> str | None:
        """The drafter for a row that has just read its prompt alone, if there is an assumption about it."""
        if len(rows) != 1 or not rows[0].is_judged or self._pipeline.strategy is Strategy.PLAIN:
            return None
        sequence = rows[0].sequence
        is_first = not sequence.stats.steps and sequence.nodes is None and not sequence.drafting_failed
        return self._first_drafter if is_first and self._first_drafter in self._parts.drafters else None
