"""Static batches: total speed of plain decoding, `auto` and a long fixed chain, by batch size and content.

    python -m bench.gpu.batch [--batches 1,16,64] [--mixes mixed,prose] [--max-tokens 128]

All requests of a batch start together and write equally many tokens. The mixes are all kinds in turn, code
alone, prose alone, code and prose in turn, and all kinds with every second request sampled. Each policy
answers a few mixed batches before anything is timed, and keeps what it learns from cell to cell, as on a
server. Policies run forth and back (A B C C B A, then B A C C A B), several times. Small batches are several
batches of different requests, 16 requests in all, because texts differ and the slowest request decides. The
first run of plain decoding over its last one is the control.

A batch is over when its slowest request is, and no request takes the place of one that ended: that is what
total tokens per second measures here (load.py refills places). Two more figures are the mean speed of a
request over that of plain decoding, and the slowest request over the mean of its batch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from bench.gpu.grown import BenchSession
from bench.gpu.pair import AUTO, engine_notes
from bench.gpu.script import Script, main
from wager.bench.plan import BASELINE
from wager.bench.suites import DEMO_KINDS
from wager.engine.assemble import build_controller
from wager.errors import ConfigError, ModelError
from wager.garbage import use_idle_moment
from wager.llm import LLM
from wager.policy import Controller
from wager.records import SamplingParams

MIXES: dict[str, tuple[str, ...]] = {
    "mixed": DEMO_KINDS,
    "code": ("code",),
    "prose": ("prose",),
    "code and prose": ("code", "prose"),
    "half sampled": DEMO_KINDS,
}
"""Kinds of prompts that take turns in a batch, by mix."""
_SAMPLED = "half sampled"
_LEAST = 16  # least number of requests of a cell, over all its batches
_A_STEP_S = 1e-3  # two tokens further apart than this are of different steps
_SHORTER = 7  # tokens by which a prompt is cut each time it is used again, so that no two are equal


@dataclass(frozen=True)
class Options:
    """What is measured. No cell begins after `seconds`.

    `warm_up` is the number of batches that each policy answers at each size before anything is timed.
    `rounds` is the least number of times that policies run forth and back.
    """

    batches: tuple[int, ...] = (64, 16, 4, 1)
    mixes: tuple[str, ...] = tuple(MIXES)
    policies: tuple[str, ...] = (BASELINE, AUTO, "fixed:15")
    max_tokens: int = 128
    temperature: float = 0.8
    warm_up: int = 3
    rounds: int = 2
    seconds: float = 150.0


class BatchRequest(NamedTuple):
    """One request of a batch."""

    kind: str
    prompt_ids: list[int]
    params: SamplingParams


class BatchRun(NamedTuple):
    """One batch that was answered: its time, and for every request when it ended and its tokens."""

    wall_s: float
    ended_s: list[float]
    tokens: list[list[int]]
    steps_ms: Sequence[float] = ()
    """Time of every step after all requests had started."""
    all_started_ms: float = 0.0
    """Time until all requests had started."""

    @property
    def late_ms(self) -> list[float]:
        """Steps that took more than twice the median."""
        usual = statistics.median(self.steps_ms) if self.steps_ms else 0.0
        return [round(one, 2) for one in self.steps_ms if one > 2.0 * usual]

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.tokens)) / self.wall_s

    @property
    def speeds(self) -> list[float]:
        """Tokens per second of every request."""
        return [len(own) / s for own, s in zip(self.tokens, self.ended_s, strict=True)]

    @property
    def slowest(self) -> float:
        """Tokens per second of the slowest request over the mean of all."""
        return min(self.speeds) / statistics.fmean(self.speeds)


def make_batch(
    encoded: Mapping[str, Sequence[list[int]]],
    mix: str,
    places: range,
    max_tokens: int,
    temperature: float,
) -> list[BatchRequest]:
    """The requests of a mix at these indices. Raises ConfigError on an unknown mix."""
    if mix not in MIXES:
        raise ConfigError("mixes", mix, f"some of {', '.join(MIXES)}")
    kinds, found = MIXES[mix], []
    for index in places:
        kind, turn = kinds[index % len(kinds)], index // len(kinds)
        texts = encoded[kind]
        ids = texts[turn % len(texts)]
        ids = ids[: max(8, len(ids) - _SHORTER * (turn // len(texts)))]
        heat = temperature if mix == _SAMPLED and index % 2 else 0.0
        params = SamplingParams(max_tokens=max_tokens, temperature=heat, seed=index, ignore_eos=True)
        found.append(BatchRequest(kind, ids, params))
    return found


@contextmanager
def use_controller(llm: LLM, controller: Controller) -> Iterator[None]:
    """Run the engine with this controller. Plain decoding runs without drafters and features."""
    engine = llm.engine
    before = engine.controller, engine.drafters, engine.runner.feature_layers
    engine.controller = controller
    if controller.policy.name == BASELINE:
        engine.drafters, engine.runner.feature_layers = {}, ()
    try:
        yield
    finally:
        engine.controller, engine.drafters, engine.runner.feature_layers = before


def run_batch(llm: LLM, controller: Controller, requests: Sequence[BatchRequest]) -> BatchRun:
    """Answer a batch. Raises ModelError where a request fails."""
    ended, tokens = [0.0] * len(requests), [[0]] * len(requests)
    begun, begun_ms, steps_ms = set[int](), 0.0, list[float]()
    use_idle_moment()  # a server does so, too
    with use_controller(llm, controller):
        start = latest = step_began = time.perf_counter()
        for event in llm.stream([one.prompt_ids for one in requests], [one.params for one in requests]):
            now = time.perf_counter()
            if now - latest > _A_STEP_S:  # the tokens of one step arrive together
                if len(begun) == len(requests):
                    steps_ms.append((now - step_began) * 1e3)
                step_began = now
            latest = now
            if event.index not in begun:
                begun.add(event.index)
                begun_ms = (now - start) * 1e3
            if event.output is None:
                continue
            if event.output.error:
                raise ModelError(event.output.error)
            ended[event.index] = time.perf_counter() - start
            tokens[event.index] = event.output.token_ids
        wall_s = time.perf_counter() - start
    return BatchRun(wall_s, ended, tokens, steps_ms, begun_ms)


def _rate(runs: Sequence[BatchRun]) -> float:
    """Tokens per second over all of these runs."""
    return sum(sum(map(len, one.tokens)) for one in runs) / sum(one.wall_s for one in runs)


def cell_figures(policies: Mapping[str, Sequence[BatchRun]]) -> dict[str, Any]:
    """The figures of one batch size and mix, from all runs of every policy."""
    rates = {name: _rate(own) for name, own in policies.items()}
    found: dict[str, Any] = {"tokens_per_s": rates}
    found["runs"] = {name: [one.tokens_per_s for one in own] for name, own in policies.items()}
    found["begun_ms"] = {
        name: [round(one.all_started_ms, 2) for one in own] for name, own in policies.items()
    }
    found["late_ms"] = {name: [one.late_ms for one in own] for name, own in policies.items()}
    found["slowest_over_mean"] = {name: min(one.slowest for one in own) for name, own in policies.items()}
    plain = policies.get(BASELINE)
    if plain:
        found["over_ar"] = {name: rate / rates[BASELINE] for name, rate in rates.items() if name != BASELINE}
        means = {
            name: statistics.fmean([speed for one in own for speed in one.speeds])
            for name, own in policies.items()
        }
        found["mean_request_over_ar"] = {name: mean / means[BASELINE] for name, mean in means.items()}
        found["control"] = _rate(plain[::2]) / _rate(plain[1::2])
        found["texts_like_ar"] = {
            name: sum(
                one == other
                for run, plain_run in zip(own[::2], plain[::2], strict=True)
                for one, other in zip(run.tokens, plain_run.tokens, strict=True)
            )
            for name, own in policies.items()
        }
    return found


def batch_rounds(size: int, least: int) -> list[range]:
    """The request indices of each round: small batches take other requests each time."""
    different = max(1, -(-_LEAST // size))
    starts = [size * (number % different) for number in range(max(least, different))]
    return [range(start, start + size) for start in starts]


def run_order(names: Sequence[str], number: int) -> list[str]:
    """The order of the runs of one round: forth and back, the first two policies in turns.

    A run after a long chain finds a hotter device and a busier host. Both policies are in that position
    equally often.
    """
    there = list(names) if number % 2 == 0 else [*names[1::-1], *names[2:]]
    return [*there, *reversed(there)]


class BatchSweep:
    """The prompts by kind, and the cells that are measured on them."""

    def __init__(self, session: BenchSession, options: Options) -> None:
        self.session, self.options = session, options
        self.deadline = session.elapsed + options.seconds
        self.encoded = {
            kind: [session.llm.encode(one.text) for one in session.prompts if one.kind == kind]
            for kind in DEMO_KINDS
        }

    def measure(self, size: int) -> Iterator[dict[str, Any]]:
        """Measure all mixes at one batch size."""
        session, options = self.session, self.options
        controllers = {name: self._controller(name) for name in options.policies}
        for name, controller in controllers.items():
            with session.case(f"batch {size}: warm-up of {name}"):
                for _ in range(options.warm_up):
                    run_batch(session.llm, controller, self._requests("mixed", range(size)))
        for mix in options.mixes:
            if session.elapsed > self.deadline:
                session.say(f"batch {size}, {mix}: left out, the time is up")
                continue
            with session.case(f"batch {size}, {mix}"):
                yield {"batch": size, "mix": mix, **self._cell(mix, size, controllers)}

    def _requests(self, mix: str, places: range) -> list[BatchRequest]:
        return make_batch(self.encoded, mix, places, self.options.max_tokens, self.options.temperature)

    def _cell(self, mix: str, size: int, controllers: Mapping[str, Controller]) -> dict[str, Any]:
        done: dict[str, list[BatchRun]] = {name: [] for name in controllers}
        for number, places in enumerate(batch_rounds(size, self.options.rounds)):
            requests = self._requests(mix, places)
            for name in run_order(list(controllers), number):
                done[name].append(run_batch(self.session.llm, controllers[name], requests))
        return cell_figures(done)

    def _controller(self, policy: str) -> Controller:
        llm = self.session.llm
        controller = build_controller(llm.config, llm.engine.parts.make_costs())
        controller.set_policy(policy)
        return controller


def run(session: BenchSession, options: Options) -> None:
    found: list[dict[str, Any]] = []
    sweep = BatchSweep(session, options)
    described = {"options": asdict(options), "notes": engine_notes(session)}
    for size in options.batches:
        for one in sweep.measure(size):
            found.append(one)
            session.save("batch", described, {"cells": found} | lowest_figures(found))
            session.say(format_cell(one))
    for figure, values in lowest_figures(found).items():
        session.say(f"{figure}: " + ", ".join(f"{name} {value:.3f}" for name, value in values.items()))


def format_cell(one: Mapping[str, Any]) -> str:
    """A cell as one line of text."""
    rates = "  ".join(f"{name} {rate:.0f}" for name, rate in one["tokens_per_s"].items())
    ratios = "  ".join(f"{name} {value:.3f}" for name, value in one.get("over_ar", {}).items())
    ratios += f" (control {one['control']:.3f})" if "control" in one else ""
    slow = "  ".join(f"{name} {value:.2f}" for name, value in one["slowest_over_mean"].items())
    means = "  ".join(f"{name} {v:.2f}" for name, v in one.get("mean_request_over_ar", {}).items())
    parts = [f"tok/s {rates}", f"over ar {ratios}", f"mean request {means}", f"slowest/mean {slow}"]
    return f"{one['batch']:3d} {one['mix']:14s} " + " | ".join(parts)


def lowest_figures(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over all cells: each policy's lowest ratio to plain decoding, and its slowest request."""
    found: dict[str, Any] = {}
    for figure in ("over_ar", "slowest_over_mean"):
        worst: dict[str, float] = {}
        for one in cells:
            for name, value in one.get(figure, {}).items():
                worst[name] = min(value, worst.get(name, value))
        found[f"lowest_{figure}"] = worst
    return found


TINY: dict[str, Any] = {"batches": (4, 1), "max_tokens": 8, "warm_up": 1, "rounds": 1, "seconds": 600.0}
SCRIPT = Script("batch", __doc__ or "", Options, TINY, run)

if __name__ == "__main__":
    main(SCRIPT)
