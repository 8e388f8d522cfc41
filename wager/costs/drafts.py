"""What the drafts of one drafter take: a linear model with four coefficients, learned online.

    time = factor(depth) * (first row + row * (rows - 1)) + start * starting rows + begin

A row starts if it did not draft in the step before: the drafter then reads the tokens that it missed. `begin`
is added if no row of the step drafted before, because nothing was in flight for it. The coefficients include
the host's work for drafting rows, so what one batch size shows holds for every other. They are estimated by
recursive least squares (a Kalman filter with a small random walk), whose covariance also says how uncertain a
time is. It knows no passes; model.py calls it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

BASE_SPREAD, ROW_SPREAD, START_SPREAD, BEGIN_SPREAD = 0.4, 0.05, 0.05, 0.5
"""Standard deviations of the coefficients before anything was timed, in plain steps."""
SHORTER_FACTOR = 0.8
"""What a draft of half the depth takes of a deeper one until it was timed."""
FACTOR_MEMORY = 20
"""Drafts after which the factor of a depth forgets."""
FIRST_SPREAD, SPREAD_RATE = 0.1, 0.05
"""Relative scatter of single times at first, and the share of the newest one in it."""
OUTLIER = 4.0
"""Standard deviations from which a time is an outlier and cut; several in a row are a change."""
DRIFT = 0.02
"""Random walk of a coefficient in each draft, as a part of its spread at first."""


class DraftShape(NamedTuple):
    """A draft of one drafter, as far as its time depends on it."""

    num_rows: int
    depth: int = 0
    """Guesses asked for; 0: a whole draft."""
    num_starting: int = 0
    """Rows that did not draft with this drafter in the step before."""
    native: bool = False
    """Whether native code takes the step, so that the host has little to do with it."""

    @property
    def begins(self) -> bool:
        return self.num_starting >= self.num_rows


class DraftModel:
    """The time of one drafter's drafts."""

    def __init__(self, base_ms: float, row_ms: float, unit_ms: float, *, strikes: int) -> None:
        """`base_ms` and `row_ms` are the first guess, `unit_ms` is a plain step.

        As many outliers in a row as `strikes` count as a change.
        """
        self._mean = np.array([base_ms, row_ms, 0.0, 0.0])
        spreads = np.array([max(BASE_SPREAD * unit_ms, base_ms), *(unit_ms * _SPREADS)])
        self._first = np.diag(spreads**2)
        self._cov = self._first.copy()
        self._spread, self._strikes, self._outliers = FIRST_SPREAD, strikes, 0
        self._factors: dict[int, tuple[float, int]] = {}
        """By depth: the mean factor, and the number of drafts behind it."""
        self._timed_whole = False

    def time_ms(self, shape: DraftShape) -> float:
        return max(1e-6, float(self._inputs(shape) @ self._mean))

    def error_ms(self, shape: DraftShape) -> float:
        """Standard error of the expected time, without the scatter of single drafts."""
        inputs = self._inputs(shape)
        return math.sqrt(float(inputs @ self._cov @ inputs))

    def start_ms(self, num_starting: int, *, begins: bool) -> float:
        """The part of a draft's time that is due to starting rows."""
        return max(0.0, float(num_starting * self._mean[2] + begins * self._mean[3]))

    def scale(self, factor: float) -> None:
        """The machine runs at another level."""
        self._mean *= factor
        self._cov *= factor**2

    def trust(self) -> None:
        """What was entered so far is from an earlier measurement: as good as a few samples."""
        self._cov = np.minimum(self._first, np.maximum(self._cov, 0.25 * self._first) * np.eye(4))

    def observe(self, shape: DraftShape, time_ms: float) -> None:
        if shape.depth and self._timed_whole:
            self._learn_factor(shape, time_ms)
            return
        self._timed_whole = self._timed_whole or not shape.depth
        inputs, expected = self._inputs(shape), self.time_ms(shape)
        noise = (self._spread * max(expected, 1e-6)) ** 2
        gains = self._cov @ inputs
        variance = float(inputs @ gains) + noise
        residual, limit = time_ms - expected, OUTLIER * math.sqrt(variance)
        self._outliers = self._outliers + 1 if abs(residual) > limit else 0
        if self._outliers >= self._strikes:
            self._cov, self._outliers = self._first.copy(), 0
            gains = self._cov @ inputs
            variance = float(inputs @ gains) + noise
        else:
            residual = max(-limit, min(limit, residual))
            self._spread += SPREAD_RATE * (min(abs(residual) / expected, 1.0) * 1.25 - self._spread)
        self._mean = np.maximum(self._mean + gains * (residual / variance), 0.0)
        cov = self._cov - np.outer(gains, gains) / variance + DRIFT**2 * self._first
        self._cov = cov * min(1.0, math.sqrt(float(np.min(np.diag(self._first) / np.diag(cov)))))

    def _learn_factor(self, shape: DraftShape, time_ms: float) -> None:
        rest_ms = time_ms - self.start_ms(shape.num_starting, begins=shape.begins)
        whole_ms = float(self._mean[0] + self._mean[1] * (shape.num_rows - 1))
        factor = max(0.05, min(rest_ms / max(whole_ms, 1e-6), 2.0))
        mean, count = self._factors.get(shape.depth, (factor, 0))
        count = min(count + 1, FACTOR_MEMORY)
        self._factors[shape.depth] = mean + (factor - mean) / count, count

    def _factor(self, depth: int) -> float:
        if not depth:
            return 1.0
        known = self._factors.get(depth)
        if known is not None:
            return known[0]
        deeper = min([one for one in self._factors if one > depth], default=0)
        return SHORTER_FACTOR * self._factor(deeper)

    def _inputs(self, shape: DraftShape) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        factor = self._factor(shape.depth)
        return np.array([factor, factor * (shape.num_rows - 1), shape.num_starting, float(shape.begins)])


_SPREADS = np.array([ROW_SPREAD, START_SPREAD, BEGIN_SPREAD])
