"""The sizes of passes that are captured as graphs: a pass is padded to the next bucket of tokens and of rows.

Called by graphs.py; knows no kernels and no tables.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

TOKEN_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512)
ROW_BUCKETS = (1, 4, 16, 64, 256)


@dataclass(frozen=True)
class GraphLimits:
    """The largest pass: rows, tokens in all, tokens of one row's text."""

    max_rows: int
    max_tokens: int
    max_context: int


class Size(NamedTuple):
    """The bucket of a pass; one row's over a long context has a bucket of its own."""

    tokens: int
    rows: int
    is_long: bool = False


class Buckets:
    """Those below the limits."""

    def __init__(self, limits: GraphLimits, long_context: int) -> None:
        """long_context: tokens from which on a single row's context is long."""
        self._limits, self._long_context = limits, long_context
        self.tokens = tuple(size for size in TOKEN_BUCKETS if size <= limits.max_tokens)
        self.most = self.tokens[-1]
        """Tokens of the largest."""
        self.beyond = Size(limits.max_tokens, limits.max_rows)
        """What every pass without a bucket goes by."""

    def all(self) -> list[Size]:
        """Every bucket a pass of decoding rows can fall into, the smallest first."""
        rows = [count for count in ROW_BUCKETS if count < self._limits.max_rows]
        rows.append(self._limits.max_rows)
        sizes, fewest = [], 1
        for count in rows:
            sizes += [Size(tokens, count) for tokens in self.tokens if tokens >= fewest]
            fewest = count + 1
        if self._limits.max_context >= self._long_context:
            sizes += [Size(tokens, 1, True) for tokens in self.tokens]
        return sizes

    def of(self, num_tokens: int, num_rows: int, longest: int) -> Size | None:
        """The bucket of a pass over contexts of at most `longest` tokens; None where it is beyond all."""
        if num_tokens > self.most:
            return None
        tokens = self.tokens[bisect_left(self.tokens, num_tokens)]
        most, at = self._limits.max_rows, bisect_left(ROW_BUCKETS, num_rows)
        rows = min(ROW_BUCKETS[at], most) if at < len(ROW_BUCKETS) else most
        return Size(tokens, rows, num_rows == 1 and longest >= self._long_context)
