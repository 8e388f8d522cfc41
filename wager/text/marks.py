"""Finds marks, such as <think> or <tool_call>, in text that arrives in pieces.

The readers of reasoning and of tool calls share this. It does not know the meaning of a mark; the caller
holds back text that may become one.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wager.text.tokenizer import Tokenizer


class FoundMark(NamedTuple):
    """A mark and its start."""

    start: int
    mark: str

    @property
    def stop(self) -> int:
        return self.start + len(self.mark)


def find_mark(text: str, marks: Sequence[str]) -> FoundMark | None:
    """Returns the first mark in `text`; of two marks with the same start, the longer one."""
    found = [FoundMark(start, mark) for mark in marks if (start := text.find(mark)) >= 0]
    return min(found, key=lambda one: (one.start, -len(one.mark)), default=None)


def num_open(text: str, marks: Sequence[str]) -> int:
    """Returns the length of the longest suffix of `text` with which a mark could begin."""
    longest = max((len(mark) for mark in marks), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0


def mark_ids(tokenizer: Tokenizer, marks: Iterable[str]) -> tuple[int, ...]:
    """Returns the marks that are special tokens; a text contains these only through
    `SamplingParams.shown_ids`.
    """
    ids = [tokenizer.token_id(mark) for mark in marks]
    return tuple(token_id for token_id in ids if token_id in tokenizer.special_ids and token_id is not None)
