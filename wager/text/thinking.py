"""The marks around a model's thinking as token ids, and whether a prompt ends inside it.

The texts come from a model card; here a tokenizer turns them into what the engine counts by and forces. It
knows no budgets. The offline face, the command line and the server ask it.
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
    """What the model itself closes with."""
    close_ids: tuple[int, ...]
    """What is forced."""

    def limit(self, budget: int | None, *, starts_open: bool) -> ThinkingLimit:
        """A request's limit with these marks."""
        return ThinkingLimit(budget, self.open_ids, self.close_ids, starts_open, self.natural_ids)


def thinking_marks(
    tokenizer: Tokenizer, texts: tuple[str, str, str], *, known_only: bool = False
) -> ThinkingMarks | None:
    """The ids of (open, close, terminator); None where one of them is nothing to this tokenizer.

    `known_only`: only where open and close are tokens of its own, for marks that are nothing but a guess.
    Raises RequestError where the terminator does not close: it has to contain what the model closes with.
    """
    opening, closing, terminator = texts
    if known_only and (tokenizer.token_id(opening) is None or tokenizer.token_id(closing) is None):
        return None
    marks = ThinkingMarks(
        *(tuple(tokenizer.encode(text, add_special=False)) for text in (opening, closing, terminator))
    )
    if not all(marks):
        return None
    if last_place(marks.natural_ids, marks.close_ids) is None:
        raise RequestError(f"{terminator!r} does not contain {closing!r}, which closes thinking", "thinking")
    return marks


def ends_inside(tokenizer: Tokenizer, prompt_ids: Sequence[int], marks: ThinkingMarks) -> bool:
    """Whether nothing but blanks stands behind the prompt's last open mark."""
    place = last_place(marks.open_ids, prompt_ids)
    if place is None:
        return False
    behind = prompt_ids[place + len(marks.open_ids) :]
    return not tokenizer.decode(behind, skip_special=False).strip()


def last_place(mark: Sequence[int], token_ids: Sequence[int]) -> int | None:
    """Where the mark begins for the last time."""
    size, wanted = len(mark), list(mark)
    for start in range(len(token_ids) - size, -1, -1):
        if list(token_ids[start : start + size]) == wanted:
            return start
    return None
