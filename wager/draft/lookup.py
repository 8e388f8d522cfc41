"""Guesses copied from the sequence itself: find where its tail stood before, propose what followed there.

The longest tail that matches wins, then its most recent place; the longer it is, the more is proposed. Of
each request it is kept where every run of `min_match` tokens stood, which grows with the sequence and needs
neither pages nor features: a request that comes back after preemption is read anew. There are no
probabilities; where no tail of `min_match` tokens stood before, there is no proposal.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from wager.draft.base import DraftRow, HostDrafter, Proposal
from wager.errors import ConfigError
from wager.kvcache.pool import PageIds
from wager.nn.noise import NoiseSource

_PLACES = 100  # of one run that are looked at
_REACH = 3  # guesses for every token of the tail that stood before: where few did, another follows soon
_GRADES = ((16, "/run"), (5, "/long"))  # of copies, by the tokens of the tail that stood before


class LookupDrafter(HostDrafter):
    """Copies from prompt and output by suffix match."""

    name = "lookup"
    feature_layers: tuple[int, ...] = ()
    uses_noise = False
    is_instant = True

    def __init__(self, min_match: int = 2, max_match: int = 16, depth: int = 32) -> None:
        """Tails of `max_match` down to `min_match` tokens are looked for, `depth` tokens proposed at most."""
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
        length = 0 if match is None else match.length
        return next((grade for least, grade in _GRADES if length >= least), "")

    def draft(self, rows: Sequence[DraftRow], noise: NoiseSource) -> list[Proposal | None]:
        return [self._propose(row) for row in rows]

    def _propose(self, row: DraftRow) -> Proposal | None:
        match = self._index(row).find(row.tokens)
        if match is None:
            return None
        guesses = copy_on(row.tokens, match.source, min(row.depth or self.depth, self._depth(match.length)))
        return Proposal(np.array(guesses, np.int64)[:, None], None)

    def goes_on(self, row: DraftRow, num_stood: int) -> Sequence[int] | None:
        """From the same place on; where the text has stood again meanwhile, the same mostly follows there."""
        match = self._index(row).find(row.tokens)
        if match is None:
            return None
        count = 1 + self._depth(match.length + num_stood + 1)
        return copy_on(row.tokens, match.source, num_stood + count)[num_stood:]

    def _depth(self, length: int) -> int:
        """Guesses behind a tail of so many tokens that stood before."""
        return min(self.depth, _REACH * length)

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
    """Where the runs of one growing sequence stood: the latest place of each, and from there the one before.

    A step adds a few tokens and asks about one run: a handful of look-ups, while a device may be waiting.
    They are paid for once, a fifth of a microsecond for every token of a prompt.
    """

    def __init__(self, min_match: int, max_match: int) -> None:
        self._min_match, self._max_match = min_match, max_match
        self._latest: dict[tuple[int, ...], int] = {}
        """The end of each run's latest place,"""
        self._before: list[int] = []
        """and of every place the end of the run's place before; -1 where there is none."""
        self._tail: list[int] = []

    def follows(self, tokens: Sequence[int]) -> bool:
        """Whether `tokens` can be what was known and more; told by the length and the last run."""
        count = len(self._before)
        return count <= len(tokens) and list(tokens[count - len(self._tail) : count]) == self._tail

    def has_stood(self, tokens: Sequence[int]) -> bool:
        """Whether there is anything to copy."""
        if len(tokens) > len(self._before):
            self._grow(tokens)
        return bool(self._before) and self._before[-1] >= 0

    def find(self, tokens: Sequence[int]) -> Match | None:
        """Where the longest tail stood before, the last time; None where none did.

        Of places where the shortest stood, the latest hundred are looked at.
        """
        if not self.has_stood(tokens):
            return None
        shortest, longest, last = self._min_match, self._max_match, len(tokens) - 1
        source, best, end = 0, 0, self._before[-1]
        for _ in range(_PLACES):
            if end < 0 or best == longest:
                break
            length, most = shortest, min(longest, end + 1)
            while length < most and tokens[end - length] == tokens[last - length]:
                length += 1
            if length > best:
                source, best = end + 1, length
            end = self._before[end]
        return Match(source, best)

    def _grow(self, tokens: Sequence[int]) -> None:
        shortest, first = self._min_match, len(self._before)
        # Of the first places, which end no whole run, nothing is known; those of the rest come one by one.
        start = max(0, first - shortest + 1)
        fresh = list(tokens[start:])
        latest, before = self._latest, self._before
        before += [-1] * (min(len(tokens), shortest - 1) - first)
        for end, run in enumerate(
            zip(*[fresh[place:] for place in range(shortest)], strict=False), len(before)
        ):
            before.append(latest.get(run, -1))
            latest[run] = end
        self._tail = list(tokens[-self._max_match :])


def copy_on(tokens: Sequence[int], source: int, count: int) -> list[int]:
    """`count` tokens from `source` on; past the end of the sequence the copy goes on in the copied ones."""
    period = len(tokens) - source
    piece = [int(token) for token in tokens[source : source + min(count, period)]]
    return [piece[index % period] for index in range(count)]
