"""The comparison behind `wager simulate`: contents x cost curves x policies, one cell each.

Plain decoding, the best fixed length in hindsight and the oracle chain are always part of the comparison.
This module prints nothing and opens no files: the command line shows the cells and writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from wager.errors import ConfigError, InputError
from wager.policy import Controller, Experience, Ledger
from wager.trace.bod_range import BodRange, is_bod, policy_in_range
from wager.trace.costs import StepCosts
from wager.trace.decisions import DecisionRecord, DecisionSink, record_decisions
from wager.trace.format import Trace
from wager.trace.hindsight import BEST_FIXED_NAME, ORACLE_NAME, best_fixed, oracle_chain
from wager.trace.replay import Noise, Replay, ReplayOptions, check_policy, check_rows, replay

PLAIN_NAME = "ar"
REFERENCES = (PLAIN_NAME, BEST_FIXED_NAME, ORACLE_NAME)

Progress = Callable[[int, int, str], None]
"""Called with the number of finished cells, the number of all cells, and the next cell."""


@dataclass(frozen=True)
class Content:
    """The input of one cell: one trace, or several in sequence."""

    kind: str
    temperature: str
    traces: tuple[Trace, ...]


@dataclass(frozen=True)
class Cell:
    """The result of one cell. Its fields are the keys of the JSON file; an empty `detail` is omitted."""

    kind: str
    temperature: str
    costs: str
    policy: str
    tokens: int
    time_ms: float
    tokens_per_s: float
    speedup: float
    """Time of plain decoding for the same content, divided by `time_ms`."""
    steps: int
    drafted_steps: int
    mean_nodes: float
    ledger_min: float
    """The lowest balance against plain decoding, in milliseconds of the curve's own time."""
    detail: str | None = None

    def as_dict(self) -> dict[str, object]:
        return {key: value for key, value in asdict(self).items() if value is not None}


class Run(NamedTuple):
    """A cell and the replay it comes from."""

    cell: Cell
    replay: Replay


@dataclass(frozen=True)
class SimulateOptions:
    """Options that apply to every cell."""

    rows: int = 1
    noise: Noise = field(default_factory=Noise)
    floor: float = 0.01
    bod: BodRange = field(default_factory=BodRange)


@dataclass(frozen=True)
class Comparison:
    """Everything that is compared; `plan` creates it and checks it before any work is done."""

    contents: tuple[Content, ...]
    costs: tuple[StepCosts, ...]
    policies: tuple[str, ...]
    options: SimulateOptions = field(default_factory=SimulateOptions)

    @property
    def num_cells(self) -> int:
        return len(self.contents) * len(self.costs) * len(self.policies)


def select(
    traces: Sequence[Trace],
    kinds: Sequence[str] = (),
    temperatures: Sequence[str] = (),
    shifts: Sequence[str] = (),
) -> list[Content]:
    """Returns the selected contents; a shift such as "code+prose" is a content of several kinds in sequence.

    Without filters it returns every trace, or only the shifts if there are any. Raises ConfigError.
    """
    present = list(dict.fromkeys(trace.temperature for trace in traces))
    wanted = [_temperature(name, present) for name in temperatures] or present
    groups = [shift.split("+") for shift in shifts]
    names = list(dict.fromkeys(trace.kind for trace in traces))
    for option, kind in [*(("shift", k) for group in groups for k in group), *(("kind", k) for k in kinds)]:
        if kind not in names:
            raise ConfigError(option, kind, f"one of {', '.join(names)}")
    if kinds or not groups:
        groups += [[kind] for kind in names if not kinds or kind in kinds]
    found = [_content(traces, group, temperature) for group in groups for temperature in wanted]
    contents = [content for content in found if content is not None]
    if not contents:
        raise ConfigError("temperature", ", ".join(wanted), "one at which these kinds were recorded")
    return contents


def _temperature(name: str, present: list[str]) -> str:
    """Returns the temperature as the file names it: "0.8" and "t08" both mean t08."""
    try:
        label = f"t{float(name):g}".replace(".", "")
    except ValueError:
        label = name
    if label not in present:
        raise ConfigError("temperature", name, f"one of {', '.join(present)}")
    return label


def _content(traces: Sequence[Trace], kinds: list[str], temperature: str) -> Content | None:
    """Returns the content, or None if one of the kinds was not recorded at this temperature."""
    by_kind = {trace.kind: trace for trace in traces if trace.temperature == temperature}
    if any(kind not in by_kind for kind in kinds):
        return None
    return Content("+".join(kinds), temperature, tuple(by_kind[kind] for kind in kinds))


def plan(
    contents: Sequence[Content],
    costs: Sequence[StepCosts],
    policies: Sequence[str],
    options: SimulateOptions | None = None,
) -> Comparison:
    """Returns a checked comparison with the references added. Raises ConfigError or InputError."""
    options = options or SimulateOptions()
    names = [curve.name for curve in costs]
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise InputError(f"two curves are named {doubled[0]!r}", field="costs")
    check_rows(options.rows)
    chosen = tuple(dict.fromkeys([*REFERENCES, *policies]))
    if options.bod.is_set and not any(is_bod(name) for name in chosen):
        policy_in_range("bod", Experience(), options.bod)
        raise ConfigError(
            "policy", ", ".join(policies), "a list that contains bod, since a bet range for it was given"
        )
    for name in chosen:
        if name not in REFERENCES:
            policy_in_range(name, _experience(options), options.bod)
            for content in contents:
                check_policy(name, content.traces)
    return Comparison(tuple(contents), tuple(costs), chosen, options)


def compare(
    comparison: Comparison,
    on_progress: Progress | None = None,
    on_decision: DecisionSink | None = None,
) -> list[Run]:
    """Runs every cell, content by content. `on_decision` receives each step of the policies, not of the
    references.
    """
    runs: list[Run] = []
    for content in comparison.contents:
        for costs in comparison.costs:
            plain_ms = 0.0
            for policy in comparison.policies:
                if on_progress is not None:
                    label = f"{content.kind} {content.temperature} {costs.name} {policy}"
                    on_progress(len(runs), comparison.num_cells, label)
                done, detail = _replay(policy, content, costs, comparison.options, on_decision)
                plain_ms = plain_ms or done.time_ms
                runs.append(Run(_cell(policy, content, costs, done, plain_ms, detail), done))
    if on_progress is not None:
        on_progress(len(runs), comparison.num_cells, "")
    return runs


def as_json(runs: Sequence[Run]) -> dict[str, object]:
    """Returns the data that `wager simulate` prints with `--json` and writes with `--out`."""
    return {"cells": [run.cell.as_dict() for run in runs]}


def _experience(options: SimulateOptions) -> Experience:
    return Experience(ledger=Ledger(options.floor))


def _replay(
    policy: str,
    content: Content,
    costs: StepCosts,
    options: SimulateOptions,
    on_decision: DecisionSink | None,
) -> tuple[Replay, str | None]:
    """Returns the run of one cell and a remark on it."""
    rows = options.rows
    if policy == BEST_FIXED_NAME:
        best = best_fixed(content.traces, costs, rows)
        return best.run, f"K={best.length}"
    if policy == ORACLE_NAME:
        return oracle_chain(content.traces, costs, rows), None if rows == 1 else "greedy foresight"
    labels: DecisionRecord = {
        "kind": content.kind,
        "temperature": content.temperature,
        "costs": costs.name,
        "policy": policy,
    }
    experience = _experience(options)
    controller = Controller(policy, experience)
    controller.policy = policy_in_range(policy, experience, options.bod)
    if on_decision is not None and policy != PLAIN_NAME:
        record_decisions(controller, lambda record: on_decision({**record, **labels}))
    return replay(content.traces, costs, controller, ReplayOptions(rows, options.noise)), None


def _cell(
    policy: str, content: Content, costs: StepCosts, done: Replay, plain_ms: float, detail: str | None
) -> Cell:
    return Cell(
        kind=content.kind,
        temperature=content.temperature,
        costs=costs.name,
        policy=policy,
        tokens=done.tokens,
        time_ms=done.time_ms,
        tokens_per_s=done.tokens_per_s,
        speedup=plain_ms / done.time_ms,
        steps=len(done.steps),
        drafted_steps=done.drafted_steps,
        mean_nodes=done.mean_nodes,
        ledger_min=done.ledger_min,
        detail=detail,
    )
