"""What a chain drafter's pool holds: the stored tokens of each request, and a key for the text of every page.

A page's key is a hash of all tokens up to the page's end. A request that starts on pages of an earlier one
compares keys and so finds how much of its text is already stored, whoever wrote it. Only pages that are full
of certain tokens have a key; it is removed before the page is written to. Knows no network; used by chain.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wager.kvcache.pool import PageIds


@dataclass
class Stored:
    """What the pool holds of one request."""

    certain: int = 0
    """The number of stored tokens that are known to be the request's."""
    guesses: list[int] = field(default_factory=list)
    """The guesses that are stored behind them."""
    keys: list[int] = field(default_factory=list)
    """The keys of the pages that are full of certain tokens."""

    def judge(self, tokens: Sequence[int]) -> None:
        """Counts the accepted guesses as certain and drops the others.

        The last token always stays uncertain, because a pass over it gives the scores of the next guess.
        """
        for guess in self.guesses:
            if self.certain >= len(tokens) or tokens[self.certain] != guess:
                break
            self.certain += 1
        self.certain = min(self.certain, len(tokens) - 1)
        self.guesses = []


class PageTexts:
    """The key of every page that has one."""

    def __init__(self, page_size: int) -> None:
        self._size = page_size
        self._keys: dict[int, int] = {}

    def find(self, tokens: Sequence[int], pages: PageIds) -> Stored:
        """Returns what these pages already hold of a text."""
        stored = Stored()
        for index in range(min(len(pages), len(tokens) // self._size)):
            key = self._key(stored, tokens, index)
            if self._keys.get(int(pages[index])) != key:
                break
            stored.keys.append(key)
        stored.certain = len(stored.keys) * self._size
        return stored

    def overwrite(self, pages: PageIds, start: int, stop: int) -> None:
        """Removes the keys of the pages to which tokens start..stop-1 of a row are about to be written."""
        for page in pages[start // self._size : -(-stop // self._size)]:
            self._keys.pop(int(page), None)

    def copy(self, source: PageIds, target: PageIds) -> None:
        """The contents of the source pages were copied to the target pages."""
        for old, new in zip(source, target, strict=True):
            self._keys.pop(int(new), None)
            if int(old) in self._keys:
                self._keys[int(new)] = self._keys[int(old)]

    def record(self, stored: Stored, tokens: Sequence[int], pages: PageIds, start: int) -> None:
        """Sets keys: the text was written from `start` on, and its first `certain` tokens are certain."""
        del stored.keys[start // self._size :]
        for index in range(len(stored.keys), stored.certain // self._size):
            stored.keys.append(self._key(stored, tokens, index))
            self._keys[int(pages[index])] = stored.keys[index]

    def _key(self, stored: Stored, tokens: Sequence[int], index: int) -> int:
        before = stored.keys[index - 1] if index else 0
        return hash((before, tuple(tokens[index * self._size : (index + 1) * self._size])))
