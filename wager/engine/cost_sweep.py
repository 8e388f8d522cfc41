"""Which passes a calibration times, in which order, and how often.

Common cases come first: one row before several, short contexts before long ones. A sweep that is cut short
has therefore measured what matters most. It makes one run at a time, so that an idle server can stop between
two runs. calibrate.py starts sweeps and uses their times.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from wager.costs import MAX_TOKENS, DraftTime, PassTime
from wager.engine.pass_clock import Clocked, DraftCase, PassCase, PassClock
from wager.policy.yields import options

log = logging.getLogger("wager.engine")

ROWS = (1, 4, 16, 64)
"""Numbers of rows that are measured; the cost model interpolates between them."""
REPEATS = 5
"""Timed runs of a case; one run before them is not timed because it is cold."""
MAX_SPREAD = 1.25
"""Slow run over fastest run of the same case; above it the machine was too busy to believe the times."""
MAX_FALL = 1.5
"""Time of a pass over that of a larger one; above it the machine was too busy to believe the times."""
DRAFT_CONTEXT = 256
"""Cached tokens of each row in a timed draft."""
SIZE_RATIO = 1.9
"""Least ratio of neighbouring pass sizes in shapes for which not every size is measured."""


class Bounds(NamedTuple):
    """Which cases a sweep covers, and the time and memory it may use."""

    max_rows: int
    max_context: int
    """The most tokens of one row."""
    max_nodes: int
    """The most guesses for one row."""
    max_batch_nodes: int
    """The most guesses for all rows together."""
    contexts: tuple[int, ...]
    """The context lengths to measure."""
    buckets: tuple[int, ...] = ()
    """The sizes to which passes are padded; () if they are not padded."""
    most_pages: int = 1 << 60
    """The most pages of one run."""
    longest_ms: float = float("inf")
    """If a run takes longer, no larger one of its shape is made."""
    budget_s: float = float("inf")
    """The time for all runs together."""


class Sweep:
    """The runs of one calibration; each step of its iterator makes one run."""

    def __init__(self, clock: PassClock, drafters: Sequence[str], bounds: Bounds) -> None:
        self.passes: list[PassTime] = []
        self.drafts: list[DraftTime] = []
        self.spent_s = 0.0
        self._spreads: list[float] = []
        self._slow_drafters: set[str] = set()
        self._clock, self._drafters, self._bounds = clock, drafters, bounds

    @property
    def is_unsteady(self) -> bool:
        """Whether the times contradict each other because the machine was busy.

        Either equal runs took very different times, or a larger pass took much less time than a smaller one.
        """
        falls = any(
            one[1:3] == other[1:3] and one.time_ms > MAX_FALL * other.time_ms
            for one, other in pairwise(self.passes)
        )
        return falls or (bool(self._spreads) and statistics.median(self._spreads) > MAX_SPREAD)

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
        """Measures the passes of one shape, the smallest first."""
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
        """Measures a whole draft and the shorter drafts that a policy may ask for."""
        depths = [0]
        for depth in depths:
            case = DraftCase(drafter, rows, depth, min(DRAFT_CONTEXT, self._bounds.max_context // 2))
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
        """Runs a case a few times and appends the times to `taken`; the first one is cold."""
        for _ in range(1 + REPEATS):
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
        """Returns the median of the runs behind the cold one."""
        times = sorted(one.time_ms for one in taken[1:])
        self._spreads.append(times[(3 * len(times)) // 4] / times[0])
        return times[(len(times) - 1) // 2]

    def _has_room(self, rows: int, length: int) -> bool:
        if length > self._bounds.max_context or not self._clock.has_room(rows, length):
            return False
        return self._clock.num_pages(rows, length) <= self._bounds.most_pages


def row_counts(bounds: Bounds) -> list[int]:
    """Returns the numbers of rows to measure."""
    return [rows for rows in ROWS if rows <= bounds.max_rows]


def pass_shapes(bounds: Bounds) -> list[tuple[int, int]]:
    """Returns (context length, rows): all numbers of rows with a short context, then with longer ones."""
    return [(context_len, rows) for context_len in bounds.contexts for rows in row_counts(bounds)]


def pass_sizes(rows: int, bounds: Bounds, *, every: bool = True) -> list[int]:
    """Returns the sizes of passes of so many rows, in tokens, from plain decoding to the largest bet.

    They are the engine's buckets if it has any, otherwise powers of two. Unless `every` size is wanted, sizes
    that are close together are left out.
    """
    most = min(rows * (bounds.max_nodes + 1), bounds.max_batch_nodes + rows, MAX_TOKENS)
    steps = sorted(bounds.buckets) or [1 << n for n in range(MAX_TOKENS.bit_length())]
    sizes = [size for size in steps if rows <= size <= MAX_TOKENS]
    sizes = [size for size in sizes if size <= most] + [size for size in sizes if size > most][:1]
    if not bounds.buckets:
        sizes = sorted({rows, *[size for size in sizes if size <= most]})
    kept = sizes[:1]
    for size in sizes[1:]:
        if every or size >= SIZE_RATIO * kept[-1]:
            kept.append(size)
    return kept
