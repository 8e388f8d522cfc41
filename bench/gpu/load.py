"""A closed loop: a fixed number of places, and a new request in every place whose request has ended.

    python -m bench.gpu.load [--places 1,8,64] [--temperatures 0,0.8] [--prompts FILE.jsonl.xz] [--static]
                             [--listener off|on|both] [--bridge]

A cell is one number of places at one temperature. It is served once per policy in the order A B B A, so that
the first run of plain decoding over its last one is the control. Requests are of all kinds in turn; prompt
and output lengths are drawn by a fixed seed, and every run serves the same requests. Each run starts cold: it
has a new controller that knows only what calibration measured when the engine was started.

--static adds the speed of plain decoding when as many requests as there are places start together and all
write the mean length. --listener on adds the observer that the server attaches to the engine. --bridge adds
cells that are served through the server's bridge and its engine thread instead of by direct calls.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bench.gpu.batch import run_order, use_controller
from bench.gpu.grown import BenchSession
from bench.gpu.load_drivers import DRIVERS, LoadRequest, Serve, ServedLoad, serve_directly
from bench.gpu.pair import AUTO, engine_notes
from bench.gpu.script import Script, main
from wager.bench.plan import BASELINE
from wager.bench.runs import encode
from wager.bench.suites import BenchPrompt, load_suite
from wager.engine.assemble import build_controller
from wager.errors import ConfigError
from wager.garbage import use_idle_moment
from wager.llm import LLM
from wager.policy import Controller
from wager.records import SamplingParams

_PROMPT_CHARS = 1600  # read from every text of a prompt file; token lengths are drawn below that
_PROMPT_TOKENS = (24, 256)
_REUSE_CUT = 7  # tokens by which a prompt is cut each time it is used again, so that no two are equal


@dataclass(frozen=True)
class Options:
    """What is served. No cell begins later than `seconds` after the engine was loaded."""

    places: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 48, 64)
    temperatures: tuple[float, ...] = (0.0, 0.8)
    policies: tuple[str, ...] = (BASELINE, AUTO)
    shortest: int = 40
    """Fewest new tokens of a request."""
    longest: int = 152
    """Most new tokens of a request."""
    turns: int = 6
    """Requests per place."""
    least: int = 24
    """Fewest requests of a run."""
    prompts: str = ""
    """A prompt file; the shipped prompts without one."""
    listener: str = "off"
    bridge: bool = False
    static: bool = False
    seconds: float = 420.0
    seed: int = 0


class Served(NamedTuple):
    """One run: its load, and what the engine and the controller counted in it."""

    load: ServedLoad
    counts: dict[str, Any]


def draw_requests(
    encoded: Mapping[str, Sequence[list[int]]], count: int, options: Options, temperature: float
) -> list[LoadRequest]:
    """The first `count` requests of the load: kinds in turn, lengths by the seed."""
    dice, kinds, found = random.Random(options.seed), list(encoded), []
    for index in range(count):
        kind, turn = kinds[index % len(kinds)], index // len(kinds)
        texts = encoded[kind]
        length = dice.randint(*_PROMPT_TOKENS) - _REUSE_CUT * (turn // len(texts))
        # The end of a prompt is kept: in a chat it says whose turn it is.
        prompt_ids = texts[turn % len(texts)][-max(8, length) :]
        max_tokens = dice.randint(options.shortest, options.longest)
        params = SamplingParams(max_tokens, temperature=temperature, seed=index, ignore_eos=True)
        found.append(LoadRequest(kind, prompt_ids, params))
    return found


def drivers_of(options: Options) -> list[str]:
    """The drivers of a sweep, in the order of their cells. Raises ConfigError on an unknown `listener`."""
    wanted = {"off": ["direct"], "on": ["listener"], "both": ["direct", "listener"]}
    if options.listener not in wanted:
        raise ConfigError("listener", options.listener, f"one of {', '.join(wanted)}")
    return wanted[options.listener] + (["bridge"] if options.bridge else [])


def encode_by_kind(llm: LLM, prompts: Sequence[BenchPrompt], max_tokens: int) -> dict[str, list[list[int]]]:
    """Token ids of the prompts by kind; questions go through the chat template where the model has one."""
    found: dict[str, list[list[int]]] = {}
    for one in encode(llm, prompts, max_tokens):
        found.setdefault(one.prompt.kind, []).append(list(one.token_ids))
    return found


class Sweep:
    """The cells of one call, over the engine of `session`."""

    def __init__(self, session: BenchSession, options: Options) -> None:
        self.session, self.options = session, options
        self.drivers = drivers_of(options)
        prompts = session.prompts
        if options.prompts:
            prompts = load_suite(None, Path(options.prompts), _PROMPT_CHARS)
        self.encoded = encode_by_kind(session.llm, prompts, options.longest)
        self.deadline = session.elapsed + options.seconds  # the engine is loaded by now

    def cells(self) -> Iterator[dict[str, Any]]:
        """Every cell that begins in time; one that fails is left out and named in the result file."""
        for temperature in self.options.temperatures:
            for places in self.options.places:
                for driver in self.drivers:
                    label = f"{places} places, temperature {temperature:g}, {driver}"
                    if self.session.elapsed > self.deadline:
                        self.session.say(f"{label}: left out, the time is up")
                        continue
                    with self.session.case(label):
                        yield self._cell(places, temperature, driver)

    def _cell(self, places: int, temperature: float, driver: str) -> dict[str, Any]:
        options = self.options
        count = max(options.least, options.turns * places)
        requests = draw_requests(self.encoded, count, options, temperature)
        runs: dict[str, list[Served]] = {name: [] for name in options.policies}
        for name in run_order(options.policies, 0):
            runs[name].append(self._serve(name, requests, places, DRIVERS[driver]))
        wants_static = options.static and driver == self.drivers[0]
        static = self._static(requests, places) if wants_static else []
        about = {"places": places, "temperature": temperature, "driver": driver, "requests": count}
        return about | cell_figures(runs, static)

    def _static(self, requests: Sequence[LoadRequest], places: int) -> list[float]:
        """Tokens per second of two static batches of plain decoding whose requests are equally long."""
        mean = round(statistics.fmean(one.params.max_tokens for one in requests))
        batch = [one._replace(params=replace(one.params, max_tokens=mean)) for one in requests[:places]]
        runs = [self._serve(BASELINE, batch, places, serve_directly) for _ in range(2)]
        return [one.load.tokens_per_s for one in runs]

    def _serve(self, policy: str, requests: Sequence[LoadRequest], places: int, serve: Serve) -> Served:
        """One run with a new controller."""
        llm = self.session.llm
        controller = build_controller(llm.config, llm.engine.parts.make_costs())
        controller.set_policy(policy)
        telemetry = llm.engine.telemetry
        steps, nodes, stages = telemetry.steps, telemetry.verified, dict(telemetry.stage_ms)
        use_idle_moment()
        with use_controller(llm, controller):
            load = serve(llm.engine, requests, places)
        stage_ms = {name: ms - stages[name] for name, ms in telemetry.stage_ms.items()}
        return Served(
            load, run_counts(controller, telemetry.steps - steps, telemetry.verified - nodes, stage_ms)
        )


def run_counts(
    controller: Controller, steps: int, nodes: int, stage_ms: Mapping[str, float]
) -> dict[str, Any]:
    """What happened in the steps of a run, and what its controller's ledger says of it."""
    stats, total = controller.experience.stats, controller.experience.ledger.total
    row_steps, step_ms = max(stats.steps, 1), sum(stage_ms.values())
    return {
        "steps": steps,
        "drafted_share": stats.drafted_steps / row_steps,
        "nodes_per_row": nodes / row_steps,
        "ledger_ms": total.balance_ms,
        "ledger_share": total.balance_ms / total.elapsed_ms if total.elapsed_ms else 0.0,
        "step_ms": step_ms / max(steps, 1),
        "outside_verify_ms": (step_ms - stage_ms["verify"]) / max(steps, 1),
        "stage_ms": {name: round(ms / max(steps, 1), 4) for name, ms in stage_ms.items()},
    }


def cell_figures(runs: Mapping[str, Sequence[Served]], static: Sequence[float]) -> dict[str, Any]:
    """The figures of one cell. Ratios to plain decoding are there where it is one of the policies."""
    rates = {
        name: sum(one.load.num_tokens for one in own) / sum(one.load.wall_s for one in own)
        for name, own in runs.items()
    }
    speeds = {name: [s for one in own for s in one.load.request_speeds] for name, own in runs.items()}
    found: dict[str, Any] = {
        "tokens": {name: own[0].load.num_tokens for name, own in runs.items()},
        "tokens_per_s": rates,
        "runs": {name: [one.load.tokens_per_s for one in own] for name, own in runs.items()},
        "full_runs": {name: [one.load.full_tokens_per_s for one in own] for name, own in runs.items()},
        "mean_request": {name: statistics.fmean(own) for name, own in speeds.items()},
        "slowest_request": {name: min(own) for name, own in speeds.items()},
        "counts": {name: [one.counts for one in own] for name, own in runs.items()},
    }
    plain = runs.get(BASELINE)
    if plain:
        found["over_ar"] = {name: rates[name] / rates[BASELINE] for name in runs if name != BASELINE}
        found["control"] = plain[0].load.tokens_per_s / plain[-1].load.tokens_per_s
        found["same_text_as_ar"] = {
            name: sum(text == plain[0].load.tokens[index] for index, text in own[0].load.tokens.items())
            for name, own in runs.items()
        }
    if static:
        found["static_runs"] = list(static)
        if plain:
            full = statistics.fmean(one.load.full_tokens_per_s for one in plain)
            found["closed_over_static"] = rates[BASELINE] / statistics.fmean(static)
            found["full_over_static"] = full / statistics.fmean(static)
    return found


COLUMNS = (
    "places  temp driver        ar tok/s  auto/ar control slowest/ar drafted nodes ledger "
    "step ms ar  auto static"
)


def format_cell(cell: Mapping[str, Any]) -> str:
    """A cell as a line of the table; the policy shown beside plain decoding is the last one."""
    name, rates = list(cell["runs"])[-1], cell["tokens_per_s"]
    last, first = cell["counts"][name], cell["counts"].get(BASELINE, cell["counts"][name])

    def mean(counts: Sequence[Mapping[str, float]], figure: str) -> float:
        return statistics.fmean(one[figure] for one in counts)

    slowest = cell["slowest_request"]
    return (
        f"{cell['places']:6d} {cell['temperature']:5.1f} {cell['driver']:9s} "
        f"{rates.get(BASELINE, rates[name]):12.1f} {cell.get('over_ar', {}).get(name, 1.0):8.3f} "
        f"{cell.get('control', 1.0):7.3f} {slowest[name] / slowest.get(BASELINE, slowest[name]):10.2f} "
        f"{mean(last, 'drafted_share'):7.2f} {mean(last, 'nodes_per_row'):5.1f} "
        f"{mean(last, 'ledger_share'):6.2f} {mean(first, 'step_ms'):10.2f} {mean(last, 'step_ms'):5.2f} "
        f"{cell.get('full_over_static', 0.0):6.2f}"
    )


def run(session: BenchSession, options: Options) -> None:
    found: list[dict[str, Any]] = []
    sweep = Sweep(session, options)
    described = {"options": asdict(options), "notes": engine_notes(session)}
    for cell in sweep.cells():
        found.append(cell)
        session.save("load", described, {"cells": found, "lowest_over_ar": lowest(found)})
        session.say(format_cell(cell))
    print("\n".join([COLUMNS, *map(format_cell, found)]), flush=True)
    session.say(f"lowest over ar: {lowest(found)}")


def lowest(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The worst ratio to plain decoding of every policy, over all cells."""
    worst: dict[str, float] = {}
    for cell in cells:
        for name, value in cell.get("over_ar", {}).items():
            worst[name] = min(value, worst.get(name, value))
    return worst


TINY: dict[str, Any] = {
    "places": (1, 3),
    "shortest": 4,
    "longest": 10,
    "turns": 2,
    "least": 4,
    "seconds": 600.0,
}
SCRIPT = Script("load", __doc__ or "", Options, TINY, run)

if __name__ == "__main__":
    main(SCRIPT)
