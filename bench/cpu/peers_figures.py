"""What the clocks of peers.py come to: medians by kind, ratios of one contender to another, and the bars.

Pure arithmetic on clocks and pass times, and the tables as text; runs nothing and loads nothing.

A set is one prompt in one round, answered by everybody there and back, so each contender has two answers in
it whose middle is the set's. A ratio is taken within a set, its median over the sets of a kind, and the
geometric mean over the kinds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wager.bench.figures import geometric_mean
from wager.bench.records import Run, Timing

__all__ = ["Bar", "Clocks", "bars", "medians", "pass_lines", "ratio_lines", "speed_lines", "there_and_back"]

MEAN = "mean"
"""The geometric mean over the kinds."""

Measure = Callable[[Sequence[Timing]], float | None]
"""A rate of some answers; None where they have none."""


def there_and_back(names: Sequence[str], shift: int = 0) -> list[str]:
    """Everybody once, and once more in reverse: A B C C B A, beginning with another one at every shift."""
    cut = shift % len(names)
    rotated = [*names[cut:], *names[:cut]]
    return [*rotated, *reversed(rotated)]


def whole_rate(clocks: Sequence[Timing]) -> float:
    """Tokens per second of whole requests, the reading of the prompt included."""
    return sum(clock.num_tokens for clock in clocks) / sum(clock.wall_s for clock in clocks)


def decode_rate(clocks: Sequence[Timing]) -> float | None:
    """Tokens per second behind the first tokens; None where all came at once."""
    tokens = sum(clock.num_decoded for clock in clocks)
    return tokens / sum(clock.decode_s for clock in clocks) if tokens else None


@dataclass
class Clocks:
    """Every answer's clock. `kinds[i]` is the kind of prompt i."""

    kinds: Sequence[str]
    runs: list[Run] = field(default_factory=list)

    def by_kind(self, contender: str, measure: Measure = whole_rate) -> dict[str, float]:
        """A contender's rate: the median of its sets by kind, and the mean over kinds."""
        return self._medians(self._rates(contender, measure))

    def ratios(self, contender: str, other: str, measure: Measure = whole_rate) -> dict[str, float]:
        """How many times the other's rate a contender reaches, likewise."""
        own, theirs = self._rates(contender, measure), self._rates(other, measure)
        return self._medians({key: own[key] / theirs[key] for key in own if key in theirs})

    def _rates(self, contender: str, measure: Measure) -> dict[tuple[int, int], float]:
        rates = {key: measure(own) for key, own in self._sets(contender).items()}
        return {key: rate for key, rate in rates.items() if rate is not None}

    def _sets(self, contender: str) -> dict[tuple[int, int], list[Timing]]:
        found: dict[tuple[int, int], list[Timing]] = {}
        for run in self.runs:
            if run.contender == contender:
                found.setdefault((run.round, run.prompt), []).append(run.timing)
        return found

    def _medians(self, by_set: dict[tuple[int, int], float]) -> dict[str, float]:
        grouped: dict[str, list[float]] = {}
        for (_, prompt), value in by_set.items():
            grouped.setdefault(self.kinds[prompt], []).append(value)
        found = {
            kind: statistics.median(grouped[kind]) for kind in dict.fromkeys(self.kinds) if kind in grouped
        }
        return found | {MEAN: geometric_mean(found.values())}


def medians(times: dict[str, dict[int, list[float]]]) -> dict[str, dict[int, float]]:
    """Pass times by contender and size."""
    return {
        name: {size: statistics.median(own) for size, own in sizes.items()} for name, sizes in times.items()
    }


class Bar(NamedTuple):
    """Something that was promised, and what was found."""

    what: str
    value: float
    sign: str
    limit: float

    @property
    def is_met(self) -> bool:
        return self.value <= self.limit if self.sign == "<=" else self.value >= self.limit

    def __str__(self) -> str:
        verdict = "met" if self.is_met else "NOT met"
        return f"{self.what}: {self.value:.2f} ({self.sign} {self.limit:g}: {verdict})"


class Promise(NamedTuple):
    """Two cells of the tables whose ratio has a limit; a cell of the passes is (contender, tokens)."""

    over: tuple[str, int]
    under: tuple[str, int]
    sign: str
    limit: float


F32, Q8, SAME_FILE = "llama.cpp F32", "llama.cpp Q8_0", "llama.cpp, same file"
FULL = "full"
"""The set-up whose weights are float32 in memory too (`--setup full=ar,weights=full`)."""
_PASSES = (
    Promise(("ar", 1), (F32, 1), "<=", 1.3),
    Promise(("auto", 16), ("ar", 1), "<=", 1.8),
    Promise((FULL, 1), (F32, 1), "<=", 1.3),
    Promise((FULL, 16), (FULL, 1), "<=", 1.8),
)
_ANSWERS = (
    ("auto", F32, 1.4),
    ("auto int8", Q8, 1.0),
    ("ar", SAME_FILE, 1.0),
    ("auto", SAME_FILE, 1.5),
)


def bars(passes: dict[str, dict[int, float]], clocks: Clocks | None) -> list[Bar]:
    """Every promise whose parts were measured."""
    found = []
    for promise in _PASSES:
        (name, size), (other, other_size) = promise.over, promise.under
        if size in passes.get(name, {}) and other_size in passes.get(other, {}):
            what = f"pass of {size}, {name} / pass of {other_size}, {other}"
            value = passes[name][size] / passes[other][other_size]
            found.append(Bar(what, value, promise.sign, promise.limit))
    seen = set() if clocks is None else {run.contender for run in clocks.runs}
    for name, other, limit in _ANSWERS:
        if clocks is not None and {name, other} <= seen:
            found.append(Bar(f"tokens/s, {name} / {other}", clocks.ratios(name, other)[MEAN], ">=", limit))
    return found


def speed_lines(clocks: Clocks, names: Sequence[str], measure: Measure = whole_rate) -> list[str]:
    """Tokens per second by kind, a line for each contender."""
    rows = {name: clocks.by_kind(name, measure) for name in names}
    return _table("tokens/s", rows, "{:.0f}")


def ratio_lines(
    clocks: Clocks, ours: Sequence[str], theirs: Sequence[str], measure: Measure = whole_rate
) -> list[str]:
    """Every set-up of Wager over every peer."""
    rows = {f"{name} / {other}": clocks.ratios(name, other, measure) for other in theirs for name in ours}
    return _table("ratio", rows, "{:.2f}")


def pass_lines(passes: dict[str, dict[int, float]]) -> list[str]:
    """Milliseconds by tokens in the pass, a line for each contender."""
    rows = {name: {str(size): ms for size, ms in own.items()} for name, own in passes.items()}
    return _table("ms by tokens", rows, "{:.2f}")


def _table(corner: str, rows: dict[str, dict[str, float]], form: str) -> list[str]:
    heads = list(dict.fromkeys(head for own in rows.values() for head in own))
    width = max(map(len, [corner, *rows]))
    lines = [f"{corner:<{width}}" + "".join(f"{head:>9}" for head in heads)]
    for name, own in rows.items():
        cells = [form.format(own[head]) if head in own else "-" for head in heads]
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>9}" for cell in cells))
    return lines
