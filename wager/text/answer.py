"""Reads a model's text as it arrives into its three parts: reasoning, content and tool calls.

Joins `reasoning.py` and `tools.py`: calls are looked for in the answer only, never in the reasoning. The
server keeps one per sequence and feeds it the engine's text; it knows nothing of tokens or HTTP.
"""

from collections.abc import Sequence
from typing import NamedTuple

from wager.text.reasoning import ReasoningMarks, ReasoningPiece, ReasoningSplitter
from wager.text.tools import Tool, ToolCall, ToolFormat, ToolParser, ToolPiece


class AnswerPiece(NamedTuple):
    """New text of each part, and calls that are complete."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()


class AnswerReader:
    """Reads one sequence. A part that the request does not ask for is plain content."""

    def __init__(
        self,
        marks: ReasoningMarks | None = None,
        starts_open: bool = False,
        form: ToolFormat | None = None,
        tools: Sequence[Tool] = (),
    ) -> None:
        """`marks`: None where nothing is split off; `form`: None where no calls are read."""
        self._splitter = None if marks is None else ReasoningSplitter(marks, starts_open)
        self._parser = None if form is None or not tools else ToolParser(form, tools)

    @property
    def has_calls(self) -> bool:
        return self._parser is not None and self._parser.has_calls

    @property
    def malformed(self) -> list[str]:
        """Calls that could not be read."""
        return [] if self._parser is None else self._parser.malformed

    def feed(self, text: str) -> AnswerPiece:
        """Take text in; returns what of it is certain."""
        split = ReasoningPiece(content=text) if self._splitter is None else self._splitter.feed(text)
        read = ToolPiece(split.content) if self._parser is None else self._parser.feed(split.content)
        return AnswerPiece(split.reasoning, read.content, read.calls)

    def flush(self) -> AnswerPiece:
        """The text has ended: what was held back."""
        split = ReasoningPiece() if self._splitter is None else self._splitter.flush()
        if self._parser is None:
            return AnswerPiece(split.reasoning, split.content)
        read, rest = self._parser.feed(split.content), self._parser.flush()
        return AnswerPiece(split.reasoning, read.content + rest.content, (*read.calls, *rest.calls))
