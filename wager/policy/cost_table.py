"""Times by size: the curve a machine is told to have, and the table of what was timed.

A table keeps robust log-means by size over a prior that serves as a shape only: one observation anywhere sets
its scale. Outliers are clipped, old samples fade, sizes support their neighbours, the curve never falls with
size, and a stair stays where it was seen. Knows neither rows nor contexts: cost.py has a table for each
shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from wager.errors import InputError
from wager.policy.base import FloatArray

__all__ = ["MAX_TOKENS", "NEARLY_FLAT", "SHIFT_STRIKES", "CostCurve", "CostTable"]

MAX_TOKENS = 1024  # larger passes are prompt chunks, not bets: their times are not kept
_FIRST_CLIP = math.log(3.0)  # how far a first sample may stand from what its neighbours say
_WARM_DROP = 0.2  # a first sample this much (log) above the second was a cold one


class CostCurve:
    """Milliseconds by tokens in the pass: linear between points, the last slope beyond."""

    def __init__(self, points: Mapping[int, float], name: str = "curve") -> None:
        sizes = sorted(points)
        times = [float(points[size]) for size in sizes]
        if not sizes or sizes[0] < 1:
            raise InputError("needs at least one point, sizes from 1", field=f"{name}.verify_ms")
        if not all(math.isfinite(t) and t > 0 for t in times):
            raise InputError("every time must be a positive number", field=f"{name}.verify_ms")
        self.name = name
        self._sizes = np.array(sizes, np.float64)
        self._times = np.array(times)

    def __call__(self, num_tokens: int) -> float:
        return float(self.table(np.array([num_tokens], np.float64))[0])

    def table(self, sizes: FloatArray) -> FloatArray:
        times = np.interp(sizes, self._sizes, self._times)
        if len(self._sizes) > 1:
            slope = (self._times[-1] - self._times[-2]) / (self._sizes[-1] - self._sizes[-2])
            times = times + np.maximum(sizes - self._sizes[-1], 0.0) * slope
        return np.asarray(np.maximum(times, 1e-9))

    def scaled(self, factor: float) -> CostCurve:
        points = {int(s): float(t) * factor for s, t in zip(self._sizes, self._times, strict=True)}
        return CostCurve(points, self.name)


NEARLY_FLAT = CostCurve({1: 1.0, 101: 2.0}, "nearly flat")
"""The prior where nothing better is known: one more token costs one hundredth of a plain pass."""


class _Cell:
    """A robust, fading log-mean of the times seen at one size."""

    __slots__ = ("before", "count", "expected", "fitted", "last", "mean", "seen", "weight")

    def __init__(self, value: float, clock: int) -> None:
        self.mean = value
        self.weight = 1.0
        self.count = self.seen = 1
        self.before = self.last = clock  # when the last two samples came
        self.fitted = (value, 1.0)  # mean and weight that the curve was last fitted to,
        self.expected = value  # and what it says here

    def add(self, value: float, clock: int, half_life: float, *, shifted: bool = False) -> None:
        faded = self.weight * 0.5 ** ((clock - self.last) / half_life)
        self.weight = min(faded, 1.0 if shifted else _MAX_WEIGHT) + 1.0
        self.count += 1
        self.seen += 1
        self.before, self.last = self.last, clock
        if self.count == 2 and self.mean - value > _WARM_DROP:
            self.mean, self.weight = value, 1.0
        else:
            self.mean += (value - self.mean) / self.weight

    @classmethod
    def laid(cls, value: float, clock: int) -> _Cell:
        """A time that was not seen in earnest: as good as a few samples, so that those to come correct it."""
        cell = cls(value, clock)
        cell.weight, cell.count, cell.seen = _MOVED_WEIGHT, int(_MOVED_WEIGHT), 0
        cell.fitted = (value, _MOVED_WEIGHT)
        return cell

    def move(self, distance: float) -> None:
        """All times are longer by so much (log): what was known is known no better than a few samples."""
        self.mean += distance
        self.weight = min(self.weight, _MOVED_WEIGHT)

    def faded(self, clock: int, half_life: float) -> float:
        return float(self.weight * 0.5 ** ((clock - self.last) / half_life))

    def was_cold(self, value: float) -> bool:
        """Whether this second sample says that the first was a cold one."""
        return self.count == 1 and self.mean - value > _WARM_DROP

    @property
    def stale(self) -> bool:
        """Whether the curve needs a new fit: small moves add up, and weight tells a stair from noise."""
        mean, weight = self.fitted
        return abs(self.mean - mean) > 0.01 or self.weight > 1.5 * weight


_MAX_WEIGHT = 60.0
_MOVED_WEIGHT = 4.0  # samples that a time is worth at most if it was taken at another level of the machine
_LAID_SPREAD = 0.04  # how earlier measurements are taken to scatter: they are means already
SHIFT_STRIKES = 3
_WELL_KNOWN = 3  # passes of a size timed here, before it can tell that the machine has changed
_REFIT_SOON = 16  # passes between two fits for a size that is well known,
_REFIT = 64  # passes after which the curve is fitted again in any case: weights fade


class _Clip:
    """Keeps one stalled step from being believed: residuals are cut at a few times their usual size.

    Several such samples in a row on the same side are a shift, not outliers: then `shifted` is True, nothing
    is cut, and what was known should give way.
    """

    def __init__(self) -> None:
        self.spread = 0.1
        self.shifted = False
        self.residuals: list[float] = []
        """Of the outliers in a row, all on one side."""

    @property
    def limit(self) -> float:
        """How far (log) a sample may stand from what is known before it counts as an outlier."""
        return max(4.0 * self.spread, 0.1)

    def __call__(self, residual: float, *, known: bool = True) -> float:
        limit = self.limit if known else _FIRST_CLIP
        self.shifted = False
        if abs(residual) > limit:
            if self.residuals and residual * self.residuals[-1] < 0:
                self.residuals.clear()
            self.residuals.append(residual)
            self.shifted = len(self.residuals) >= SHIFT_STRIKES
            if self.shifted:
                return residual
            residual = math.copysign(limit, residual)
        else:
            self.residuals.clear()
        if known:
            self.spread += 0.05 * (abs(residual) - self.spread)
        return residual


class CostTable:
    """The cost of one shape by size. `table()[n]` is the time of a pass with n tokens."""

    def __init__(self, prior: FloatArray, *, largest: int = 0, half_life: float = 400.0) -> None:
        """prior: the curve it begins with, known up to the size `largest`."""
        self._prior = np.log(prior)
        self._half_life = half_life
        self._cells: dict[int, _Cell] = {}
        self._clock = self._num_timed = 0
        self._clip = _Clip()
        self._curve: FloatArray | None = None
        self._moved = 0
        """When the machine was last seen to run at another level."""
        self._strikes: list[int] = []
        """Sizes of the outliers in a row."""
        self.largest = largest
        """The largest size seen: beyond it the curve is a guess."""

    @property
    def num_samples(self) -> int:
        return self._clock

    def table(self) -> FloatArray:
        if self._curve is None:
            self._curve = self._fit()
        return self._curve

    def lay(self, num_tokens: int, time_ms: float) -> None:
        """Enter a size's time from an earlier measurement; a size that was timed here keeps its own."""
        if num_tokens not in self._cells:
            self._clock += 1
            self._cells[num_tokens] = _Cell.laid(math.log(time_ms), self._clock)
            self._clip.spread = min(self._clip.spread, _LAID_SPREAD)
            self.largest = max(self.largest, num_tokens)
            self._curve = None

    def observe(self, num_tokens: int, time_ms: float, *, is_bare: bool = True) -> None:
        """A pass took so long. `is_bare`: by itself, so that it can tell of the machine's level."""
        self._clock = clock = self._clock + 1
        self._num_timed += 1
        value = math.log(time_ms)
        cell, clip = self._cells.get(num_tokens), self._clip
        if cell is None:
            self._enter(num_tokens, value)
            return
        if cell.count > 1 or not cell.was_cold(value):
            if self._curve is None:
                self._curve = self._fit()
            value = cell.expected + clip(value - cell.expected)
        struck = clip.residuals and is_bare
        self._strikes = [*self._strikes, num_tokens][-len(clip.residuals) :] if struck else []
        if self.shift:
            return  # all sizes are about to be moved
        cell.add(value, clock, self._half_life, shifted=clip.shifted)
        due = clock % (_REFIT_SOON if cell.count > 8 else 1) == 0 and (clock % _REFIT == 0 or cell.stale)
        if due or clip.shifted:
            self._curve = None

    def _enter(self, num_tokens: int, value: float) -> None:
        """The first sample of a size."""
        if self._cells:
            expected = math.log(self.table()[num_tokens])
            value = expected + self._clip(value - expected, known=False)
        self._cells[num_tokens] = _Cell(value, self._clock)
        self.largest = max(self.largest, num_tokens)
        self._curve = None

    def count(self, num_tokens: int) -> int:
        cell = self._cells.get(num_tokens)
        return 0 if cell is None else cell.count

    def error(self, num_tokens: int) -> float:
        """Standard error (log) of this size's mean, as its samples scatter."""
        cell = self._cells.get(num_tokens)
        return math.inf if cell is None else 1.25 * self._clip.spread / math.sqrt(cell.weight)

    def age(self, num_tokens: int) -> int:
        """Observations since this size was last seen."""
        cell = self._cells.get(num_tokens)
        return self._clock if cell is None else self._clock - cell.last

    @property
    def shift(self) -> float:
        """By how much (log) the whole machine seems to have become slower; 0 while it seems the same.

        That several well-known sizes at once are off, or the smallest one by itself, is the machine's doing;
        another one by itself, or some that were hardly timed here, are a curve that was wrong there.
        """
        if not self._clip.shifted or len(self._strikes) < SHIFT_STRIKES:
            return 0.0
        sizes = set(self._strikes)
        several = len(sizes) > 1 and all(self._cells[size].seen >= _WELL_KNOWN for size in sizes)
        common = several or self._strikes[0] == min(self._cells)
        return float(np.median(self._clip.residuals[-SHIFT_STRIKES:])) if common else 0.0

    def move(self, distance: float) -> None:
        """The machine is slower by so much (log), at every size."""
        for cell in self._cells.values():
            cell.move(distance)
        self._clip.residuals.clear()
        self._clip.shifted, self._strikes = False, []
        self._moved, self._curve = self._clock, None

    def needs_plain(self, num_tokens: int) -> bool:
        """Whether a plain pass must be timed before any bet.

        No pass of this shape was timed yet, or this size not twice since the machine changed its level.
        """
        cell = self._cells.get(num_tokens)
        return self._num_timed == 0 or (cell is not None and cell.before < self._moved)

    def _fit(self) -> FloatArray:
        """Residuals against the prior at the sizes seen, smoothed, made monotone, interpolated in between."""
        if not self._cells:
            return np.exp(self._prior)
        sizes = np.array(sorted(self._cells))
        cells = [self._cells[size] for size in sizes.tolist()]
        weights = np.array([cell.faded(self._clock, self._half_life) for cell in cells])
        for cell in cells:
            cell.fitted = (cell.mean, cell.weight)
        means = np.array([cell.mean for cell in cells])
        logs = self._prior[sizes] + _supported(
            _LOG_SIZES[sizes], means - self._prior[sizes], weights, self._clip.spread
        )
        logs = _isotonic(logs, weights + 0.1)
        residuals = np.interp(_LOG_SIZES, _LOG_SIZES[sizes], logs - self._prior[sizes])
        curve = np.maximum.accumulate(np.exp(self._prior + residuals))
        for cell, expected in zip(cells, np.log(curve[sizes]).tolist(), strict=True):
            cell.expected = expected
        return np.asarray(curve)


_LOG_SIZES = np.log2(np.maximum(np.arange(MAX_TOKENS + 1), 1))
_SUPPORT = 2.0  # a size seen twice is trusted as much as its neighbours together,
_NOISY = 0.1  # where single samples scatter by this much (log) or more


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
    if (values[1:] >= values[:-1]).all():
        return values
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
