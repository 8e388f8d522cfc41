"""Guesses copied from the sequence itself: find where its tail stood before, propose what followed there.

The longest tail that matches wins, then its most recent place. Each request's tokens are kept as an array,
which grows with the sequence and needs neither pages nor features: a request that comes back after preemption
is read anew. There are no probabilities; where no tail of `min_match` tokens stood before, there is no
proposal.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wager.draft.base import DraftRow, HostDrafter, Proposal
from wager.errors import ConfigError
from wager.kvcache.pool import PageIds
from wager.nn.noise import NoiseSource

_LONG = "/long"  # the grade of copies behind a tail as long as any that is looked for


class LookupDrafter(HostDrafter):
    """Copies from prompt and output by suffix match."""

    name = "lookup"
    feature_layers: tuple[int, ...] = ()
    uses_noise = False

    def __init__(self, min_match: int = 2, max_match: int = 5, depth: int = 16) -> None:
        """Tails of `max_match` down to `min_match` tokens are looked for; at most `depth` tokens proposed."""
        if not 1 <= min_match <= max_match:
            raise ConfigError("min_match", min_match, f"1 to max_match = {max_match}")
        if depth < 1:
            raise ConfigError("depth", depth, "at least 1")
        self.min_match, self.max_match, self.depth = min_match, max_match, depth
        self._indexes: dict[Hashable, SuffixIndex] = {}

    def can_draft(self, row: DraftRow) -> bool:
        return self._index(row).has_stood(row.tokens)

    def grade(self, row: DraftRow) -> str:
        """Short tails stand anywhere; where a long one did, what followed there mostly follows here."""
        match = self._index(row).find(row.tokens)
        return _LONG if match is not None and match.length == self.max_match else ""

    def draft(self, rows: Sequence[DraftRow], noise: NoiseSource) -> list[Proposal | None]:
        return [self._propose(row) for row in rows]

    def _propose(self, row: DraftRow) -> Proposal | None:
        match = self._index(row).find(row.tokens)
        if match is None:
            return None
        depth = min(row.depth or self.depth, self.depth)
        guesses = copy_on(row.tokens, match.source, depth)
        return Proposal(np.array(guesses, np.int64)[:, None], None)

    def _index(self, row: DraftRow) -> SuffixIndex:
        index = self._indexes.get(row.request_id)
        if index is None or not index.follows(row.tokens):
            index = SuffixIndex(self.min_match, self.max_match)
            self._indexes[row.request_id] = index
        return index

    def settle(self, request_id: Hashable, pages: PageIds, num_tokens: int) -> bool:
        return True

    def adopt(self, request_id: Hashable, num_tokens: int) -> None:
        self._indexes.pop(request_id, None)

    def relocate(self, source: PageIds, target: PageIds) -> None:
        """Nothing is kept in pages."""

    def forget(self, request_id: Hashable) -> None:
        self._indexes.pop(request_id, None)

    def describe(self) -> dict[str, object]:
        return {
            "drafter": self.name,
            "depth": self.depth,
            "min_match": self.min_match,
            "max_match": self.max_match,
        }


class Match(NamedTuple):
    """Where to copy from, and how long the tail is that stood in front of it."""

    source: int
    length: int


class SuffixIndex:
    """One growing sequence as an array, searched anew for its own tail.

    A table of every run would answer sooner, but must be kept up to date for every token of every prompt,
    and most are never asked for.
    """

    def __init__(self, min_match: int, max_match: int) -> None:
        self._min_match, self._max_match = min_match, max_match
        self._tokens = np.empty(64, np.int64)
        self._num_known = 0
        self._asked = (-1, -1)
        self._ends: npt.NDArray[np.int64] | None = None
        """Where the shortest tail that counts stood before; None where it is still to be found."""
        self._match: Match | None = None

    def follows(self, tokens: Sequence[int]) -> bool:
        """Whether `tokens` can be what was known and more; told by the length and the last run."""
        count = self._num_known
        if count > len(tokens):
            return False
        first = max(0, count - self._max_match)
        return self._tokens[first:count].tolist() == list(tokens[first:count])

    def has_stood(self, tokens: Sequence[int]) -> bool:
        """Whether there is anything to copy; asking again about the same tokens costs nothing."""
        asked = (len(tokens), tokens[-1] if len(tokens) else -1)
        if asked != self._asked or self._ends is None:
            self._grow(tokens)
            self._asked, self._ends, self._match = asked, self._search(), None
        return len(self._ends) > 0

    def find(self, tokens: Sequence[int]) -> Match | None:
        """Where the longest tail stood before, the last time; None where none did."""
        if not self.has_stood(tokens):
            return None
        if self._match is None:
            self._match = self._longest()
        return self._match

    def _longest(self) -> Match:
        """Of the places of the shortest tail those where the tail before it stood as well, as far as any."""
        assert self._ends is not None
        known, ends, length = self._tokens[: self._num_known], self._ends, self._min_match
        tail = known[-self._max_match :][::-1].tolist()
        while length < len(tail):
            longer = ends[ends >= length]
            longer = longer[known[longer - length] == tail[length]]
            if not len(longer):
                break
            ends, length = longer, length + 1
        return Match(int(ends[-1]) + 1, length)

    def _grow(self, tokens: Sequence[int]) -> None:
        count = len(tokens)
        if count > len(self._tokens):
            larger = np.empty(2 * count, np.int64)
            larger[: self._num_known] = self._tokens[: self._num_known]
            self._tokens = larger
        self._tokens[self._num_known : count] = tokens[self._num_known :]
        self._num_known = count

    def _search(self) -> npt.NDArray[np.int64]:
        """The last positions of runs that are as the shortest tail; itself, at the end, is left out."""
        length, count = self._min_match, self._num_known
        if count < length:
            return _NOWHERE
        known = self._tokens[:count]
        found = known[length - 1 : -1] == known[-1]
        for back in range(1, length):
            found &= known[length - 1 - back : -1 - back] == known[-1 - back]
        return np.flatnonzero(found) + (length - 1)


_NOWHERE = np.empty(0, np.int64)


def copy_on(tokens: Sequence[int], source: int, count: int) -> list[int]:
    """`count` tokens from `source` on; past the end of the sequence the copy goes on in the copied ones."""
    period = len(tokens) - source
    piece = [int(token) for token in tokens[source : source + min(count, period)]]
    return [piece[index % period] for index in range(count)]
