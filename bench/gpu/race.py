"""Contenders answer the same prompts in turn, with plain decoding around them, until the time is up.

The order is that of `wager bench` (A B B A around each small group). In addition the figures are saved after
every prompt, a contender that fails leaves the race alone, and no prompt begins after a deadline. Policies
are warmed up on other prompts of the same kinds and keep what they learned, as on a server. Used by pair.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.gpu.grown import BenchSession
from wager.bench.figures import Figures, Summary, geometric_mean, summarise
from wager.bench.plan import BASELINE, PromptSet, RunOptions, sets
from wager.bench.records import Answer, Measured, Run
from wager.bench.runs import Contender, Encoded, difference
from wager.errors import ModelError

_KEPT_DIFFERENCES = 40


@dataclass
class Race:
    """One series of contenders and prompts with its measurements. The first contender is plain decoding."""

    label: str
    contenders: dict[str, Contender]
    prompts: Sequence[Encoded]
    warm: Mapping[str, Sequence[Encoded]]
    """Prompts that each contender answers before it is timed."""
    options: RunOptions
    measured: Measured = field(init=False)
    texts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    num_sets: int = 0
    done: int = 0

    def __post_init__(self) -> None:
        known = [(one.prompt.kind, one.prompt.id) for one in self.prompts]
        self.measured = Measured(list(self.contenders), known)

    def run(self, session: BenchSession, deadline: float, save: Callable[[], object]) -> None:
        """Run all sets that begin before `deadline`, in seconds of the session's clock."""
        self.warm_up(session)
        plan = sets([one.prompt.kind for one in self.prompts], list(self.contenders)[1:])
        self.num_sets = len(plan)
        for one in plan:
            if session.elapsed > deadline:
                session.say(f"{self.label}: time is up after {self.done} of {len(plan)} prompts")
                return
            self._answer(session, one)
            self.done += 1
            save()
            session.say(f"{self.label}: {self.done} of {len(plan)} prompts")

    def warm_up(self, session: BenchSession) -> None:
        for name, contender in list(self.contenders.items()):
            with session.case(f"{self.label}: warm-up of {name}"):
                for index, one in enumerate(self.warm.get(name, ())):
                    contender.answer(one.token_ids, self.options.params(1000 + index))
                continue
            self._drop(name)

    def _answer(self, session: BenchSession, one: PromptSet) -> None:
        params, prompt_ids = self.options.params(one.prompt), self.prompts[one.prompt].token_ids
        for place, name in enumerate(one.turns):
            if name not in self.contenders:
                continue
            with session.case(f"{self.label}: {name} on {self.measured.prompts[one.prompt][1]}"):
                self._record(one, place, name, self.contenders[name].answer(prompt_ids, params))
                continue
            self._drop(name)

    def _drop(self, name: str) -> None:
        self.contenders.pop(name, None)
        if name == BASELINE:
            raise ModelError(f"{self.label}: plain decoding failed")

    def _record(self, one: PromptSet, place: int, name: str, answer: Answer) -> None:
        measured, kind = self.measured, self.measured.prompts[one.prompt][0]
        measured.runs.append(Run(name, one.prompt, one.round, place, answer.timing))
        if answer.counts is not None:
            measured.add_counts(name, kind, answer.counts)
        if not self.contenders[name].compared:
            return
        plain = self.texts.setdefault(one.prompt, answer.token_ids)
        measured.compared[name] += 1
        found = difference(name, one.prompt, plain, answer.token_ids)
        if found is not None:
            measured.differences.append(found)

    def as_dict(self) -> dict[str, Any]:
        summary, measured = summarise(self.measured), self.measured
        parted = dict.fromkeys(measured.compared, 0)
        for one in measured.differences:
            parted[one.contender] += 1
        return {
            "temperature": self.options.temperature,
            "max_tokens": self.options.max_tokens,
            "prompts": len(self.prompts),
            "prompts_done": self.done,
            **figures(summary),
            "texts_compared": dict(measured.compared),
            "texts_parted": parted,
            "partings": [asdict(one) for one in measured.differences[:_KEPT_DIFFERENCES]],
        }


def figures(summary: Summary) -> dict[str, Any]:
    """Figures by kind and contender, and over kinds, without those that were not measured."""
    best = summary.best_fixed
    return {
        "by_kind": {
            kind: {name: cell(summary.cells[name, kind]) for name in summary.contenders}
            for kind in summary.kinds
        },
        "geometric_mean": _finite(summary.overall),
        "geometric_mean_behind_the_first_token": _finite(summary.overall_decode),
        "best_fixed": {kind: one._asdict() for kind, one in best.items()},
        "best_fixed_geometric_mean": summary.best_fixed_overall,
        "plain_against_plain": {kind: one._asdict() for kind, one in summary.control.items()},
    }


def cell(found: Figures) -> dict[str, Any]:
    """Figures of one contender on one kind."""
    values: dict[str, Any] = {
        "tokens_per_s": found.tokens_per_s,
        "decode_tokens_per_s": found.decode_tokens_per_s,
        "speedup": found.speedup.mean if found.speedup else None,
        "decode_speedup": found.decode_speedup.mean if found.decode_speedup else None,
    }
    if found.steps is not None:
        steps = found.steps
        values |= {
            "tokens_per_step": steps.tokens_per_step,
            "mean_bet": steps.mean_bet,
            "plain_share": steps.plain_share,
            "stage_ms_per_token": steps.stage_ms,
        }
    return {name: None if _is_nan(value) else value for name, value in values.items()}


def speed_ratio(summary: Summary, one: str, other: str) -> dict[str, float]:
    """Geometric mean over kinds of one contender's speed over another's, whole and after the first token."""
    found = {}
    for name, field_name in (("whole", "speedup"), ("decode", "decode_speedup")):
        ratios = []
        for kind in summary.kinds:
            own, its = (_speed(summary, contender, kind, field_name) for contender in (one, other))
            if own is not None and its is not None:
                ratios.append(own / its)
        if ratios:
            found[name] = geometric_mean(ratios)
    return found


def _speed(summary: Summary, contender: str, kind: str, field_name: str) -> float | None:
    if contender == BASELINE:
        return 1.0
    spread = getattr(summary.cells[contender, kind], field_name)
    return None if spread is None else float(spread.mean)


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if not _is_nan(value)}


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def table(summary: Summary) -> list[str]:
    """One line per contender: speed-up over plain decoding after the first token by kind, and the mean."""
    lines = [f"{'':22s}" + "".join(f"{kind:>9s}" for kind in summary.kinds) + f"{'mean':>9s}{'whole':>9s}"]
    for name in summary.contenders:
        speeds = [_speed(summary, name, kind, "decode_speedup") for kind in summary.kinds]
        if name == BASELINE:
            rates = [summary.cells[name, kind].decode_tokens_per_s for kind in summary.kinds]
            lines.append(f"{'ar, tokens/s':22s}" + "".join(f"{rate or 0:9.1f}" for rate in rates))
            continue
        shown = "".join("        -" if one is None else f"{one:9.2f}" for one in speeds)
        means = (summary.overall_decode[name], summary.overall[name])
        lines.append(f"{name:22s}{shown}" + "".join(f"{one:9.2f}" for one in means))
    return lines
