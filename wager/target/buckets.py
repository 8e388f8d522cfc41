"""The sizes of passes that are captured as graphs: a pass is padded to the next bucket of tokens and of rows.

Passes of decoding rows score all their tokens. Larger passes, which read prompts, score only their judged
tokens: they have buckets of their own. The sizes depend on the limits alone, never on what a run asks for.
Called by graphs.py; knows no kernels and no tables.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

TOKEN_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512)
ROW_BUCKETS = (1, 4, 16, 64, 256)
PREFILL_BUCKETS = (192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Tokens of passes that read prompts; larger ones keep a device busy for longer than their launches take."""
ALL_SCORED = 128
"""Tokens up to which scoring all of them takes no longer than reading the head's weights."""


@dataclass(frozen=True)
class GraphLimits:
    """The limits of a pass.

    `max_tokens` counts pending tokens and nodes, `max_step_tokens` pending tokens alone (0: as many), and
    `max_context` the tokens of one row's text.
    """

    max_rows: int
    max_tokens: int
    max_context: int
    max_step_tokens: int = 0


class Size(NamedTuple):
    """The bucket of a pass; a single row with a long context has a bucket of its own."""

    tokens: int
    rows: int
    is_long: bool = False
    num_judged: int = 0
    """Most judged tokens of a pass that reads prompts; 0: all tokens are scored."""


class Buckets:
    """The sizes below the limits."""

    def __init__(self, limits: GraphLimits, long_context: int) -> None:
        """`long_context`: the number of tokens from which on a single row's context is long."""
        self._limits, self._long_context = limits, long_context
        self.tokens = tuple(size for size in TOKEN_BUCKETS if size <= limits.max_tokens)
        self.most = self.tokens[-1]
        """Most tokens of a pass that scores all of them."""
        self.beyond = Size(limits.max_tokens, limits.max_rows)
        """The size by which every pass without a bucket is planned."""
        largest = min(limits.max_tokens, limits.max_step_tokens or limits.max_tokens)
        self.prefill = [*PREFILL_BUCKETS[: bisect_left(PREFILL_BUCKETS, largest) + 1]]
        """Tokens of the passes that read prompts: up to the first bucket that holds the largest."""

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

    def all_prefill(self) -> list[Size]:
        """Every bucket of passes that read prompts, for a single row and for any number of rows."""
        rows = dict.fromkeys((1, self._limits.max_rows))
        return [
            Size(tokens, count, False, min(count, self.most)) for count in rows for tokens in self.prefill
        ]

    def prefill_of(self, num_tokens: int, num_rows: int, longest: int, num_judged: int) -> Size | None:
        """The bucket of a pass that judges few of its tokens; None where it has none.

        A small pass has none, because scoring all its tokens takes no longer; nor has a single row with a
        long context.
        """
        is_long = num_rows == 1 and longest >= self._long_context
        rows = 1 if num_rows == 1 else self._limits.max_rows
        most = min(rows, self.most)
        if is_long or num_tokens <= ALL_SCORED or num_judged > most or num_tokens > self.prefill[-1]:
            return None
        tokens = self.prefill[bisect_left(self.prefill, num_tokens)]
        if num_tokens <= self.most < tokens:
            return None  # the tables of small passes do not hold this bucket
        return Size(tokens, rows, False, most)

    def of(self, num_tokens: int, num_rows: int, longest: int) -> Size | None:
        """The bucket of a pass over contexts of at most `longest` tokens; None where it is beyond all."""
        if num_tokens > self.most:
            return None
        tokens = self.tokens[bisect_left(self.tokens, num_tokens)]
        most, at = self._limits.max_rows, bisect_left(ROW_BUCKETS, num_rows)
        rows = min(ROW_BUCKETS[at], most) if at < len(ROW_BUCKETS) else most
        return Size(tokens, rows, num_rows == 1 and longest >= self._long_context)
