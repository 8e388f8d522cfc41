"""Which passes are timed at a calibration, in which order, and how often.

The usual cases come first: one row, then more, short contexts before long ones; so a sweep that is cut short
has what matters most. It goes run by run, so that an idle server can stop between two of them. Knows how to
spend time, not what for: calibrate.py keeps what it finds.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from wager.engine.pass_clock import Clocked, DraftCase, PassCase, PassClock
from wager.policy import DraftTime, PassTime
from wager.policy.cost import MAX_TOKENS
from wager.policy.reach import options

log = logging.getLogger("wager.engine")

ROWS = (1, 4, 16, 64)
_REPEATS = 5  # timed runs of a case, behind one that is not
_RESTLESS = 1.25  # a slow run by the quickest of the same case, beyond which nothing is believed
_FALL = 1.5  # a pass by one with more tokens, likewise
_DRAFT_CONTEXT = 256
_APART = 1.9  # by this factor sizes are apart where not every one of them is worth a run


class Bounds(NamedTuple):
    """What a sweep may cover and spend."""

    max_rows: int
    max_context: int
    """Tokens of a row in all."""
    max_nodes: int
    """Guesses for one row, and for all rows together."""
    max_batch_nodes: int
    contexts: tuple[int, ...]
    buckets: tuple[int, ...] = ()
    """Sizes to which passes are padded; () where they are not."""
    most_pages: int = 1 << 60
    longest_ms: float = float("inf")
    """A run beyond which nothing larger of its shape is tried."""
    budget_s: float = float("inf")


class Sweep:
    """The runs of one calibration; iterating makes them, one at a time."""

    def __init__(self, clock: PassClock, drafters: Sequence[str], bounds: Bounds) -> None:
        self.passes: list[PassTime] = []
        self.drafts: list[DraftTime] = []
        self.spent_s = 0.0
        self._unrest: list[float] = []
        self._slow_drafters: set[str] = set()
        self._clock, self._drafters, self._bounds = clock, drafters, bounds

    @property
    def is_restless(self) -> bool:
        """Whether times contradict each other, since the machine had more to do than these runs: equal ones
        took times that differ, or larger passes much shorter ones.
        """
        falls = any(
            one[1:3] == other[1:3] and one.time_ms > _FALL * other.time_ms
            for one, other in pairwise(self.passes)
        )
        return falls or (bool(self._unrest) and statistics.median(self._unrest) > _RESTLESS)

    def __iter__(self) -> Iterator[None]:
        bounds, shapes = self._bounds, pass_shapes(self._bounds)
        for done, (context_len, rows) in enumerate(shapes):
            log.info("calibrating: %d rows, context %d (%d of %d)", rows, context_len, done + 1, len(shapes))
            every = rows == 1 and context_len == bounds.contexts[0]
            yield from self._pass_runs(rows, context_len, pass_sizes(rows, bounds, every=every))
            if done == 0:
                yield from self._all_drafts(1)
        for rows in row_counts(bounds)[1:]:
            yield from self._all_drafts(rows)

    def _pass_runs(self, rows: int, context_len: int, sizes: Sequence[int]) -> Iterator[None]:
        """One shape, its sizes from below."""
        for size in sizes:
            case = PassCase(size, rows, context_len)
            if not self._has_room(rows, context_len + max(case.row_tokens)):
                return
            taken: list[Clocked] = []
            yield from self._repeated(partial(self._clock.time_pass, case), taken)
            if len(taken) > 1:
                self.passes.append(PassTime(size, rows, context_len, self._time_ms(taken)))
            if not taken or taken[-1].time_ms > self._bounds.longest_ms:
                return

    def _all_drafts(self, rows: int) -> Iterator[None]:
        for drafter in self._drafters:
            if drafter not in self._slow_drafters:
                yield from self._draft_runs(drafter, rows)

    def _draft_runs(self, drafter: str, rows: int) -> Iterator[None]:
        """A whole draft, and the shorter ones that a policy may ask for."""
        depths = [0]
        for depth in depths:
            case = DraftCase(drafter, rows, depth, min(_DRAFT_CONTEXT, self._bounds.max_context // 2))
            if not self._has_room(rows, self._clock.draft_len(case)):
                return
            taken: list[Clocked] = []
            yield from self._repeated(partial(self._clock.time_draft, case), taken)
            if len(taken) < 2:
                return
            self.drafts.append(DraftTime(drafter, rows, depth, self._time_ms(taken)))
            if depth == 0:
                depths += options(taken[0].depth)
            if taken[-1].time_ms > self._bounds.longest_ms:
                self._slow_drafters.add(drafter)

    def _repeated(self, run: Callable[[], Clocked | None], taken: list[Clocked]) -> Iterator[None]:
        """Run a case a few times; its times go to `taken`, the first of them a cold one."""
        for _ in range(1 + _REPEATS):
            if self.spent_s > self._bounds.budget_s:
                return
            began = time.perf_counter()
            found = run()
            self.spent_s += time.perf_counter() - began
            if found is None:
                return
            taken.append(found)
            yield
            if found.time_ms > self._bounds.longest_ms and len(taken) > 1:
                return

    def _time_ms(self, taken: Sequence[Clocked]) -> float:
        """The median of the runs behind the cold one."""
        times = sorted(one.time_ms for one in taken[1:])
        self._unrest.append(times[(3 * len(times)) // 4] / times[0])
        return times[(len(times) - 1) // 2]

    def _has_room(self, rows: int, length: int) -> bool:
        if length > self._bounds.max_context or not self._clock.has_room(rows, length):
            return False
        return self._clock.num_pages(rows, length) <= self._bounds.most_pages


def row_counts(bounds: Bounds) -> list[int]:
    return [rows for rows in ROWS if rows <= bounds.max_rows]


def pass_shapes(bounds: Bounds) -> list[tuple[int, int]]:
    """(context, rows): all rows with a short context, then with longer ones."""
    return [(context_len, rows) for context_len in bounds.contexts for rows in row_counts(bounds)]


def pass_sizes(rows: int, bounds: Bounds, *, every: bool = True) -> list[int]:
    """Tokens in passes of so many rows, from plain decoding to the largest bet: the engine's buckets where it
    has any, else powers of two. Not `every` one of them where they lie close.
    """
    most = min(rows * (bounds.max_nodes + 1), bounds.max_batch_nodes + rows, MAX_TOKENS)
    steps = sorted(bounds.buckets) or [1 << n for n in range(MAX_TOKENS.bit_length())]
    sizes = [size for size in steps if rows <= size <= MAX_TOKENS]
    sizes = [size for size in sizes if size <= most] + [size for size in sizes if size > most][:1]
    if not bounds.buckets:
        sizes = sorted({rows, *[size for size in sizes if size <= most]})
    kept = sizes[:1]
    for size in sizes[1:]:
        if every or size >= _APART * kept[-1]:
            kept.append(size)
    return kept
