"""A request's thinking span: whether it is open, how many tokens it has, and when it must be closed. No
torch.

A request has one span. It is opened once, by its mark or by the prompt, and closed once. Everything behind it
is the answer, even if the model opens a span again, and nothing is forced there. While the span is open,
every token counts as thinking until a complete close mark has come. The close is due as soon as the budget is
used up. `Sequence` feeds the emitted tokens in; the accept stage asks `walk` how much of a verdict can stay,
and the plan stage asks `left` how deep a tree may be. This file knows neither text nor trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wager.records import CloseKind, CloseReport, ThinkingLimit

__all__ = ["Cut", "Thinking", "repeats_itself"]

SHORTEST_REPEAT, LONGEST_REPEAT = 12, 80
"""Lengths, in tokens, of the repeated passages that are looked for: shorter ones occur in good text as well.
"""


class Cut(NamedTuple):
    """Where a verdict is cut because a close is forced."""

    num_kept: int
    """The number of the verdict's tokens that stay."""
    kind: CloseKind | None
    """The kind of the close; None if none is forced."""


class Thinking:
    """The state of one request's thinking, updated token by token."""

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
        """Whether the answer only repeats itself by now; it is only watched after a close."""
        self._marking: list[int] = []
        """The last tokens, as many as may still belong to the next mark."""
        self._answer: list[int] = []

    @property
    def is_due(self) -> bool:
        """Whether the budget is used up while the span is open, so that the close is forced now."""
        budget = self._limit.budget
        return self.is_open and budget is not None and self.num_thinking >= budget

    @property
    def left(self) -> int | None:
        """The number of tokens until the close is due; None if no span is open or there is no budget."""
        budget = self._limit.budget
        return budget - self.num_thinking if self.is_open and budget is not None else None

    @property
    def close_ids(self) -> tuple[int, ...]:
        return self._limit.close_ids

    @property
    def report(self) -> CloseReport:
        return CloseReport(self.kind, self.num_thinking, self.num_content)

    def feed(self, token: int) -> None:
        """Takes in a token that was chosen (not forced) and does not end the text."""
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
        """Closes the span from outside; returns the tokens to write. Precondition: the span is open."""
        assert self.is_open
        self._shut(kind)
        return self._limit.close_ids

    def walk(self, tokens: Sequence[int], soft: Sequence[bool] = ()) -> Cut:
        """Returns how many tokens of a verdict can stay. Changes nothing.

        `soft[i]` says whether the close was likely enough for a soft close where tokens[i] was chosen.
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
        """Returns whether a soft close may replace this token, which is not the model's own close."""
        limit = self._limit
        return self.is_open and self.num_thinking >= limit.soft_after and token != limit.natural_ids[0]

    def _completes(self, token: int, mark: tuple[int, ...]) -> bool:
        """Returns whether this token completes the mark; records as much text as may be the start of one."""
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
        """Returns a copy of the state for looking ahead; it is dropped before an answer begins."""
        other = Thinking(self._limit)
        other.is_open, other.num_thinking = self.is_open, self.num_thinking
        other._marking = list(self._marking)
        return other


def repeats_itself(tokens: Sequence[int]) -> bool:
    """Returns whether the last P tokens equal the P before them, for any P from 12 to 80."""
    count = len(tokens)
    if count < 2 * SHORTEST_REPEAT:
        return False
    last = tokens[-1]
    for period in range(SHORTEST_REPEAT, min(LONGEST_REPEAT, count // 2) + 1):
        # The first comparison is false in nearly every case and takes the least time.
        if tokens[-1 - period] == last and tokens[-period:] == tokens[-2 * period : -period]:
            return True
    return False
