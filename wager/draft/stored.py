"""What a chain drafter's pool holds: tokens per request, and the text behind every page.

A page's key stands for all tokens up to its end, so a request that starts on pages of an earlier one finds
out by itself how much of its beginning is already there, whoever wrote it and whoever owned the pages since.
Keys are kept only for pages full of certain tokens; writing into a page takes its key away first. Knows no
network; used by `chain.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wager.kvcache.pool import PageIds


@dataclass
class Stored:
    """What lies in the pool for one request: `certain` tokens of it, then guesses; the keys of full pages."""

    certain: int = 0
    guesses: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)

    def judge(self, tokens: Sequence[int]) -> None:
        """Count the guesses that came true as certain and drop the others.

        One token is always left to be fed again: its scores are where the next guess comes from.
        """
        for guess in self.guesses:
            if self.certain >= len(tokens) or tokens[self.certain] != guess:
                break
            self.certain += 1
        self.certain = min(self.certain, len(tokens) - 1)
        self.guesses = []


class PageTexts:
    """The keys of all pages."""

    def __init__(self, page_size: int) -> None:
        self._size = page_size
        self._keys: dict[int, int] = {}

    def find(self, tokens: Sequence[int], pages: PageIds) -> Stored:
        """What these pages already hold of a text."""
        stored = Stored()
        for index in range(min(len(pages), len(tokens) // self._size)):
            key = self._key(stored, tokens, index)
            if self._keys.get(int(pages[index])) != key:
                break
            stored.keys.append(key)
        stored.certain = len(stored.keys) * self._size
        return stored

    def overwrite(self, pages: PageIds, start: int, stop: int) -> None:
        """The tokens start..stop-1 of a row are about to be written."""
        for page in pages[start // self._size : -(-stop // self._size)]:
            self._keys.pop(int(page), None)

    def copy(self, source: PageIds, target: PageIds) -> None:
        """Pages were copied, and their texts with them."""
        for old, new in zip(source, target, strict=True):
            self._keys.pop(int(new), None)
            if int(old) in self._keys:
                self._keys[int(new)] = self._keys[int(old)]

    def record(self, stored: Stored, tokens: Sequence[int], pages: PageIds, start: int) -> None:
        """Tokens of this text from `start` on have been written, and the first `stored.certain` stand."""
        del stored.keys[start // self._size :]
        for index in range(len(stored.keys), stored.certain // self._size):
            stored.keys.append(self._key(stored, tokens, index))
            self._keys[int(pages[index])] = stored.keys[index]

    def _key(self, stored: Stored, tokens: Sequence[int], index: int) -> int:
        before = stored.keys[index - 1] if index else 0
        return hash((before, tuple(tokens[index * self._size : (index + 1) * self._size])))
