"""Guesses copied from the sequence itself: find where its tail stood before, propose what followed there.

The longest tail that matches wins, then its most recent place. Each request has an index from runs of tokens
to the last place they ended at, which grows with the sequence and needs neither pages nor features: a
request that comes back after preemption is indexed anew from its tokens. There are no probabilities; where no
tail of `min_match` tokens stood before, there is no proposal.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from wager.draft.base import DraftRow, KeptTokens, Proposal, Verified
from wager.errors import ConfigError
from wager.kvcache.pool import PageIds
from wager.nn.noise import NoiseSource


class LookupDrafter:
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
        return self._index(row).find(row.tokens) is not None

    def draft(self, rows: Sequence[DraftRow], noise: NoiseSource) -> list[Proposal | None]:
        return [self._propose(row) for row in rows]

    def _propose(self, row: DraftRow) -> Proposal | None:
        source = self._index(row).find(row.tokens)
        if source is None:
            return None
        depth = min(row.depth or self.depth, self.depth)
        guesses = copy_on(row.tokens, source, depth)
        return Proposal(np.array(guesses, np.int64)[:, None], None)

    def _index(self, row: DraftRow) -> SuffixIndex:
        index = self._indexes.get(row.request_id)
        if index is None or not index.follows(row.tokens):
            index = SuffixIndex(self.min_match, self.max_match)
            self._indexes[row.request_id] = index
        return index

    def start(self, rows: Sequence[DraftRow]) -> None:
        """Nothing to start: looking up takes no time worth hiding."""

    def follow(self, verified: Verified) -> bool:
        return False

    def confirm(self, request_id: Hashable, context_len: int, pending: int) -> None:
        """Nothing was begun."""

    def keep(self, kept: Sequence[KeptTokens]) -> None:
        """Nothing to keep: tokens are read from the rows that ask."""

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


class SuffixIndex:
    """Where every run of `min_match` to `max_match` tokens of one growing sequence ended last."""

    def __init__(self, min_match: int, max_match: int) -> None:
        self._lengths = range(min_match, max_match + 1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0
        self._tail: tuple[int, ...] = ()
        self._asked = (-1, -1)
        self._answer: int | None = None

    def follows(self, tokens: Sequence[int]) -> bool:
        """Whether `tokens` can be what was indexed and more; told by the length and the last run."""
        count = self._num_indexed
        if count > len(tokens) or self._asked[0] > len(tokens):
            return False
        return tuple(tokens[count - len(self._tail) : count]) == self._tail

    def find(self, tokens: Sequence[int]) -> int | None:
        """The position to copy from, or None; asking again about the same tokens costs nothing."""
        asked = (len(tokens), tokens[-1] if len(tokens) else -1)
        if asked != self._asked:
            # Runs that end at the last token are left out, so that the tail does not find itself.
            self._grow(tokens, len(tokens) - 1)
            self._asked, self._answer = asked, self._search(tokens)
        return self._answer

    def _grow(self, tokens: Sequence[int], stop: int) -> None:
        longest = self._lengths[-1]
        for end in range(self._num_indexed, stop):
            run = tuple(tokens[max(0, end + 1 - longest) : end + 1])
            for length in self._lengths:
                if length > len(run):
                    break
                self._ends[run[len(run) - length :]] = end
            self._tail = run
        self._num_indexed = max(self._num_indexed, stop)

    def _search(self, tokens: Sequence[int]) -> int | None:
        tail = tuple(tokens[-self._lengths[-1] :])
        for length in reversed(self._lengths):
            if length <= len(tail):
                end = self._ends.get(tail[len(tail) - length :])
                if end is not None:
                    return end + 1
        return None


def copy_on(tokens: Sequence[int], source: int, count: int) -> list[int]:
    """`count` tokens from `source` on; past the end of the sequence the copy goes on in the copied ones."""
    period = len(tokens) - source
    piece = [int(token) for token in tokens[source : source + min(count, period)]]
    return [piece[index % period] for index in range(count)]
