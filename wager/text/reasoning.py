"""Splits a text that arrives in pieces into reasoning and answer, by the marks around the reasoning.

There is one span of reasoning. It begins with the prompt or at the first opening mark and ends at the next
closing mark; everything after it is the answer, as in the engine's count. The marks and the line feeds around
them belong to neither part. This module knows text only, not tokens. A text contains special tokens only if
the request asks for them: `ReasoningMarks.shown_ids` returns which.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from wager.errors import InputError
from wager.text.marks import find_mark, mark_ids, num_open
from wager.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ReasoningMarks:
    """The texts that open and close the reasoning."""

    open: str = "<think>"
    close: str = "</think>"

    def __post_init__(self) -> None:
        if not self.open or not self.close or self.open == self.close:
            raise InputError("reasoning needs different opening and closing marks", "marks")

    def shown_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Returns the marks that are special tokens, for `SamplingParams.shown_ids`."""
        return mark_ids(tokenizer, (self.open, self.close))


class ReasoningPiece(NamedTuple):
    """New text of reasoning and of answer."""

    reasoning: str = ""
    content: str = ""


class _Phase(Enum):
    BEFORE = "no reasoning yet"
    INSIDE = "in the reasoning"
    ANSWER = "in the answer, until the end"


class ReasoningSplitter:
    """Splits the text of one sequence. The result does not depend on how the text was cut into pieces."""

    def __init__(self, marks: ReasoningMarks, starts_open: bool = False) -> None:
        """`starts_open` says that the prompt ends inside the reasoning."""
        self._marks = marks
        self._phase = _Phase.INSIDE if starts_open else _Phase.BEFORE
        self._held = ""
        self._only_blanks = True
        """Whether this phase has had blanks only."""

    @property
    def is_reasoning(self) -> bool:
        return self._phase is _Phase.INSIDE

    def feed(self, text: str) -> ReasoningPiece:
        """Takes text and returns the part that is certain."""
        self._held += text
        reasoning = content = ""
        if self._phase is _Phase.BEFORE:
            content = self._read_before()
        if self._phase is _Phase.INSIDE:
            reasoning = self._read_inside()
        if self._phase is _Phase.ANSWER:
            content += self._read_answer()
        return ReasoningPiece(reasoning, content)

    def flush(self) -> ReasoningPiece:
        """Ends the text; the text that was held back belongs to the current phase, without trailing blanks of
        reasoning.
        """
        held, self._held = self._held, ""
        if self._phase is _Phase.INSIDE:
            return ReasoningPiece(reasoning=held.rstrip())
        return ReasoningPiece(content=held if self._phase is _Phase.BEFORE else "")

    def _read_before(self) -> str:
        """Reads up to the opening mark. A closing mark without an opening one is omitted."""
        ready = ""
        marks = (self._marks.open, self._marks.close)
        while (found := find_mark(self._held, marks)) is not None:
            ready += self._without_leading_blanks(self._held[: found.start])
            self._held = self._held[found.stop :]
            if found.mark == self._marks.open:
                self._enter(_Phase.INSIDE)
                return ready
        num_ready = len(self._held) - num_open(self._held, marks)
        if self._only_blanks and not self._held[:num_ready].strip():
            return ready  # blanks before an opening mark do not belong to the answer
        return ready + self._take(num_ready)

    def _without_leading_blanks(self, text: str) -> str:
        if self._only_blanks and not text.strip():
            return ""
        self._only_blanks = False
        return text

    def _read_inside(self) -> str:
        if self._only_blanks:
            self._skip_blanks()
            # Some models write the opening mark although the prompt already ended with it.
            while self._held.startswith(self._marks.open):
                self._held = self._held[len(self._marks.open) :]
                self._skip_blanks()
            if self._marks.open.startswith(self._held):
                return ""
        found = find_mark(self._held, (self._marks.close,))
        if found is not None:
            ready = self._held[: found.start].rstrip()
            self._held = self._held[found.stop :]
            self._enter(_Phase.ANSWER)
            return ready
        num_ready = len(self._held) - num_open(self._held, (self._marks.close,))
        return self._take(len(self._held[:num_ready].rstrip()))

    def _read_answer(self) -> str:
        if self._only_blanks:
            self._skip_blanks()
        return self._take(len(self._held))

    def _skip_blanks(self) -> None:
        self._held = self._held.lstrip()

    def _take(self, num_ready: int) -> str:
        ready, self._held = self._held[:num_ready], self._held[num_ready:]
        self._only_blanks = self._only_blanks and not ready
        return ready

    def _enter(self, side: _Phase) -> None:
        self._phase, self._only_blanks = side, True
