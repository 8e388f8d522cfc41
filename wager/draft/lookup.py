"""Guesses copied from the sequence itself: finds where its tail stood before and proposes what followed
there.

The longest tail that matches wins, and among equals the most recent place. A longer tail gets more guesses.
For each request a `SuffixIndex` records where every run of `min_match` tokens stood; it grows with the
sequence and needs neither pages nor features. The guesses have no probabilities.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from wager.draft.base import Drafter, DraftRow, PoolShape, Proposal, TargetInterface
from wager.draft.kind import DraftSource
from wager.errors import ConfigError
from wager.nn.noise import NoiseSource

MAX_PLACES = 100
"""Earlier places of one run that are compared; older ones hardly ever match longer tails."""
GUESSES_PER_MATCH = 3
"""Guesses for every token of the matched tail: a text that copied that much usually copies on."""
GRADES = ((16, "/run"), (5, "/long"))
"""Shortest matched tail of each grade; copies behind longer tails are accepted far more often."""


class LookupDrafter(Drafter):
    """Copies from prompt and output by suffix match."""

    name = "lookup"
    runs_no_network = True

    def __init__(self, min_match: int = 2, max_match: int = 16, depth: int = 32) -> None:
        """Looks for tails of `max_match` down to `min_match` tokens and proposes up to `depth` tokens."""
        if not 1 <= min_match <= max_match:
            raise ConfigError("min_match", min_match, f"1 to max_match = {max_match}")
        if depth < 1:
            raise ConfigError("depth", depth, "at least 1")
        self.min_match, self.max_match, self.depth = min_match, max_match, depth
        self._indexes: dict[Hashable, SuffixIndex] = {}

    @staticmethod
    def make(target: TargetInterface, shape: PoolShape, source: DraftSource) -> LookupDrafter:
        """Builds it from the options of the source."""
        return LookupDrafter(**source.given("depth", "min_match", "max_match"))

    def can_propose(self, row: DraftRow) -> bool:
        return self._index(row).has_match(row.tokens)

    def propose(self, rows: Sequence[DraftRow], noise: NoiseSource) -> list[Proposal | None]:
        return [self._copy(row) for row in rows]

    def _copy(self, row: DraftRow) -> Proposal | None:
        match = self._index(row).find(row.tokens)
        if match is None:
            return None
        guesses = copy_on(row.tokens, match.source, min(row.depth or self.depth, self._depth(match.length)))
        return Proposal(np.array(guesses, np.int64)[:, None], None)

    def forget(self, request_id: Hashable) -> None:
        self._indexes.pop(request_id, None)

    def grade(self, row: DraftRow) -> str:
        """By the length of the matched tail: short tails match by chance."""
        match = self._index(row).find(row.tokens)
        length = 0 if match is None else match.length
        return next((grade for shortest, grade in GRADES if length >= shortest), "")

    def continuation(self, row: DraftRow, num_accepted: int) -> Sequence[int] | None:
        """Copies on from the same place, even where `propose` would find a more recent one by then."""
        match = self._index(row).find(row.tokens)
        if match is None:
            return None
        count = 1 + self._depth(match.length + num_accepted + 1)
        return copy_on(row.tokens, match.source, num_accepted + count)[num_accepted:]

    def better_match(self, row: DraftRow) -> int:
        """The shortest tail of the next better grade."""
        match = self._index(row).find(row.tokens)
        length = 0 if match is None else match.length
        return min([shortest for shortest, _ in GRADES if shortest > length], default=0)

    def describe(self) -> dict[str, object]:
        return {
            "drafter": self.name,
            "depth": self.depth,
            "min_match": self.min_match,
            "max_match": self.max_match,
        }

    def _depth(self, length: int) -> int:
        """The number of guesses behind a matched tail of this length."""
        return min(self.depth, GUESSES_PER_MATCH * length)

    def _index(self, row: DraftRow) -> SuffixIndex:
        index = self._indexes.get(row.request_id)
        if index is None or not index.continues(row.tokens):
            index = SuffixIndex(self.min_match, self.max_match)
            self._indexes[row.request_id] = index
        return index


class Match(NamedTuple):
    """An earlier place that looks like the end of the text."""

    source: int
    """The position from which to copy."""
    length: int
    """The number of tokens in front of it that equal the tail."""


class SuffixIndex:
    """Where the runs of one growing sequence stood: the latest place of each run, linked to the one before.

    A step adds a few tokens and asks about one run, which takes a handful of look-ups. Indexing a prompt
    takes about a fifth of a microsecond per token, once.
    """

    def __init__(self, min_match: int, max_match: int) -> None:
        self._min_match, self._max_match = min_match, max_match
        self._latest: dict[tuple[int, ...], int] = {}
        """The end of each run's latest place."""
        self._before: list[int] = []
        """For every position at which a run ends, the end of that run's place before; -1 if there is none."""
        self._tail: list[int] = []
        """The last tokens that were indexed."""

    def continues(self, tokens: Sequence[int]) -> bool:
        """Returns whether `tokens` can be the indexed text with more behind it, by length and tail."""
        count = len(self._before)
        return count <= len(tokens) and list(tokens[count - len(self._tail) : count]) == self._tail

    def has_match(self, tokens: Sequence[int]) -> bool:
        """Returns whether the shortest tail stood anywhere before."""
        if len(tokens) > len(self._before):
            self._grow(tokens)
        return bool(self._before) and self._before[-1] >= 0

    def find(self, tokens: Sequence[int]) -> Match | None:
        """Returns the most recent place of the longest matching tail, or None if no tail matches.

        Only the latest MAX_PLACES places of the shortest tail are compared.
        """
        if not self.has_match(tokens):
            return None
        shortest, longest, last = self._min_match, self._max_match, len(tokens) - 1
        source, best, end = 0, 0, self._before[-1]
        for _ in range(MAX_PLACES):
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
        # No run ends at the first positions, so they have no place before.
        start = max(0, first - shortest + 1)
        fresh = list(tokens[start:])
        latest, before = self._latest, self._before
        before += [-1] * (min(len(tokens), shortest - 1) - first)
        runs = zip(*[fresh[offset:] for offset in range(shortest)], strict=False)
        for end, run in enumerate(runs, len(before)):
            before.append(latest.get(run, -1))
            latest[run] = end
        self._tail = list(tokens[-self._max_match :])


def copy_on(tokens: Sequence[int], source: int, count: int) -> list[int]:
    """Copies `count` tokens from `source` on; past the end of the sequence it repeats what it has copied."""
    period = len(tokens) - source
    piece = [int(token) for token in tokens[source : source + min(count, period)]]
    return [piece[index % period] for index in range(count)]
