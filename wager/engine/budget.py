"""A request's thinking: is it open, how much of it there is, and when it is closed from outside. No torch.

One span per request: it opens once, by its mark or with the prompt, and closes once. What follows is the
answer for good, even where the model opens a span again, so nothing can be forced there. While it is open
every token counts as thinking text until a whole close mark stands; a close is due the moment the text has
used up its budget. `Sequence` feeds it what was emitted, the accept stage asks `walk` how much of a verdict
stands, and the plan stage how deep a tree may go. It knows neither text nor trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wager.records import CloseKind, CloseReport, ThinkingLimit

__all__ = ["Cut", "Thinking", "repeats_itself"]

SHORTEST_REPEAT, LONGEST_REPEAT = 12, 80


class Cut(NamedTuple):
    """How many of a verdict's tokens stand before a close is forced; `kind` is None where none is."""

    num_kept: int
    kind: CloseKind | None


class Thinking:
    """The state of one request's thinking, token by token."""

    __slots__ = (
        "_answer",
        "_limit",
        "_marking",
        "is_closed",
        "is_open",
        "kind",
        "num_content",
        "num_thinking",
        "repeated",
    )

    def __init__(self, limit: ThinkingLimit) -> None:
        self._limit = limit
        self.is_open = limit.starts_open
        self.is_closed = False
        self.kind = CloseKind.NONE
        self.num_thinking = 0
        self.num_content = 0
        self.repeated = False
        """Whether the answer does nothing but repeat itself by now; only looked at after a close."""
        self._marking: list[int] = []
        """The last tokens, as many as may yet belong to the mark that is waited for."""
        self._answer: list[int] = []

    @property
    def is_due(self) -> bool:
        """Whether the budget is used up and the span still open: the close is forced now."""
        budget = self._limit.budget
        return self.is_open and budget is not None and self.num_thinking >= budget

    @property
    def left(self) -> int | None:
        """Tokens until the close is due; None where it is not in sight: no span is open, or no budget set."""
        budget = self._limit.budget
        return budget - self.num_thinking if self.is_open and budget is not None else None

    @property
    def close_ids(self) -> tuple[int, ...]:
        return self._limit.close_ids

    @property
    def report(self) -> CloseReport:
        return CloseReport(self.kind, self.num_thinking, self.num_content)

    def feed(self, token: int) -> None:
        """Take in a token that was chosen, not forced, and does not end the text."""
        if self.is_open:
            self.num_thinking += 1
            if self._completes(token, self._limit.natural_ids):
                self.num_thinking -= len(self._limit.natural_ids)
                self._shut(CloseKind.NATURAL)
            return
        self.num_content += 1
        if self.is_closed:
            self._watch(token)
        elif self._completes(token, self._limit.open_ids):
            self.num_content -= len(self._limit.open_ids)
            self.is_open = True

    def force(self, kind: CloseKind) -> tuple[int, ...]:
        """Close it from outside; returns the tokens to write. Precondition: the span is open."""
        assert self.is_open
        self._shut(kind)
        return self._limit.close_ids

    def walk(self, tokens: Sequence[int], soft: Sequence[bool] = ()) -> Cut:
        """How far the tokens of a verdict may stand. Changes nothing.

        `soft[i]`: at the place where tokens[i] was chosen, the close was likely enough for a soft one.
        """
        if self.is_closed:
            return Cut(len(tokens), None)
        ahead = self._copy()
        for place, token in enumerate(tokens):
            if soft and soft[place] and ahead._yields(token):
                return Cut(place, CloseKind.SOFT)
            ahead.feed(token)
            if ahead.is_due:
                return Cut(place + 1, CloseKind.HARD)
            if ahead.is_closed:
                break
        return Cut(len(tokens), None)

    def _yields(self, token: int) -> bool:
        """Whether a soft close may come in place of this token; a close that the model begins is its own."""
        limit = self._limit
        return self.is_open and self.num_thinking >= limit.soft_after and token != limit.natural_ids[0]

    def _completes(self, token: int, mark: tuple[int, ...]) -> bool:
        """Whether this token completes the mark; remembers as much of the text as may still begin one."""
        if len(mark) < 2:
            return (token,) == mark
        recent = self._marking
        recent.append(token)
        del recent[: -len(mark)]
        whole = tuple(recent) == mark
        if whole:
            recent.clear()
        return whole

    def _shut(self, kind: CloseKind) -> None:
        self.is_open, self.is_closed, self.kind = False, True, kind
        self._marking.clear()

    def _watch(self, token: int) -> None:
        if self._limit.stop_repeats:
            self._answer.append(token)
            self.repeated = repeats_itself(self._answer)

    def _copy(self) -> Thinking:
        """The same state, to go ahead with; it never gets as far as an answer."""
        other = Thinking(self._limit)
        other.is_open, other.num_thinking = self.is_open, self.num_thinking
        other._marking = list(self._marking)
        return other


def repeats_itself(tokens: Sequence[int]) -> bool:
    """Whether the last P tokens are the P before them, for a P from 12 to 80."""
    count = len(tokens)
    if count < 2 * SHORTEST_REPEAT:
        return False
    last = tokens[-1]
    for period in range(SHORTEST_REPEAT, min(LONGEST_REPEAT, count // 2) + 1):
        # The first comparison alone is nearly always enough.
        if tokens[-1 - period] == last and tokens[-period:] == tokens[-2 * period : -period]:
            return True
    return False
