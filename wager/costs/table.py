"""Times of passes of one shape by their size, learned online: `CostTable.table()[n]` is that of n tokens.

A table keeps robust means of log times by size over a prior that serves as a shape only: one observation
anywhere sets its scale. Outliers are clipped, old samples fade, sizes support their neighbours, the curve
never falls with size, and a stair stays where it was seen. Knows neither rows nor contexts: model.py has a
table for each shape.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

MAX_TOKENS = 1024
"""Larger passes are prompt chunks, not bets: their times are not kept."""
SHIFT_STRIKES = 3
"""Outliers in a row, all on one side, that are a change."""
HALF_LIFE = 400.0
"""Passes after which a sample counts half."""
_FIRST_CLIP = math.log(3.0)
"""How far (log) a first sample may stand from what its neighbours say."""
_WARM_DROP = 0.2
"""A first sample that is so much (log) above the second one was a cold one."""
_MOST_WEIGHT, _MOVED_WEIGHT = 60.0, 4.0
"""Samples that a size is worth at most: usually, and if they were taken before, or at another level."""
_WELL_KNOWN = 3
"""Passes of a size timed here before it can tell that the machine has changed."""
_FIRST_SPREAD, _LOADED_SPREAD, _LEAST_CLIP = 0.1, 0.04, 0.1
"""Scatter (log) of samples at first, scatter of loaded times, which are means, and the smallest outlier."""
_NEW, _REFIT = 8, 4
"""Samples up to which each leads to a new fit, and passes between two fits otherwise."""
_MOVED = 0.002
"""Change (log) of a mean below which no new fit is worth its time."""
_SUPPORT, _NOISY = 2.0, 0.1
"""A size seen twice counts as much as its neighbours together where samples scatter by this much (log)."""

_LOG_SIZES = np.log2(np.maximum(np.arange(MAX_TOKENS + 1), 1))


class _Cell:
    """A fading mean of the log times seen at one size."""

    __slots__ = ("count", "fitted", "last", "mean", "recent", "seen", "weight")

    def __init__(self, value: float, clock: int, *, is_loaded: bool = False) -> None:
        self.mean = self.fitted = value
        """The mean now, and the one that the latest fit has used."""
        self.last = clock
        self.weight = _MOVED_WEIGHT if is_loaded else 1.0
        self.count = int(self.weight)
        self.seen = 0 if is_loaded else 1
        self.recent = SHIFT_STRIKES
        """Samples since the machine changed its level; at first it has not."""

    def add(self, value: float, clock: int, *, is_shift: bool) -> None:
        self.count, self.seen, self.recent = self.count + 1, self.seen + 1, self.recent + 1
        self.weight = min(self.faded(clock), 1.0 if is_shift else _MOST_WEIGHT) + 1.0
        self.last = clock
        if self.count == 2 and self.mean - value > _WARM_DROP:
            self.mean, self.weight = value, 1.0
        else:
            self.mean += (value - self.mean) / self.weight

    def faded(self, clock: int) -> float:
        return float(self.weight * 0.5 ** ((clock - self.last) / HALF_LIFE))


class CostTable:
    """The times of one shape."""

    def __init__(self, prior: FloatArray, *, largest: int = 0) -> None:
        """prior: the curve it begins with, known up to the size `largest`."""
        self._prior = np.log(prior)
        self._cells: dict[int, _Cell] = {}
        self._curve: FloatArray | None = None
        self._clock = 0
        self._spread = _FIRST_SPREAD
        self._outliers: list[float] = []
        """Residuals of the outliers in a row, all on one side, and the sizes of those that were bare."""
        self._strikes: list[int] = []
        self.num_timed = 0
        """Passes that were timed here."""
        self.largest = largest
        """The largest size seen: beyond it the curve is a guess."""

    @property
    def is_empty(self) -> bool:
        return not self._cells

    def table(self) -> FloatArray:
        if self._curve is None:
            self._curve = self._fit()
        return self._curve

    def load(self, num_tokens: int, time_ms: float) -> None:
        """Enter a size's time from an earlier measurement; a size that was timed here keeps its own."""
        if num_tokens not in self._cells:
            self._clock += 1
            self._cells[num_tokens] = _Cell(math.log(time_ms), self._clock, is_loaded=True)
            self._spread = min(self._spread, _LOADED_SPREAD)
            self.largest = max(self.largest, num_tokens)
            self._curve = None

    def observe(self, num_tokens: int, time_ms: float, *, is_bare: bool = True) -> float:
        """A pass took so long. `is_bare`: by itself, so that it can tell of the machine's level.

        Returns by how much (log) the whole machine seems to have become slower; 0 while it seems the same.
        Then the caller moves all tables.
        """
        self._clock, self.num_timed = self._clock + 1, self.num_timed + 1
        value, cell = math.log(time_ms), self._cells.get(num_tokens)
        expected = math.log(self.table()[num_tokens])
        if cell is None:
            if self._cells:
                value = expected + self._clipped(value - expected, _FIRST_CLIP)
            self._cells[num_tokens] = _Cell(value, self._clock)
            self.largest, self._curve = max(self.largest, num_tokens), None
            return 0.0
        if cell.count > 1 or cell.mean - value <= _WARM_DROP:
            residual = self._clipped(value - expected, max(4.0 * self._spread, _LEAST_CLIP))
            if len(self._outliers) < SHIFT_STRIKES:
                self._spread += 0.05 * (abs(residual) - self._spread)
            value = expected + residual
        has_struck = self._outliers and is_bare
        self._strikes = [*self._strikes, num_tokens][-len(self._outliers) :] if has_struck else []
        shift = self._shift()
        if not shift:
            is_shift = len(self._outliers) >= SHIFT_STRIKES
            cell.add(value, self._clock, is_shift=is_shift)
            is_due = self._clock % _REFIT == 0 and abs(cell.mean - cell.fitted) > _MOVED
            if is_shift or cell.count <= _NEW or is_due:
                self._curve = None
        return shift

    def _clipped(self, residual: float, limit: float) -> float:
        """Keeps one stalled step from being believed. Several in a row on one side are no outliers."""
        if abs(residual) <= limit:
            self._outliers.clear()
            return residual
        if self._outliers and residual * self._outliers[-1] < 0:
            self._outliers.clear()
        self._outliers.append(residual)
        return residual if len(self._outliers) >= SHIFT_STRIKES else math.copysign(limit, residual)

    def _shift(self) -> float:
        """Several well-known sizes, or the smallest one by itself, are off if the machine has changed.

        Another one by itself, or some that were hardly timed here, are a curve that was wrong there.
        """
        if min(len(self._outliers), len(self._strikes)) < SHIFT_STRIKES:
            return 0.0
        sizes = set(self._strikes)
        several = len(sizes) > 1 and all(self._cells[size].seen >= _WELL_KNOWN for size in sizes)
        is_common = several or self._strikes[0] == min(self._cells)
        return float(np.median(self._outliers[-SHIFT_STRIKES:])) if is_common else 0.0

    def move(self, distance: float) -> None:
        """The machine is slower by so much (log), at every size; what was known is worth a few samples."""
        for cell in self._cells.values():
            cell.mean += distance
            cell.weight, cell.recent = min(cell.weight, _MOVED_WEIGHT), 0
        self._outliers.clear()
        self._strikes, self._curve = [], None

    def error(self, num_tokens: int) -> float:
        """Standard error (log) of this size's mean, as its samples scatter."""
        cell = self._cells.get(num_tokens)
        return math.inf if cell is None else 1.25 * self._spread / math.sqrt(cell.weight)

    def age(self, num_tokens: int) -> int:
        """Passes since this size was last timed."""
        cell = self._cells.get(num_tokens)
        return self._clock if cell is None else self._clock - cell.last

    def needs_plain(self, num_tokens: int) -> bool:
        """Whether a plain pass, of this size, must be timed before any bet.

        No pass of this shape was timed yet, or this size not twice since the machine changed its level.
        """
        cell = self._cells.get(num_tokens)
        return self.num_timed == 0 or (cell is not None and cell.recent < 2)

    def _fit(self) -> FloatArray:
        """Residuals against the prior at the sizes seen, smoothed, made monotone, interpolated in between."""
        if not self._cells:
            return np.exp(self._prior)
        sizes = np.array(sorted(self._cells))
        cells = [self._cells[size] for size in sizes.tolist()]
        for cell in cells:
            cell.fitted = cell.mean
        weights = np.array([cell.faded(self._clock) for cell in cells])
        residuals = np.array([cell.mean for cell in cells]) - self._prior[sizes]
        logs = self._prior[sizes] + _supported(_LOG_SIZES[sizes], residuals, weights, self._spread)
        logs = _isotonic(logs, weights + 0.1)
        fitted = self._prior + np.interp(_LOG_SIZES, _LOG_SIZES[sizes], logs - self._prior[sizes])
        return np.asarray(np.maximum.accumulate(np.exp(fitted)))


def _supported(places: FloatArray, residuals: FloatArray, weights: FloatArray, spread: float) -> FloatArray:
    """Each size's residual, drawn to the line through its neighbours while it has few samples.

    places: log2 of the sizes; neighbours count by a kernel of half an octave. The noisier single samples are
    (`spread`), the more a size leans on its neighbours; without noise it stands alone.
    """
    lean = min(1.0, (spread / _NOISY) ** 2)
    if len(residuals) == 1 or lean < 0.01:
        return residuals
    apart = places[None, :] - places[:, None]
    kernel = np.exp(-2.0 * apart**2) * weights
    np.fill_diagonal(kernel, 0.0)
    mass = kernel.sum(axis=1)
    centre = (kernel * apart).sum(axis=1) / np.maximum(mass, 1e-9)
    mean = kernel @ residuals / np.maximum(mass, 1e-9)
    offset = apart - centre[:, None]
    scatter = (kernel * offset**2).sum(axis=1)
    slope = (kernel * offset * residuals).sum(axis=1) / (scatter + 0.1 * mass + 1e-9)
    around = np.where(mass > 1e-9, mean - slope * centre, residuals)
    pull = lean * np.minimum(_SUPPORT, mass)
    return np.asarray((weights * residuals + pull * around) / np.maximum(weights + pull, 1e-9))


def _isotonic(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted least-squares fit that never falls (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, mass, length = value, weight, 1
        while pools and pools[-1][0] > mean:
            before, before_mass, before_length = pools.pop()
            mean = (before * before_mass + mean * mass) / (before_mass + mass)
            mass += before_mass
            length += before_length
        pools.append((mean, mass, length))
    return np.repeat([p[0] for p in pools], [p[2] for p in pools])
