"""Appends a verdict's tokens to its sequence and makes the events that callers receive.

A request that ends has its terminal event held back until the policy has learned from the step, because that
event carries the request's account.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from wager.engine.context import EngineParts
from wager.engine.events import Event, event_since, note_choices
from wager.engine.rows import StepRow
from wager.engine.sequence import Finish, Sequence
from wager.records import CloseKind, Verdict
from wager.target import Choices


class Delivery:
    """The events of one engine that nobody has taken yet."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._events: list[Event] = []
        self._ended: list[tuple[Sequence, Event]] = []

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    @property
    def has_ended(self) -> bool:
        """Whether a request has ended and its terminal event is held back."""
        return bool(self._ended)

    def take(self) -> list[Event]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def deliver(self, rows: Many[StepRow], verdicts: Many[Verdict | None], choices: Choices) -> None:
        """Append the verdicts' tokens to their sequences; a judged row without a verdict has failed."""
        start = 0
        for row, verdict in zip(rows, verdicts, strict=True):
            if not row.is_judged:
                continue
            if verdict is None:
                self.end(row.sequence, Finish.ERROR, "the model's scores are not finite numbers")
            else:
                row.verdict = verdict
                self._deliver_row(row, verdict, choices, start)
            start += row.tree.num_nodes + 1

    def _deliver_row(self, row: StepRow, verdict: Verdict, choices: Choices, start: int) -> None:
        """Append one verdict's tokens; `start` is the row's first place in the choices."""
        parts, sequence, num_nodes = self._parts, row.sequence, row.tree.num_nodes
        if sequence.constraint is not None and sequence.constraint.problem is not None:
            self.end(sequence, Finish.ERROR, f"the grammar: {sequence.constraint.problem}")
            return
        num_text, num_tokens = len(sequence.text), len(sequence.tokens)
        accepted = verdict.accepted
        chosen = row.plain_tokens or (accepted if row.close is CloseKind.SOFT else verdict.emitted)
        emitted = row.emitted = sequence.append(chosen, len(accepted))
        if row.plain_tokens:
            sequence.stats.record_plain(len(row.plain_tokens), emitted)
        else:
            sequence.stats.record(min(len(accepted), emitted), num_nodes, emitted=emitted)
        if choices.logprobs or choices.top_p1:
            note_choices(sequence, emitted, choices, [start, *[start + 1 + node for node in verdict.path]])
        parts.scheduler.serve(sequence, emitted)
        parts.draft_outcomes.feed(sequence.request_id, sequence.tokens[num_tokens:])
        if row.close is not None and sequence.finish is None:
            parts.draft_outcomes.close(sequence.request_id)  # forced tokens say nothing about a draft
            sequence.force(row.close)
        event = event_since(sequence, num_tokens, num_text, row)
        if sequence.finish is not None:
            parts.draft_outcomes.close(sequence.request_id)
            self._ended.append((sequence, event))
            parts.scheduler.finish(sequence)
            return
        if sequence.stats.steps == 1:
            parts.scheduler.share(sequence)  # the prompt is in the cache: others may start from it
        self._events.append(event)

    def end(self, sequence: Sequence, finish: Finish, error: str | None = None) -> None:
        """End a sequence for a reason outside its text: an abort or a failure."""
        if finish is Finish.ERROR:
            self._parts.telemetry.failed_requests += 1
        num_sent = len(sequence.text)
        sequence.end(finish, error)
        self._parts.draft_outcomes.drop(sequence.request_id)
        self._ended.append((sequence, Event(sequence.request_id, text=sequence.text[num_sent:])))
        self._parts.scheduler.finish(sequence)

    def force_close(self, sequence: Sequence) -> None:
        """Close the thinking of a request that may not think before its first step reads the prompt."""
        sequence.force(CloseKind.HARD)
        event = event_since(sequence, sequence.num_prompt, 0)
        if sequence.finish is None:
            self._events.append(event)
            return
        self._ended.append((sequence, event))
        self._parts.scheduler.finish(sequence)
        self.close_ended()

    def close_ended(self) -> None:
        """Make the terminal event of every request that has ended, with its account."""
        for sequence, event in self._ended:
            account = self._parts.controller.forget(sequence.request_id)
            sequence.stats.time_s = account.elapsed_ms / 1e3
            sequence.stats.plain_time_s = account.plain_ms / 1e3
            finish, error = sequence.finish, sequence.error
            event = event._replace(finish=finish, error=error, sequence=sequence, account=account)
            self._events.append(event)
        self._ended.clear()
