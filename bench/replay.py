"""Does the simulator foretell the machine? Speed-ups predicted from recorded traces, beside measured ones.

    python -m bench.replay [--texts FILE.jsonl.xz] [--limit 8] [--policy auto --policy fixed:4]

By kind and temperature, all in one process: record what the drafter offers on these prompts, answer them in
the order A B B A, time steps of every size before and after (machine_costs.py), and replay the trace as often
as each policy answered. A speed-up is plain decoding's time over the policy's, behind the first token: traces
know no prompts; of a prompt's answers the middle one counts, so that a stall of the machine does not. Only
the drafter that was recorded takes part. The bar is a tenth, for every kind and policy.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.machine_costs import Samples, sweep
from bench.results import write_result
from wager.bench.figures import geometric_mean, is_fixed
from wager.bench.plan import BASELINE, RunOptions
from wager.bench.records import Counts, Measured
from wager.bench.results import load_average
from wager.bench.runs import Encoded, PolicyContender, encode, measure
from wager.bench.suites import BenchPrompt, first_of_each_kind, kinds_of, load_suite
from wager.errors import ConfigError, WagerError
from wager.llm import LLM
from wager.pairs import DEMO
from wager.trace import Noise, Replay, ReplayOptions, StepCosts, Trace, load_traces, replay

BAR = 0.10
TEMPERATURES = (0.0, 0.8)
POLICIES = ("auto", "fixed:4")


@dataclass(frozen=True)
class Options:
    """How much is measured and replayed."""

    limit: int = 8
    """Prompts of each kind."""
    max_tokens: int = 128
    rounds: int = 2
    """Rounds A B B A over the prompts."""
    sweeps: int = 3
    """How often every size is timed before each kind, and again behind it."""
    seeds: int = 5
    """Replays of a policy that learns from times: those it sees scatter as the machine's do."""


@dataclass(frozen=True)
class Content:
    """One kind at one temperature: its trace, and what was measured on the same prompts."""

    kind: str
    temperature: float
    trace: Trace
    measured: Measured
    samples: Samples
    """The steps timed beside it."""


@dataclass(frozen=True)
class Cell:
    """A policy on one content: foretold and found. Its fields are the keys of the result file."""

    kind: str
    temperature: float
    policy: str
    predicted: float
    predicted_low: float
    predicted_high: float
    measured: float
    """Behind the first token."""
    measured_whole: float
    """Of the whole request, prompt included."""
    error: float
    """Predicted over measured, less one."""
    within: bool
    predicted_tokens_per_step: float
    tokens_per_step: float
    predicted_drafted: float
    """Share of the steps in which the drafter ran."""
    drafted: float
    cost_error: float
    """The part of the error that is the curve's: what it says to the steps really taken, instead of their
    measured times, would raise the speed-up by so much."""
    control: float
    """Plain decoding before a group over plain decoding behind it."""
    texts_differ: int


def record(llm: LLM, prompts: Sequence[Encoded], options: RunOptions, kind: str) -> Trace:
    """What the drafter offers on these prompts, one request for each."""
    params = [options.params(i) for i in range(len(prompts))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.npz"
        llm.record_trace([one.token_ids for one in prompts], params, path, kind)
        (trace,) = load_traces(path).traces
    return trace


def as_answered(trace: Trace, rounds: int) -> Trace:
    """The sequences in the order in which a policy answers them: each prompt twice in a row, every round."""
    order = np.tile(np.repeat(np.arange(trace.num_sequences), 2), rounds)
    p1 = None if trace.target_p1 is None else trace.target_p1[order]
    return replace(trace, logprobs=trace.logprobs[order], ranks=trace.ranks[order], target_p1=p1)


def decode_ms(run: Replay, trace: Trace) -> float:
    """A replay's time behind each sequence's first step, which in an engine is the prompt's own pass."""
    lengths = [trace.length(i) for i in range(trace.num_sequences)]
    starts = {0, *np.cumsum(lengths).tolist()}
    return sum(step.time_ms for step in run.steps if step.start not in starts)


def replays(trace: Trace, costs: StepCosts, policy: str, spread: float, seeds: int) -> list[Replay]:
    """One run for a policy that does not look at times, several for one that does."""
    if policy == BASELINE or is_fixed(policy):
        return [replay(trace, costs, policy)]
    return [replay(trace, costs, policy, ReplayOptions(noise=Noise(spread, seed=i))) for i in range(seeds)]


def seconds(measured: Measured, name: str, *, whole: bool) -> float:
    """Of one answer to every prompt: the middle one of all that were measured."""
    by_prompt: dict[int, list[float]] = defaultdict(list)
    for run in measured.runs:
        if run.contender == name:
            by_prompt[run.prompt].append(run.timing.wall_s if whole else run.timing.decode_s)
    return sum(statistics.median(seen) for seen in by_prompt.values())


def control(measured: Measured) -> float:
    """The first answers of plain decoding over its last ones."""
    plain = [run for run in measured.runs if run.contender == BASELINE]
    first = sum(run.timing.decode_s for run in plain if run.place == 0)
    last_place = max(run.place for run in plain)
    return first / sum(run.timing.decode_s for run in plain if run.place == last_place)


def priced_ms(counts: Counts, costs: StepCosts, policy: str) -> float:
    """What the curve says to the steps that a policy really took."""
    depth = int(policy.partition(":")[2]) if is_fixed(policy) else 0
    drafted = sum(num for drafter, num in counts.drafters.items() if drafter)
    passes = sum(num * costs.verify(1 + nodes) for nodes, num in counts.bets.items())
    decides = not (policy == BASELINE or is_fixed(policy))
    return passes + drafted * costs.draft_time_ms(depth) + decides * drafted * costs.decide_ms


def cost_error(content: Content, costs: StepCosts, policy: str) -> float:
    def off(name: str) -> float:
        counts = content.measured.counts[name, content.kind]
        spent_s = sum(run.timing.decode_s for run in content.measured.runs if run.contender == name)
        return priced_ms(counts, costs, name) / (1e3 * spent_s)

    return off(BASELINE) / off(policy) - 1.0


def cell(content: Content, costs: StepCosts, policy: str, spread: float, options: Options) -> Cell:
    """Foretell one policy on one content and set it beside what was found."""
    measured, trace = content.measured, as_answered(content.trace, options.rounds)
    plain_ms = decode_ms(replay(trace, costs, BASELINE), trace)
    runs = replays(trace, costs, policy, spread, options.seeds)
    speedups = [plain_ms / decode_ms(run, trace) for run in runs]
    predicted = geometric_mean(speedups)
    found = seconds(measured, BASELINE, whole=False) / seconds(measured, policy, whole=False)
    counts = measured.counts[policy, content.kind]
    return Cell(
        kind=content.kind,
        temperature=content.temperature,
        policy=policy,
        predicted=predicted,
        predicted_low=min(speedups),
        predicted_high=max(speedups),
        measured=found,
        measured_whole=seconds(measured, BASELINE, whole=True) / seconds(measured, policy, whole=True),
        error=predicted / found - 1.0,
        within=abs(predicted / found - 1.0) <= BAR,
        predicted_tokens_per_step=geometric_mean(run.tokens / len(run.steps) for run in runs),
        tokens_per_step=counts.emitted / counts.steps,
        predicted_drafted=sum(run.drafted_steps / len(run.steps) for run in runs) / len(runs),
        drafted=1.0 - counts.drafters[""] / counts.steps,
        cost_error=cost_error(content, costs, policy),
        control=control(measured),
        texts_differ=sum(one.contender == policy for one in measured.differences),
    )


@dataclass(frozen=True)
class Study:
    """All contents of one temperature, and the steps timed beside them."""

    temperature: float
    contents: list[Content] = field(default_factory=list)

    def cells(self, policies: Sequence[str], options: Options) -> list[Cell]:
        """With each kind's own costs: contexts differ in length, and the machine in its mood."""
        return [
            cell(one, one.samples.curve(), policy, one.samples.spread, options)
            for one in self.contents
            for policy in policies
        ]

    def costs(self) -> list[dict[str, object]]:
        """The curves as `wager simulate --costs` reads them, and how steps scattered around them."""
        return [_curve(one) for one in self.contents]


def _curve(content: Content) -> dict[str, object]:
    times = content.samples.times()
    curve = {
        "name": f"measured on {content.kind} at {content.temperature:g}",
        "draft_ms": {depth: round(ms, 4) for depth, ms in times.draft.items()},
        "verify_ms": {size: round(ms, 4) for size, ms in times.verify.items()},
        "decide_ms": round(content.samples.decide_ms, 4),
    }
    return {"curve": curve, "spread": round(content.samples.spread, 4)}


def study(
    llm: LLM, prompts: Sequence[BenchPrompt], found: Study, policies: Sequence[str], options: Options
) -> None:
    """Record, time and measure kind after kind; what is whole is entered. Raises KeyboardInterrupt."""
    asked = RunOptions(options.max_tokens, found.temperature, rounds=options.rounds)
    for kind in kinds_of(prompts):
        own = encode(llm, [prompt for prompt in prompts if prompt.kind == kind], options.max_tokens)
        _tell(f"{kind} at {found.temperature:g}: {len(own)} prompts")
        trace = record(llm, own, asked, kind)
        samples = Samples()
        sweep(llm, own, asked.params(0), samples, options.sweeps)
        contenders = [PolicyContender(llm, name) for name in (BASELINE, *policies)]
        measured = measure(contenders, own, asked)
        if not measured.finished:
            raise KeyboardInterrupt
        sweep(llm, own, asked.params(0), samples, options.sweeps)
        found.contents.append(Content(kind, found.temperature, trace, measured, samples))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


LINE = "{:<8} {:>3} {:<9} {:>9} {:>9} {:>7} {:>7} {:>13} {:>13} {:>7} {:>8}"


def show(cells: Sequence[Cell]) -> None:
    heads = (
        "kind",
        "T",
        "policy",
        "predicted",
        "measured",
        "error",
        "costs",
        "tokens/step",
        "drafted",
        "ar/ar",
        "",
    )
    print(LINE.format(*heads))
    for one in cells:
        print(
            LINE.format(
                one.kind,
                f"{one.temperature:g}",
                one.policy,
                f"{one.predicted:.3f}",
                f"{one.measured:.3f}",
                f"{one.error:+.1%}",
                f"{one.cost_error:+.1%}",
                f"{one.predicted_tokens_per_step:.2f} / {one.tokens_per_step:.2f}",
                f"{one.predicted_drafted:.2f} / {one.drafted:.2f}",
                f"{one.control:.3f}",
                "" if one.within else "OUTSIDE",
            )
        )
    worst = max(cells, key=lambda one: abs(one.error))
    print(f"{sum(one.within for one in cells)} of {len(cells)} within {BAR:.0%}; furthest {worst.error:+.1%}")


def summary(cells: Sequence[Cell]) -> dict[str, object]:
    return {
        "bar": BAR,
        "cells": len(cells),
        "within": sum(one.within for one in cells),
        "largest_error": max(abs(one.error) for one in cells),
    }


def chosen(prompts: Sequence[BenchPrompt], kinds: Sequence[str] | None, limit: int) -> list[BenchPrompt]:
    """The first prompts of these kinds, or of all. Raises ConfigError naming those that exist."""
    present = kinds_of(prompts)
    for kind in kinds or ():
        if kind not in present:
            raise ConfigError("kind", kind, f"one of {', '.join(present)}")
    return first_of_each_kind([one for one in prompts if not kinds or one.kind in kinds], limit)


def load(model: str, drafter: str | None, threads: int) -> LLM:
    """The pair with one drafter alone, the one that is recorded."""
    llm = LLM(model, drafter or "auto", threads=threads, prefix_reuse=False)
    llm.settle(print)
    for name in list(llm.engine.drafters)[1:]:
        del llm.engine.drafters[name]
    return llm


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.replay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--texts", type=Path, metavar="FILE", help="prompts [those that ship]")
    parser.add_argument("--kind", action="append", help="only this kind; may be repeated")
    parser.add_argument("--policy", action="append", help="may be repeated [auto, fixed:4]")
    parser.add_argument("--temperature", action="append", type=float, help="may be repeated [0, 0.8]")
    parser.add_argument("--model", default=DEMO)
    parser.add_argument("--drafter")
    parser.add_argument("--threads", type=int, default=0)
    for one in fields(Options):
        flag = "--" + one.name.replace("_", "-")
        parser.add_argument(flag, type=int, default=one.default, help=f"[{one.default}]")
    parser.add_argument("--json", type=Path, help="result file [bench/results/replay.json]")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    options = Options(**{one.name: getattr(given, one.name) for one in fields(Options)})
    policies = given.policy or list(POLICIES)
    prompts = chosen(load_suite(None if given.texts else "demo", given.texts), given.kind, options.limit)
    llm = load(given.model, given.drafter, given.threads)
    load_before, finished = load_average(), True
    studies = [Study(value) for value in given.temperature or TEMPERATURES]
    try:
        for found in studies:
            study(llm, prompts, found, policies, options)
    except KeyboardInterrupt:
        finished = False
    studies = [found for found in studies if found.contents]
    cells = [one for found in studies for one in found.cells(policies, options)]
    if not cells:
        return 130
    show(cells)
    config: dict[str, Any] = {
        "model": Path(given.model).name,
        "drafter": list(llm.engine.drafters),
        "prompts": given.texts.name if given.texts else "demo",
        "prompts_sha256": hashlib.sha256(repr(prompts).encode()).hexdigest(),
        "policies": policies,
        "threads": llm.notes["threads"],
        "dtype": llm.notes["dtype"],
        "load_average": [load_before, load_average()],
        **asdict(options),
    }
    data = {
        "finished": finished,
        "summary": summary(cells),
        "costs": [one for found in studies for one in found.costs()],
        "cells": [asdict(one) for one in cells],
    }
    print(f"written to {write_result('replay', config, data, given.json).name}")
    return 0 if finished else 130


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WagerError as error:
        sys.exit(f"bench.replay: {error}")
