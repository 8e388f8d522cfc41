"""Finds marks, such as <think> or <tool_call>, in text that arrives in pieces.

The reading of reasoning and of tool calls shares it. It knows nothing of what a mark means; what may become
one is for the caller to hold back.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wager.text.tokenizer import Tokenizer


class FoundMark(NamedTuple):
    """A mark and where it begins."""

    start: int
    mark: str

    @property
    def stop(self) -> int:
        return self.start + len(self.mark)


def find_mark(text: str, marks: Sequence[str]) -> FoundMark | None:
    """The mark that begins first; of two that begin together, the longer."""
    found = [FoundMark(start, mark) for mark in marks if (start := text.find(mark)) >= 0]
    return min(found, key=lambda one: (one.start, -len(one.mark)), default=None)


def num_open(text: str, marks: Sequence[str]) -> int:
    """The length of the longest end of `text` with which a mark could begin."""
    longest = max((len(mark) for mark in marks), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0


def mark_ids(tokenizer: Tokenizer, marks: Iterable[str]) -> tuple[int, ...]:
    """The marks that are special tokens: a text shows them only if asked to (`SamplingParams.shown_ids`)."""
    ids = [tokenizer.token_id(mark) for mark in marks]
    return tuple(token_id for token_id in ids if token_id in tokenizer.special_ids and token_id is not None)
