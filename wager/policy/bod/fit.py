"""What the Bet-Optimal controller learns: an acceptance rate, and straight lines (costs, a tree's gain).

Plain floats, constant time per sample. Nothing here knows what a bet is worth or when to explore;
`controller.py` feeds these and reads them. Why each estimator has this form: docs/bod.md.
"""

import math
from collections import deque
from statistics import median
from typing import NamedTuple


class AcceptanceFit:
    """Maximum-likelihood chance that one guess is accepted, from accepted counts and rejections.

    A cycle whose guesses were all accepted ends without a rejection: it says "at least" (censored), and so
    adds to the accepted side only. The last `window` cycles always count; up to `memory` cycles count while
    they agree with those, and the older ones are dropped at once when a likelihood-ratio test says that the
    rate has changed.
    """

    _CHANGED = 12.0  # G statistic, one degree of freedom: about three and a half standard deviations
    _UNSEEN = 0.5  # rejections assumed where none was seen: some acceptances alone do not prove certainty

    def __init__(self, window: int, memory: int) -> None:
        self._window = window
        self._memory = max(memory - window, 0)
        self._recent: deque[tuple[int, int]] = deque()
        self._older: deque[tuple[int, int]] = deque()
        self._recent_sum = _Counts()
        self._older_sum = _Counts()

    @property
    def accepted(self) -> int:
        return self._recent_sum.accepted + self._older_sum.accepted

    @property
    def trials(self) -> int:
        """Guesses that were judged: accepted ones, and the one rejection that may end a cycle."""
        return self.accepted + self._recent_sum.rejected + self._older_sum.rejected

    def update(self, accepted: int, guesses: int) -> None:
        """Count one cycle; one without guesses says nothing and takes no place in the window."""
        if guesses <= 0:
            return
        cycle = (accepted, int(accepted < guesses))
        self._recent.append(cycle)
        self._recent_sum.add(cycle, 1)
        if len(self._recent) > self._window:
            self._age()
        if self._older and self._recent_sum.disagreement(self._older_sum) > self._CHANGED:
            self._older.clear()
            self._older_sum = _Counts()

    def rate(self, prior: float, prior_trials: int) -> float:
        """The estimate; `prior` stands in for the trials still missing from the first `prior_trials`."""
        missing = max(prior_trials - self.trials, 0)
        total = max(self.trials + missing, self.accepted + self._UNSEEN)
        return (self.accepted + prior * missing) / total if self.trials or missing else prior

    def _age(self) -> None:
        cycle = self._recent.popleft()
        self._recent_sum.add(cycle, -1)
        self._older.append(cycle)
        self._older_sum.add(cycle, 1)
        if len(self._older) > self._memory:
            self._older_sum.add(self._older.popleft(), -1)


class _Counts:
    """Accepted and rejected guesses."""

    def __init__(self) -> None:
        self.accepted = 0
        self.rejected = 0

    def add(self, cycle: tuple[int, int], sign: int) -> None:
        self.accepted += sign * cycle[0]
        self.rejected += sign * cycle[1]

    def disagreement(self, other: "_Counts") -> float:
        """Twice the log-likelihood gained by giving the two their own rates."""
        accepted = self.accepted + other.accepted
        rejected = self.rejected + other.rejected
        apart = _log_likelihood(self.accepted, self.rejected) + _log_likelihood(
            other.accepted, other.rejected
        )
        return 2.0 * (apart - _log_likelihood(accepted, rejected))


def _log_likelihood(accepted: int, rejected: int) -> float:
    total = accepted + rejected
    return sum(count * math.log(count / total) for count in (accepted, rejected) if count)


class Line(NamedTuple):
    """y = intercept + slope * x."""

    intercept: float
    slope: float

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x


class LineFit:
    """A straight line learned from a stream whose x hardly varies for long stretches.

    The level (the mean point) forgets fast, by exponential weights. The slope comes from deviations against
    that moving mean point, which a drift of the level hardly bends, and forgets only as new spread in x
    arrives: its information is capped, not aged, so any number of equal x leaves it as it was. With
    `relative`, y is taken to scatter in proportion to itself, so a dear sample says less than a cheap one.
    """

    def __init__(self, level_memory: int, spread_cap: float, relative: bool = False) -> None:
        self._level_memory = level_memory
        self._spread_cap = spread_cap
        self._relative = relative
        self._mean_x = 0.0
        self._mean_y = 0.0
        self._spread = 0.0  # both sums are in units of the scatter: see _unit
        self._product = 0.0
        self._variance = 0.0
        self.count = 0

    @property
    def slope(self) -> float:
        return self._product / self._spread if self._spread > 0.0 else 0.0

    @property
    def line(self) -> Line:
        return self._through_mean(self.slope)

    @property
    def slope_error(self) -> float:
        """Standard error of the slope; infinite while x has not varied."""
        return math.sqrt(self._variance / self._spread) if self._spread > 0.0 else math.inf

    def noise_at(self, x: float) -> float:
        """Standard deviation of y about the line."""
        return math.sqrt(self._variance) * self._unit(x)

    def likely_lines(self, sigmas: float) -> list[Line]:
        """The line turned about the mean point by so many standard errors of its slope, to either side."""
        if self._spread <= 0.0:
            return []
        turn = sigmas * self.slope_error
        return [self._through_mean(self.slope - turn), self._through_mean(self.slope + turn)]

    def shrink_towards(self, slope: float, spread: float) -> None:
        """Start from a prior slope worth `spread` of x-variation; evidence takes over as it arrives."""
        self._spread += spread
        self._product += slope * spread

    def update(self, x: float, y: float) -> None:
        self.count += 1
        gain = 1.0 / min(self.count, self._level_memory)
        dx, dy = x - self._mean_x, y - self._mean_y
        if self.count > 1:
            unit = self._unit(x)
            residual = (dy - self.slope * dx) / unit
            self._variance += (residual * residual - self._variance) / min(
                self.count - 1, 2 * self._level_memory
            )
            self._add_spread((1.0 - gain) * (dx / unit) ** 2, (1.0 - gain) * (dx / unit) * (dy / unit))
        self._mean_x += gain * dx
        self._mean_y += gain * dy

    def _through_mean(self, slope: float) -> Line:
        return Line(self._mean_y - slope * self._mean_x, slope)

    def _unit(self, x: float) -> float:
        """What scatter at x is measured in: 1, or the line's own value, kept away from zero."""
        if not self._relative:
            return 1.0
        return max(self.line.at(x), 0.1 * self._mean_y) or 1.0

    def _add_spread(self, spread: float, product: float) -> None:
        self._spread += spread
        self._product += product
        cap = self._spread_cap / self._unit(self._mean_x) ** 2
        if self._spread > cap:
            kept = cap / self._spread
            self._spread *= kept
            self._product *= kept


class RobustLineFit:
    """A LineFit for times: a host stall or a cold first step must not bend the line.

    The first `warmup` samples are kept and fitted by medians of pairwise slopes; then they, and every later
    sample, enter the running fit clipped to a band around the line.
    """

    _BAND_NOISE = 4.0
    _BAND_SHARE = 0.3  # never clip what lies within this share of the prediction: noise is unknown at first

    def __init__(self, fit: LineFit, warmup: int, min_samples: int, min_unique: int) -> None:
        self._fit = fit
        self._warmup = warmup
        self._min_samples = min_samples
        self._min_unique = min_unique
        self._samples: list[tuple[float, float]] | None = []
        self._early: Line | None = None

    @property
    def learned(self) -> bool:
        return self._early is not None or self._samples is None

    @property
    def line(self) -> Line | None:
        """The line, or None while too few different x were seen. Once there is one there always is."""
        return self._early if self._samples is not None else self._fit.line

    def likely_lines(self, sigmas: float) -> list[Line]:
        return self._fit.likely_lines(sigmas)

    def update(self, x: float, y: float) -> None:
        if self._samples is None:
            self._add_clipped(x, y, self._fit.line)
            return
        self._samples.append((x, y))
        if self._enough(self._samples):
            self._early = theil_sen(self._samples)
            if len(self._samples) >= self._warmup:
                self._settle(self._samples, self._early)
        elif len(self._samples) > max(self._warmup, self._min_samples, self._min_unique):
            # Too few different x for a line: keep the newest and wait.
            del self._samples[0]

    def _enough(self, samples: list[tuple[float, float]]) -> bool:
        return len(samples) >= self._min_samples and len({x for x, _ in samples}) >= self._min_unique

    def _settle(self, samples: list[tuple[float, float]], line: Line) -> None:
        self._samples = None
        for x, y in samples:
            self._add_clipped(x, y, line)

    def _add_clipped(self, x: float, y: float, line: Line) -> None:
        predicted = line.at(x)
        band = max(self._BAND_NOISE * self._fit.noise_at(x), self._BAND_SHARE * abs(predicted))
        self._fit.update(x, min(max(y, predicted - band), predicted + band))


def theil_sen(samples: list[tuple[float, float]]) -> Line:
    """Median of the slopes between pairs of different x, then the median intercept."""
    slopes = [
        (second[1] - first[1]) / (second[0] - first[0])
        for index, first in enumerate(samples)
        for second in samples[index + 1 :]
        if second[0] != first[0]
    ]
    slope = median(slopes)
    return Line(median(y - slope * x for x, y in samples), slope)
