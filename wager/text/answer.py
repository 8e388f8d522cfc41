"""Splits a model's text into reasoning, content and tool calls as it is generated.

It joins `reasoning.py` and `tools.py`: tool calls are searched in the answer only, never in the reasoning.
The server has one reader per sequence and feeds it the engine's text. It knows nothing of tokens or HTTP.
"""

from collections.abc import Sequence
from typing import NamedTuple

from wager.text.reasoning import ReasoningMarks, ReasoningPiece, ReasoningSplitter
from wager.text.tools import Tool, ToolCall, ToolFormat, ToolParser, ToolPiece


class AnswerPiece(NamedTuple):
    """New text of each part, and the complete calls."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()


class AnswerReader:
    """Reads the text of one sequence. A part that the request does not ask for becomes plain content."""

    def __init__(
        self,
        marks: ReasoningMarks | None = None,
        starts_open: bool = False,
        form: ToolFormat | None = None,
        tools: Sequence[Tool] = (),
    ) -> None:
        """`marks` is None if reasoning is not split off; `form` is None if calls are not read."""
        self._splitter = None if marks is None else ReasoningSplitter(marks, starts_open)
        self._parser = None if form is None or not tools else ToolParser(form, tools)

    @property
    def has_calls(self) -> bool:
        return self._parser is not None and self._parser.has_calls

    @property
    def malformed(self) -> list[str]:
        """The texts of calls that could not be read."""
        return [] if self._parser is None else self._parser.malformed

    def feed(self, text: str) -> AnswerPiece:
        """Takes text and returns the part whose meaning is certain."""
        split = ReasoningPiece(content=text) if self._splitter is None else self._splitter.feed(text)
        read = ToolPiece(split.content) if self._parser is None else self._parser.feed(split.content)
        return AnswerPiece(split.reasoning, read.content, read.calls)

    def flush(self) -> AnswerPiece:
        """Ends the text and returns what was held back."""
        split = ReasoningPiece() if self._splitter is None else self._splitter.flush()
        if self._parser is None:
            return AnswerPiece(split.reasoning, split.content)
        read, rest = self._parser.feed(split.content), self._parser.flush()
        return AnswerPiece(split.reasoning, read.content + rest.content, (*read.calls, *rest.calls))
