"""Splits a text that arrives in pieces into reasoning and answer, by the marks around the reasoning.

There is one span of reasoning: it begins with the prompt or at the first open mark and ends at the first
close mark behind that; what follows is answer to the end, as the engine counts it. Marks are no part of
either side, nor are the line ends that models write around them. It knows text only, not tokens. Special
tokens show in a text only if asked to: `ReasoningMarks.shown_ids` says which.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from wager.errors import InputError
from wager.text.marks import find_mark, mark_ids, num_open
from wager.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ReasoningMarks:
    """What stands before and behind the reasoning."""

    open: str = "<think>"
    close: str = "</think>"

    def __post_init__(self) -> None:
        if not self.open or not self.close or self.open == self.close:
            raise InputError("reasoning needs an open and a close mark that differ", "marks")

    def shown_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The special tokens among them, for `SamplingParams.shown_ids`."""
        return mark_ids(tokenizer, (self.open, self.close))


class ReasoningPiece(NamedTuple):
    """New text of either side."""

    reasoning: str = ""
    content: str = ""


class _Side(Enum):
    BEFORE = "no reasoning yet"
    INSIDE = "in the reasoning"
    BEHIND = "in the answer, for good"


class ReasoningSplitter:
    """Splits the text of one sequence. What it gives out does not depend on how the text was cut."""

    def __init__(self, marks: ReasoningMarks, starts_open: bool = False) -> None:
        """`starts_open`: the prompt already ends inside the reasoning."""
        self._marks = marks
        self._side = _Side.INSIDE if starts_open else _Side.BEFORE
        self._held = ""
        self._is_fresh = True
        """Whether nothing but blanks was seen on this side."""

    @property
    def is_reasoning(self) -> bool:
        return self._side is _Side.INSIDE

    def feed(self, text: str) -> ReasoningPiece:
        """Take text in; returns what of it is certain."""
        self._held += text
        reasoning = content = ""
        if self._side is _Side.BEFORE:
            content = self._read_before()
        if self._side is _Side.INSIDE:
            reasoning = self._read_inside()
        if self._side is _Side.BEHIND:
            content += self._read_behind()
        return ReasoningPiece(reasoning, content)

    def flush(self) -> ReasoningPiece:
        """The text has ended: what was held back belongs to the side it stands on, but for closing blanks."""
        held, self._held = self._held, ""
        if self._side is _Side.INSIDE:
            return ReasoningPiece(reasoning=held.rstrip())
        return ReasoningPiece(content=held if self._side is _Side.BEFORE else "")

    def _read_before(self) -> str:
        """Up to the open mark. A close mark without one is left out: nothing was open."""
        ready = ""
        marks = (self._marks.open, self._marks.close)
        while (found := find_mark(self._held, marks)) is not None:
            ready += self._fresh_or_all(self._held[: found.start])
            self._held = self._held[found.stop :]
            if found.mark == self._marks.open:
                self._turn(_Side.INSIDE)
                return ready
        num_ready = len(self._held) - num_open(self._held, marks)
        if self._is_fresh and not self._held[:num_ready].strip():
            return ready  # blanks in front of an open mark are no answer
        return ready + self._take(num_ready)

    def _fresh_or_all(self, text: str) -> str:
        if self._is_fresh and not text.strip():
            return ""
        self._is_fresh = False
        return text

    def _read_inside(self) -> str:
        if self._is_fresh:
            self._skip_blanks()
            # Some models open the span again although the prompt did.
            while self._held.startswith(self._marks.open):
                self._held = self._held[len(self._marks.open) :]
                self._skip_blanks()
            if self._marks.open.startswith(self._held):
                return ""
        found = find_mark(self._held, (self._marks.close,))
        if found is not None:
            ready = self._held[: found.start].rstrip()
            self._held = self._held[found.stop :]
            self._turn(_Side.BEHIND)
            return ready
        num_ready = len(self._held) - num_open(self._held, (self._marks.close,))
        return self._take(len(self._held[:num_ready].rstrip()))

    def _read_behind(self) -> str:
        if self._is_fresh:
            self._skip_blanks()
        return self._take(len(self._held))

    def _skip_blanks(self) -> None:
        self._held = self._held.lstrip()

    def _take(self, num_ready: int) -> str:
        ready, self._held = self._held[:num_ready], self._held[num_ready:]
        self._is_fresh = self._is_fresh and not ready
        return ready

    def _turn(self, side: _Side) -> None:
        self._side, self._is_fresh = side, True
