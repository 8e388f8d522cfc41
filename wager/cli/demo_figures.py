"""Computes the figures of `wager demo` from its runs, and says which differences in speed they can show.

A difference is shown only if it exceeds what chance explains, and if the runs of the two ways do not overlap.
The scatter of a run's time comes from pairs of plain runs of one prompt, and the range of the mean over all
prompts from their speed-ups. This file draws nothing. Called by demo.py and demo_table.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from wager.bench.figures import geometric_mean, quantile
from wager.cli.demo_runs import Run, Trial
from wager.policy import Declined, Reason
from wager.text.repetition import repeated_share

BUSY_SCATTER = 0.05
"""Median difference of two plain runs from which the machine counts as busy."""
DISTURBED = 0.25
"""Difference of two plain runs from which something has disturbed them."""
BUSY_LOAD = 0.5
"""Load average per core from which the machine counts as busy."""
_LEAST_SCATTER = 0.005
"""Smallest scatter that is assumed: a few pairs may agree by chance."""
_NORMAL = 1.4826
"""Standard deviation of normal values over the median of their absolute values."""
# Student's t for a two-sided 95 % range, by degrees of freedom from 1; more have the last value.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)


class Verdict(StrEnum):
    """What a comparison of speeds shows."""

    FASTER = "faster"
    SLOWER = "slower"
    UNDECIDED = "no difference"
    MIXED = "mixed"
    """Some prompts are faster and others slower."""
    NO_BET = "no bet"
    """Nothing was bet, so both ways are plain decoding."""


class Scatter(NamedTuple):
    """How much the time of a run scatters: its relative standard deviation, from this many pairs of runs."""

    deviation: float
    """Estimated by the median difference, which single disturbances hardly change."""
    num_pairs: int
    difference: float
    """Median difference of two plain runs of one prompt."""
    num_disturbed: int = 0
    """Pairs that differ by more than DISTURBED."""

    def limit(self, num_prompts: int = 1) -> float:
        """Returns the log of the speed-up, over two runs of each way, that chance rarely exceeds."""
        return t_quantile(self.num_pairs) * self.deviation / math.sqrt(num_prompts)


class Figures(NamedTuple):
    """One row of the table."""

    kind: str
    num_prompts: int
    num_tokens: int
    """Number of tokens of one answer to each prompt."""
    plain_tokens_per_s: float
    wager_tokens_per_s: float
    speedup: float
    lowest: float
    """The lowest speed-up of a prompt."""
    highest: float
    verdict: Verdict
    tokens_per_step: float
    bet_mean: float
    bet_low: float
    """The 10th percentile of the bets."""
    bet_high: float
    """The 90th percentile of the bets."""
    plain_share: float
    """Share of the steps without a bet."""
    identical: bool
    ledger_ms: float
    """Time saved compared with plain decoding according to Wager's ledger, for one answer to each prompt."""


class Overall(NamedTuple):
    """All prompts together; `low` and `high` bound the speed-up over such prompts with 95 % confidence."""

    speedup: float
    low: float | None
    high: float | None
    verdict: Verdict


class DeclinedSteps(NamedTuple):
    """The steps without a bet that have one reason, with the mean gain and price of their best drafts."""

    reason: Reason
    num_steps: int
    gain: float
    price: float


def t_quantile(degrees: int) -> float:
    """Returns Student's t for a two-sided 95 % range."""
    return _T95[min(max(degrees, 1), len(_T95)) - 1]


def scatter_of(trials: Sequence[Trial]) -> Scatter:
    """Returns the scatter of plain runs. Precondition: there is a trial."""
    logs = [abs(math.log(trial.plain[0].time_s / trial.plain[1].time_s)) for trial in trials]
    deviation = _NORMAL * median(logs) / math.sqrt(2.0)
    disturbed = sum(log > math.log1p(DISTURBED) for log in logs)
    return Scatter(max(deviation, _LEAST_SCATTER), len(logs), math.expm1(median(logs)), disturbed)


def speedup_of(trial: Trial) -> float:
    return sum(run.time_s for run in trial.plain) / sum(run.time_s for run in trial.wager)


def verdict_of(trial: Trial, scatter: Scatter) -> Verdict:
    """Says what one prompt shows."""
    found = _compared([trial], scatter.limit())
    return found if _has_bets(trial.wager) or found is Verdict.SLOWER else Verdict.NO_BET


def figures_by_kind(trials: Sequence[Trial]) -> list[Figures]:
    by_kind: dict[str, list[Trial]] = {}
    for trial in trials:
        by_kind.setdefault(trial.prompt.kind, []).append(trial)
    scatter = scatter_of(trials) if trials else Scatter(_LEAST_SCATTER, 0, 0.0)
    return [_figures(kind, group, scatter) for kind, group in by_kind.items()]


def overall(trials: Sequence[Trial], figures: Sequence[Figures]) -> Overall:
    """Returns the geometric mean over kinds, with its range over prompts. Precondition: there is a trial."""
    speedup = geometric_mean([one.speedup for one in figures])
    logs = [math.log(speedup_of(trial)) for trial in trials]
    if len(logs) < 2:
        return Overall(speedup, None, None, figures[0].verdict)
    half = t_quantile(len(logs) - 1) * max(stdev(logs), _LEAST_SCATTER) / math.sqrt(len(logs))
    verdict = _verdict(speedup, half)
    if verdict is not Verdict.SLOWER and not any(_has_bets(trial.wager) for trial in trials):
        verdict = Verdict.NO_BET
    return Overall(speedup, speedup * math.exp(-half), speedup * math.exp(half), verdict)


def declined_steps(runs: Iterable[Run]) -> list[DeclinedSteps]:
    """Returns the steps without a bet by reason, the most frequent first."""
    by_reason: dict[Reason, list[Declined]] = {}
    for run in runs:
        for declined in run.declined:
            by_reason.setdefault(declined.reason, []).append(declined)
    found = [
        DeclinedSteps(reason, len(own), fmean([d.gain for d in own]), fmean([d.price for d in own]))
        for reason, own in by_reason.items()
    ]
    return sorted(found, key=lambda one: -one.num_steps)


def repetition(trials: Sequence[Trial]) -> float:
    """Returns the share of 8-grams of the answers that occurred before in the same answer."""
    return repeated_share(trial.plain[0].output.token_ids for trial in trials)


def is_busy(load: float | None, cores: int | None) -> bool:
    """Whether other programs used much of the machine when the demo began."""
    return load is not None and load > BUSY_LOAD * (cores or 1)


def as_json(trials: Sequence[Trial]) -> dict[str, Any]:
    """Returns everything that was measured, without the text of each frame."""
    figures = figures_by_kind(trials)
    found: dict[str, Any] = {"kinds": [one._asdict() for one in figures]}
    if trials:
        scatter = scatter_of(trials)
        found |= {
            "overall": overall(trials, figures)._asdict(),
            "scatter": {**scatter._asdict(), "limit": math.expm1(scatter.limit())},
            "repeated_8grams": repetition(trials),
            "declined": [one._asdict() for one in declined_steps(_wager_runs(trials))],
        }
    return {**found, "trials": [_trial_dict(trial) for trial in trials]}


def _verdict(speedup: float, limit: float) -> Verdict:
    if abs(math.log(speedup)) <= limit:
        return Verdict.UNDECIDED
    return Verdict.FASTER if speedup > 1.0 else Verdict.SLOWER


def _figures(kind: str, trials: Sequence[Trial], scatter: Scatter) -> Figures:
    plain = [run for trial in trials for run in trial.plain]
    wager = _wager_runs(trials)
    bets = [bet for run in wager for bet in run.bets] or [0]
    speeds = _speed(plain), _speed(wager)
    speedups = [speedup_of(trial) for trial in trials]
    return Figures(
        kind,
        len(trials),
        sum(run.num_tokens for run in wager) // 2,
        *speeds,
        speeds[1] / speeds[0],
        min(speedups),
        max(speedups),
        _kind_verdict(trials, scatter),
        sum(run.num_tokens for run in wager) / sum(run.output.stats.steps for run in wager),
        fmean(bets),
        quantile(bets, 0.1),
        quantile(bets, 0.9),
        bets.count(0) / len(bets),
        all(trial.first_difference is None for trial in trials),
        sum(run.output.stats.ledger_ms for run in wager) / 2,
    )


def _compared(trials: Sequence[Trial], limit: float) -> Verdict:
    """Compares the times of these trials; where the runs of the two ways overlap, nothing is decided."""
    plain = [[run.time_s for run in trial.plain] for trial in trials]
    wager = [[run.time_s for run in trial.wager] for trial in trials]
    found = _verdict(sum(map(sum, plain)) / sum(map(sum, wager)), limit)
    if found is Verdict.FASTER and sum(map(min, plain)) <= sum(map(max, wager)):
        return Verdict.UNDECIDED
    if found is Verdict.SLOWER and sum(map(max, plain)) >= sum(map(min, wager)):
        return Verdict.UNDECIDED
    return found


def _kind_verdict(trials: Sequence[Trial], scatter: Scatter) -> Verdict:
    found = _compared(trials, scatter.limit(len(trials)))
    if not _has_bets(_wager_runs(trials)):
        return found if found is Verdict.SLOWER else Verdict.NO_BET
    shown = Counter(verdict_of(trial, scatter) for trial in trials)
    return Verdict.MIXED if shown[Verdict.FASTER] and shown[Verdict.SLOWER] else found


def _wager_runs(trials: Iterable[Trial]) -> list[Run]:
    return [run for trial in trials for run in trial.wager]


def _has_bets(runs: Iterable[Run]) -> bool:
    return any(any(run.bets) for run in runs)


def _speed(runs: Sequence[Run]) -> float:
    return sum(run.num_tokens for run in runs) / sum(run.time_s for run in runs)


def _trial_dict(trial: Trial) -> dict[str, Any]:
    return {
        "kind": trial.prompt.kind,
        "prompt": trial.prompt.text,
        "text": trial.runs[0].output.text,
        "speedup": speedup_of(trial),
        "first_difference": trial.first_difference,
        "gap": trial.gap,
        "runs": [_run_dict(run) for run in trial.runs],
    }


def _run_dict(run: Run) -> dict[str, Any]:
    stats = run.output.stats
    return {
        "policy": run.policy,
        "time_s": run.time_s,
        "num_tokens": run.num_tokens,
        "steps": stats.steps,
        "bets": dict(sorted(Counter(run.bets).items())),
        "declined": Counter(one.reason.value for one in run.declined),
        "ledger_ms": stats.ledger_ms,
        "finish_reason": run.output.finish_reason,
    }
