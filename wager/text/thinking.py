"""The marks around a model's thinking as token ids, and whether a prompt ends inside the thinking.

The texts come from a model card; a tokenizer converts them into the ids that the engine counts and forces.
This module knows no budgets. The offline interface, the command line and the server use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wager.errors import RequestError
from wager.records import ThinkingLimit
from wager.text.tokenizer import Tokenizer


class ThinkingMarks(NamedTuple):
    """Token ids of the marks."""

    open_ids: tuple[int, ...]
    natural_ids: tuple[int, ...]
    """The tokens with which the model itself closes its thinking."""
    close_ids: tuple[int, ...]
    """The tokens that are forced."""

    def limit(self, budget: int | None, *, starts_open: bool) -> ThinkingLimit:
        """Returns the limit of a request with these marks."""
        return ThinkingLimit(budget, self.open_ids, self.close_ids, starts_open, self.natural_ids)


def thinking_marks(
    tokenizer: Tokenizer, texts: tuple[str, str, str], *, known_only: bool = False
) -> ThinkingMarks | None:
    """Returns the ids of (open, close, terminator); None if one of them encodes to nothing.

    With `known_only`, open and close must be single tokens of this vocabulary; this is for marks that are a
    guess. Raises RequestError if the terminator does not contain the closing mark.
    """
    opening, closing, terminator = texts
    if known_only and (tokenizer.token_id(opening) is None or tokenizer.token_id(closing) is None):
        return None
    marks = ThinkingMarks(
        *(tuple(tokenizer.encode(text, add_special=False)) for text in (opening, closing, terminator))
    )
    if not all(marks):
        return None
    if last_index(marks.natural_ids, marks.close_ids) is None:
        raise RequestError(f"{terminator!r} does not contain {closing!r}, which closes thinking", "thinking")
    return marks


def ends_inside(tokenizer: Tokenizer, prompt_ids: Sequence[int], marks: ThinkingMarks) -> bool:
    """Whether only blanks follow the last opening mark of the prompt."""
    place = last_index(marks.open_ids, prompt_ids)
    if place is None:
        return False
    behind = prompt_ids[place + len(marks.open_ids) :]
    return not tokenizer.decode(behind, skip_special=False).strip()


def last_index(mark: Sequence[int], token_ids: Sequence[int]) -> int | None:
    """Returns the index of the last occurrence of the mark."""
    size, wanted = len(mark), list(mark)
    for start in range(len(token_ids) - size, -1, -1):
        if list(token_ids[start : start + size]) == wanted:
            return start
    return None
