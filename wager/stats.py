"""Running statistics of speculation: a moving average, and counts, times and histogram of any requests.

Pure bookkeeping: it knows neither policies nor models and decides nothing. The engine and the trace replay
record into it; reports and responses read it. Every rate states its denominator.
"""

import math
from dataclasses import dataclass, field
from typing import NoReturn

from wager.errors import ConfigError, InputError


class ExponentialMovingAverage:
    """The first sample initialises; each later one moves the value by `alpha` of the difference."""

    __slots__ = ("alpha", "count", "value")

    def __init__(self, alpha: float = 0.1) -> None:
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0.0 < alpha <= 1.0:
            raise ConfigError("alpha", alpha, "a number above 0, up to 1")
        self.alpha = alpha
        self.value: float | None = None
        self.count = 0

    def update(self, sample: float) -> float:
        """Take one sample in and return the new value. Raises InputError on NaN or infinity."""
        if not math.isfinite(sample):
            raise InputError(f"{sample!r} is not finite", "sample")
        self.value = sample if self.value is None else self.value + self.alpha * (sample - self.value)
        self.count += 1
        return self.value

    def merge(self, other: "ExponentialMovingAverage") -> None:
        """Join another average, each weighted by its count: the order between the two is not known."""
        if other.value is None:
            return
        mine = self.value if self.value is not None else 0.0
        total = self.count + other.count
        self.value = (mine * self.count + other.value * other.count) / total
        self.count = total

    def __repr__(self) -> str:
        return f"ExponentialMovingAverage(alpha={self.alpha}, value={self.value}, count={self.count})"


@dataclass(slots=True)
class SpeculationStats:
    """What speculation offered, kept and saved. `drafted` are verified guesses."""

    steps: int = 0
    drafted_steps: int = 0
    accepted: int = 0
    drafted: int = 0
    emitted: int = 0
    time_s: float = 0.0
    plain_time_s: float = 0.0
    acceptance_histogram: list[int] = field(default_factory=list)
    acceptance_ema: ExponentialMovingAverage = field(default_factory=ExponentialMovingAverage)

    def record(
        self,
        accepted: int,
        drafted: int,
        time_s: float = 0.0,
        plain_time_s: float = 0.0,
        *,
        emitted: int | None = None,
    ) -> None:
        """Count one step of one row: guesses accepted of those verified, the time spent, and what plain
        decoding would have spent on the tokens emitted. A step without guesses leaves acceptance alone.
        `emitted` is accepted + 1 unless said: a request that ends on a guess emits no bonus.

        Raises InputError on impossible values; nothing is counted then.
        """
        if emitted is None:
            emitted = accepted + 1
        if not (0 <= accepted <= drafted and accepted <= emitted <= accepted + 1):
            _refuse_counts(accepted, drafted, emitted)
        if not (0.0 <= time_s < math.inf and 0.0 <= plain_time_s < math.inf):
            _refuse_times(time_s=time_s, plain_time_s=plain_time_s)
        self.steps += 1
        self.emitted += emitted
        self.time_s += time_s
        self.plain_time_s += plain_time_s
        if drafted:
            self.drafted_steps += 1
            self.accepted += accepted
            self.drafted += drafted
            self.acceptance_ema.update(accepted / drafted)
            self._count_depth(accepted, 1)

    def record_plain(self, steps: int, emitted: int, time_s: float = 0.0, plain_time_s: float = 0.0) -> None:
        """Count several steps of one row without guesses."""
        self.steps += steps
        self.emitted += emitted
        self.time_s += time_s
        self.plain_time_s += plain_time_s

    @property
    def acceptance(self) -> float:
        """Accepted / verified guesses, over everything; 0 before the first guess."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Mean emitted, the bonus counted, over all steps; 0 before the first."""
        return self.emitted / self.steps if self.steps else 0.0

    @property
    def speedup(self) -> float | None:
        """Plain time / time spent, both as measured; None until both are known."""
        return self.plain_time_s / self.time_s if self.time_s > 0.0 and self.plain_time_s > 0.0 else None

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Share of the drafted steps that accepted at least d guesses, for d = 1, 2, ..."""
        shares, reached = [], self.drafted_steps
        for ended in self.acceptance_histogram[:-1]:
            reached -= ended
            shares.append(reached / self.drafted_steps)
        return shares

    def merge(self, other: "SpeculationStats") -> None:
        """Add another's figures to these; the moving averages are joined by their counts."""
        self.steps += other.steps
        self.drafted_steps += other.drafted_steps
        self.accepted += other.accepted
        self.drafted += other.drafted
        self.emitted += other.emitted
        self.time_s += other.time_s
        self.plain_time_s += other.plain_time_s
        for depth, times in enumerate(list(other.acceptance_histogram)):
            self._count_depth(depth, times)
        self.acceptance_ema.merge(other.acceptance_ema)

    def as_dict(self) -> dict[str, int | float | list[int] | list[float] | None]:
        """Plain values, ready for JSON."""
        return {
            "steps": self.steps,
            "drafted_steps": self.drafted_steps,
            "accepted": self.accepted,
            "drafted": self.drafted,
            "emitted": self.emitted,
            "acceptance": self.acceptance,
            "acceptance_ema": self.acceptance_ema.value,
            "acceptance_histogram": list(self.acceptance_histogram),
            "acceptance_by_depth": self.acceptance_by_depth,
            "tokens_per_step": self.tokens_per_step,
            "time_s": self.time_s,
            "plain_time_s": self.plain_time_s,
            "speedup": self.speedup,
        }

    def __str__(self) -> str:
        parts = [
            f"{self.steps} steps ({self.drafted_steps} drafted)",
            f"{self.emitted} tokens ({self.tokens_per_step:.2f} per step)",
            f"accepted {self.accepted} of {self.drafted} guesses ({self.acceptance:.1%})",
        ]
        if self.speedup is not None:
            parts.append(f"{self.speedup:.2f}x plain decoding")
        return ", ".join(parts)

    def _count_depth(self, depth: int, times: int) -> None:
        """Add to the histogram: entry d is the number of drafted steps that accepted exactly d guesses."""
        missing = depth + 1 - len(self.acceptance_histogram)
        self.acceptance_histogram.extend([0] * missing)
        self.acceptance_histogram[depth] += times


def _refuse_counts(accepted: int, drafted: int, emitted: int) -> NoReturn:
    if not 0 <= accepted <= drafted:
        raise InputError(f"{accepted} accepted of {drafted} guesses", "accepted")
    raise InputError(f"{emitted} emitted with {accepted} accepted", "emitted")


def _refuse_times(**times_s: float) -> NoReturn:
    name, value = next((name, value) for name, value in times_s.items() if not 0.0 <= value < math.inf)
    raise InputError(f"{value!r} is not a finite time of at least 0", name)
