"""Computes figures from measured times: speed-ups with their spread, rates and shares, by kind and over all
kinds.

A speed-up is the time of the two plain answers around a contender, divided by the time of the contender's own
two answers, prompt by prompt. This is pure arithmetic on records.py; it draws and writes nothing.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

from wager.bench.plan import BASELINE, PEERS
from wager.bench.records import Counts, Measured, Run

__all__ = [
    "ALL_KINDS",
    "BET_GROUPS",
    "STAGES_SHOWN",
    "BestFixed",
    "Figures",
    "Series",
    "Spread",
    "StepFigures",
    "Summary",
    "drawn",
    "geometric_mean",
    "grouped_bets",
    "is_fixed",
    "quantile",
    "spread_of",
    "stages_of",
    "summarise",
    "with_steps",
]

ALL_KINDS = "all kinds"
_Key = TypeVar("_Key", int, str)
_FIXED = re.compile(r"fixed:\d+")
_MANY_FIXED = 3


class Spread(NamedTuple):
    """The distribution of ratios: geometric mean, median, 10 % and 90 % quantile, and count."""

    mean: float
    median: float
    low: float
    high: float
    num: int


@dataclass(frozen=True)
class StepFigures:
    """The figures of a policy's steps; shares and means are over the steps after the prompt."""

    tokens_per_step: float
    mean_bet: float
    plain_share: float
    """Share of the steps with a bet of zero."""
    acceptance: float
    """Accepted guesses / verified guesses."""
    acceptance_by_depth: tuple[float, ...]
    """Share of the steps with a bet that kept at least d guesses, d = 1, 2, ..."""
    bets: dict[int, float]
    """Share of all steps by nodes verified."""
    drafters: dict[str, float]
    """Share of all steps by the drafter that ran; "" is none."""
    stage_ms: dict[str, float]
    """Milliseconds per emitted token by stage."""
    prompt_ms: float
    """Milliseconds per answer for reading the prompt."""
    ledger_ms: float
    """Time saved against plain decoding, according to the ledger."""
    ledger_speedup: float | None


@dataclass(frozen=True)
class Figures:
    """The figures of one contender on one kind, or on all kinds."""

    contender: str
    kind: str
    tokens_per_s: float
    """Tokens per second over the whole request."""
    decode_tokens_per_s: float | None
    """Tokens per second after the first tokens."""
    speedup: Spread | None
    """Speed-up of the whole request; None for plain decoding itself."""
    decode_speedup: Spread | None
    steps: StepFigures | None


class BestFixed(NamedTuple):
    """The best `fixed:K` of a kind in hindsight, and its speed-up."""

    contender: str
    speedup: float


@dataclass(frozen=True)
class Summary:
    """All figures of a run."""

    contenders: tuple[str, ...]
    kinds: tuple[str, ...]
    cells: dict[tuple[str, str], Figures]
    """Figures by contender and kind."""
    overall: dict[str, float]
    """Geometric mean over kinds of each contender's speed-up, whole request."""
    overall_decode: dict[str, float]
    control: dict[str, Spread]
    """Plain decoding against itself by kind, and over all kinds."""
    best_fixed: dict[str, BestFixed]
    """Best fixed length by kind; empty if no fixed:K was run."""
    best_fixed_overall: float | None
    """Geometric mean over kinds of the best fixed length of each kind."""

    def speedup(self, contender: str, kind: str) -> float:
        found = self.cells[contender, kind].speedup
        return 1.0 if found is None else found.mean


class Series(NamedTuple):
    """One contender's speed-ups by kind, as they are drawn."""

    name: str
    spreads: dict[str, Spread]
    labels: dict[str, str]
    """An additional label of a kind's value, such as the fixed length."""


def drawn(summary: Summary) -> list[Series]:
    """Returns the contenders to draw. Of three or more fixed lengths, only the best of each kind is shown."""
    rivals = [name for name in summary.contenders if name != BASELINE]
    fixed = [name for name in rivals if is_fixed(name)]
    alone = [name for name in rivals if len(fixed) < _MANY_FIXED or name not in fixed]
    found = [Series(name, _spreads(summary, dict.fromkeys(summary.kinds, name)), {}) for name in alone]
    if len(fixed) >= _MANY_FIXED:
        names = {kind: best.contender for kind, best in summary.best_fixed.items()}
        place = next((i for i, name in enumerate(alone) if name in PEERS), len(alone))
        found.insert(place, Series("best fixed", _spreads(summary, names), names))
    return found


def _spreads(summary: Summary, names: dict[str, str]) -> dict[str, Spread]:
    cells = {kind: summary.cells[name, kind].speedup for kind, name in names.items()}
    return {kind: spread for kind, spread in cells.items() if spread is not None}


BET_GROUPS = ("0", "1-2", "3-4", "5-8", "9-16", "17+")
_GROUP_STARTS = (0, 1, 3, 5, 9, 17)


def grouped_bets(steps: StepFigures) -> tuple[float, ...]:
    """Share of the steps in each of BET_GROUPS."""
    shares = [0.0] * len(BET_GROUPS)
    for bet, share in steps.bets.items():
        shares[bisect_right(_GROUP_STARTS, bet) - 1] += share
    return tuple(shares)


def with_steps(summary: Summary) -> list[str]:
    """Returns the policies whose steps were observed, without plain decoding."""
    found = dict.fromkeys(name for (name, _), figures in summary.cells.items() if figures.steps)
    return [name for name in found if name != BASELINE]


STAGES_SHOWN = ("verify", "draft", "arrange", "bet", "commit", "other")
"""The stages as they are drawn; short ones are combined."""


def stages_of(summary: Summary, contender: str) -> dict[str, float]:
    """Returns milliseconds per token by STAGES_SHOWN, as the mean of the kinds; empty if steps were not
    observed.
    """
    found = [steps for kind in summary.kinds if (steps := summary.cells[contender, kind].steps)]
    sums: dict[str, float] = {}
    for steps in found:
        for stage, ms in steps.stage_ms.items():
            name = stage if stage in STAGES_SHOWN else "other"
            sums[name] = sums.get(name, 0.0) + ms / len(found)
    return sums


def is_fixed(contender: str) -> bool:
    """Whether the contender is a chain of constant length."""
    return _FIXED.fullmatch(contender) is not None


def geometric_mean(values: Iterable[float]) -> float:
    """Returns the geometric mean; NaN without values."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the quantile at `share`, interpolated linearly."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def spread_of(ratios: Sequence[float]) -> Spread | None:
    """Returns the distribution of ratios; None without values."""
    if not ratios:
        return None
    low, median, high = (quantile(ratios, share) for share in (0.1, 0.5, 0.9))
    return Spread(geometric_mean(ratios), median, low, high, len(ratios))


def summarise(measured: Measured) -> Summary:
    """Returns all figures of a run, whether it is complete or not."""
    kinds, contenders = tuple(measured.kinds), tuple(measured.contenders)
    by_set = _by_set(measured)
    cells = {(name, kind): _figures(measured, by_set, name, kind) for name in contenders for kind in kinds}
    control = {kind: found for kind in kinds if (found := spread_of(_control(by_set, measured, kind)))}
    if found := spread_of([ratio for kind in kinds for ratio in _control(by_set, measured, kind)]):
        control[ALL_KINDS] = found
    rivals = [name for name in contenders if name != BASELINE]
    best = _best_fixed(cells, rivals, kinds)
    return Summary(
        contenders,
        kinds,
        cells,
        {name: _over_kinds([cells[name, kind].speedup for kind in kinds]) for name in rivals},
        {name: _over_kinds([cells[name, kind].decode_speedup for kind in kinds]) for name in rivals},
        control,
        best,
        geometric_mean(one.speedup for one in best.values()) if best else None,
    )


def _by_set(measured: Measured) -> dict[tuple[int, int], list[Run]]:
    """Returns the runs by (round, prompt), in the order of their turns."""
    found: dict[tuple[int, int], list[Run]] = {}
    for run in sorted(measured.runs, key=lambda run: run.place):
        found.setdefault((run.round, run.prompt), []).append(run)
    return found


def _own_sets(by_set: dict[tuple[int, int], list[Run]], measured: Measured, kind: str) -> list[list[Run]]:
    return [runs for (_, prompt), runs in by_set.items() if measured.prompts[prompt][0] == kind]


class _Pair(NamedTuple):
    """A contender's two answers to a prompt, and the two plain answers around them."""

    plain: tuple[Run, Run]
    own: tuple[Run, Run]


def _pair(runs: Sequence[Run], contender: str) -> _Pair | None:
    own = [run for run in runs if run.contender == contender]
    if len(own) != 2:
        return None
    before = [run for run in runs if run.contender == BASELINE and run.place < own[0].place]
    after = [run for run in runs if run.contender == BASELINE and run.place > own[1].place]
    return _Pair((before[-1], after[0]), (own[0], own[1])) if before and after else None


def _control(by_set: dict[tuple[int, int], list[Run]], measured: Measured, kind: str) -> list[float]:
    """Returns the time of each plain answer divided by that of the next one to the same prompt."""
    ratios = []
    for runs in _own_sets(by_set, measured, kind):
        plain = [run.timing.wall_s for run in runs if run.contender == BASELINE]
        ratios += [one / other for one, other in pairwise(plain)]
    return ratios


def _figures(
    measured: Measured, by_set: dict[tuple[int, int], list[Run]], contender: str, kind: str
) -> Figures:
    own_sets = _own_sets(by_set, measured, kind)
    clocks = [run.timing for runs in own_sets for run in runs if run.contender == contender]
    wall, decode = sum(clock.wall_s for clock in clocks), sum(clock.decode_s for clock in clocks)
    pairs = [] if contender == BASELINE else [found for runs in own_sets if (found := _pair(runs, contender))]
    counts = measured.counts.get((contender, kind))
    return Figures(
        contender,
        kind,
        sum(clock.num_tokens for clock in clocks) / wall if wall else math.nan,
        sum(clock.num_decoded for clock in clocks) / decode if decode else None,
        spread_of([_ratio(pair) for pair in pairs]),
        spread_of([ratio for pair in pairs if (ratio := _decode_ratio(pair)) is not None]),
        None if counts is None or not counts.steps else _step_figures(counts),
    )


def _ratio(pair: _Pair) -> float:
    return sum(run.timing.wall_s for run in pair.plain) / sum(run.timing.wall_s for run in pair.own)


def _decode_ratio(pair: _Pair) -> float | None:
    """Returns tokens per second after the first tokens, divided by plain decoding's."""
    rates = []
    for runs in pair:
        seconds = sum(run.timing.decode_s for run in runs)
        tokens = sum(run.timing.num_decoded for run in runs)
        if seconds <= 0.0 or tokens <= 0:
            return None
        rates.append(tokens / seconds)
    return rates[1] / rates[0]


def _step_figures(counts: Counts) -> StepFigures:
    verified = sum(nodes * times for nodes, times in counts.bets.items())
    kept = sum(guesses * times for guesses, times in counts.accepted.items())
    per_token = {name: ms / max(counts.emitted, 1) for name, ms in counts.stage_ms.items()}
    return StepFigures(
        counts.emitted / counts.steps,
        verified / counts.steps,
        counts.bets[0] / counts.steps,
        kept / verified if verified else 0.0,
        tuple(_at_least(counts.accepted)),
        _shares(counts.bets, counts.steps),
        _shares(counts.drafters, counts.steps),
        per_token,
        counts.prompt_ms / counts.answers,
        counts.plain_ms - counts.spent_ms,
        counts.plain_ms / counts.spent_ms if counts.spent_ms > 0.0 else None,
    )


def _at_least(accepted: Counter[int]) -> list[float]:
    total = sum(accepted.values())
    deepest = max(accepted, default=0)
    return [
        sum(times for guesses, times in accepted.items() if guesses >= depth) / total
        for depth in range(1, deepest + 1)
    ]


def _shares(counter: Counter[_Key], total: int) -> dict[_Key, float]:
    return {key: counter[key] / total for key in sorted(counter)}


def _over_kinds(spreads: Sequence[Spread | None]) -> float:
    return geometric_mean(found.mean for found in spreads if found is not None)


def _best_fixed(
    cells: dict[tuple[str, str], Figures], rivals: Sequence[str], kinds: Sequence[str]
) -> dict[str, BestFixed]:
    fixed = [name for name in rivals if is_fixed(name)]
    best = {}
    for kind in kinds:
        speeds = [BestFixed(name, found.mean) for name in fixed if (found := cells[name, kind].speedup)]
        if speeds:
            best[kind] = max(speeds, key=lambda one: one.speedup)
    return best
