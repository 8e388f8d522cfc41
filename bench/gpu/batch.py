"""Many requests at once: total speed of plain decoding, `auto` and a long fixed chain, by batch and content.

    python -m bench.gpu.batch [--batches 1,16,64] [--mixes mixed,prose] [--max-tokens 128]

All requests of a batch come at once and write equally many tokens. Mixes: all kinds in turn, code alone,
prose alone, half and half, and all kinds with every second request sampled. A policy answers a few mixed
batches before anything is timed and keeps what it learns from cell to cell, as on a server. Policies run
there and back (A B C C B A, B A C C A B), several times. Small batches are several of different requests, 16
in all: texts differ, and the slowest decides. Plain decoding's runs there over those back are the control. A
batch is over when its slowest request is, and nobody takes the place of those that end sooner: that is what
total tokens per second measures. Beside it: the mean speed of a request over that of plain decoding, and the
slowest over the mean of its batch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from bench.gpu.grown import World
from bench.gpu.pair import AUTO, notes
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
"""Kinds that take turns in a batch."""
_SAMPLED = "half sampled"
_LEAST = 16  # requests of a cell: so many small batches are answered
_A_STEP_S = 1e-3  # between two tokens: they are of different steps
_SHORTER = 7  # tokens by which a prompt is cut each time it is used again, so that no two texts are alike


@dataclass(frozen=True)
class Options:
    """Batches and what is in them. `seconds`: no cell is begun behind that many.

    `warm_up`: batches that are answered at each size before anything is timed. `rounds`: how often policies
    run there and back at least.
    """

    batches: tuple[int, ...] = (64, 16, 4, 1)
    mixes: tuple[str, ...] = tuple(MIXES)
    policies: tuple[str, ...] = (BASELINE, AUTO, "fixed:15")
    max_tokens: int = 128
    temperature: float = 0.8
    warm_up: int = 3
    rounds: int = 2
    seconds: float = 150.0


class Asked(NamedTuple):
    """One request of a batch."""

    kind: str
    prompt_ids: list[int]
    params: SamplingParams


class Done(NamedTuple):
    """A batch that was answered: seconds in all, and by request the seconds until it ended and its tokens."""

    wall_s: float
    ended_s: list[float]
    tokens: list[list[int]]
    steps_ms: Sequence[float] = ()
    """Of every step since all requests had begun,"""
    begun_ms: float = 0.0
    """and how long that took."""

    @property
    def late_ms(self) -> list[float]:
        """Steps that took more than twice as long as most."""
        usual = statistics.median(self.steps_ms) if self.steps_ms else 0.0
        return [round(one, 2) for one in self.steps_ms if one > 2.0 * usual]

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.tokens)) / self.wall_s

    @property
    def speeds(self) -> list[float]:
        """Every request's tokens per second."""
        return [len(own) / s for own, s in zip(self.tokens, self.ended_s, strict=True)]

    @property
    def slowest(self) -> float:
        """The slowest request's tokens per second over the mean of all."""
        return min(self.speeds) / statistics.fmean(self.speeds)


def batch_of(
    encoded: Mapping[str, Sequence[list[int]]],
    mix: str,
    places: range,
    max_tokens: int,
    temperature: float,
) -> list[Asked]:
    """The requests at these places of a mix. Raises ConfigError on an unknown one."""
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
        found.append(Asked(kind, ids, params))
    return found


@contextmanager
def at_the_engine(llm: LLM, controller: Controller) -> Iterator[None]:
    """The engine with this controller; plain decoding has no drafter and no features."""
    engine = llm.engine
    own = engine.controller, engine.drafters, engine.runner.feature_layers
    engine.controller = controller
    if controller.policy.name == BASELINE:
        engine.drafters, engine.runner.feature_layers = {}, ()
    try:
        yield
    finally:
        engine.controller, engine.drafters, engine.runner.feature_layers = own


def answer(llm: LLM, controller: Controller, asked: Sequence[Asked]) -> Done:
    """Answer a batch. Raises ModelError where a request fails."""
    ended, tokens = [0.0] * len(asked), [[0]] * len(asked)
    begun, begun_ms, steps_ms = set[int](), 0.0, list[float]()
    use_idle_moment()  # as a server does
    with at_the_engine(llm, controller):
        start = latest = step_began = time.perf_counter()
        for event in llm.stream([one.prompt_ids for one in asked], [one.params for one in asked]):
            now = time.perf_counter()
            if now - latest > _A_STEP_S:  # the tokens of one step come at once
                if len(begun) == len(asked):
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
    return Done(wall_s, ended, tokens, steps_ms, begun_ms)


def _rate(runs: Sequence[Done]) -> float:
    """Tokens per second over all of these."""
    return sum(sum(map(len, one.tokens)) for one in runs) / sum(one.wall_s for one in runs)


def cell(policies: Mapping[str, Sequence[Done]]) -> dict[str, Any]:
    """The figures of one batch and mix, from all answers of every policy."""
    rates = {name: _rate(own) for name, own in policies.items()}
    found: dict[str, Any] = {"tokens_per_s": rates}
    found["runs"] = {name: [one.tokens_per_s for one in own] for name, own in policies.items()}
    found["begun_ms"] = {name: [round(one.begun_ms, 2) for one in own] for name, own in policies.items()}
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
                for run, beside in zip(own[::2], plain[::2], strict=True)
                for one, other in zip(run.tokens, beside.tokens, strict=True)
            )
            for name, own in policies.items()
        }
    return found


def rounds_of(size: int, least: int) -> list[range]:
    """The requests of each round: the same ones every time where they are many, else the next ones."""
    different = max(1, -(-_LEAST // size))
    starts = [size * (number % different) for number in range(max(least, different))]
    return [range(start, start + size) for start in starts]


def order_of(names: Sequence[str], number: int) -> list[str]:
    """Who runs when in a round: there and back, the first two in turns.

    What comes behind a long chain finds a hotter device and a busier host: both come there equally often.
    """
    there = list(names) if number % 2 == 0 else [*names[1::-1], *names[2:]]
    return [*there, *reversed(there)]


class Field:
    """The prompts by kind, and the cells measured on them."""

    def __init__(self, world: World, options: Options) -> None:
        self.world, self.options = world, options
        self.deadline = world.elapsed + options.seconds
        self.encoded = {
            kind: [world.llm.encode(one.text) for one in world.prompts if one.kind == kind]
            for kind in DEMO_KINDS
        }

    def measure(self, size: int) -> Iterator[dict[str, Any]]:
        """All mixes at one batch size."""
        world, options = self.world, self.options
        controllers = {name: self._controller(name) for name in options.policies}
        for name, controller in controllers.items():
            with world.case(f"batch {size}: warm-up of {name}"):
                for _ in range(options.warm_up):
                    answer(world.llm, controller, self._asked("mixed", range(size)))
        for mix in options.mixes:
            if world.elapsed > self.deadline:
                world.say(f"batch {size}, {mix}: left out, the time is up")
                continue
            with world.case(f"batch {size}, {mix}"):
                yield {"batch": size, "mix": mix, **self._cell(mix, size, controllers)}

    def _asked(self, mix: str, places: range) -> list[Asked]:
        return batch_of(self.encoded, mix, places, self.options.max_tokens, self.options.temperature)

    def _cell(self, mix: str, size: int, controllers: Mapping[str, Controller]) -> dict[str, Any]:
        done: dict[str, list[Done]] = {name: [] for name in controllers}
        for number, places in enumerate(rounds_of(size, self.options.rounds)):
            asked = self._asked(mix, places)
            for name in order_of(list(controllers), number):
                done[name].append(answer(self.world.llm, controllers[name], asked))
        return cell(done)

    def _controller(self, policy: str) -> Controller:
        llm = self.world.llm
        controller = build_controller(llm.config, llm.engine.parts.make_costs())
        controller.set_policy(policy)
        return controller


def run(world: World, options: Options) -> None:
    found: list[dict[str, Any]] = []
    field = Field(world, options)
    described = {"options": asdict(options), "notes": notes(world)}
    for size in options.batches:
        for one in field.measure(size):
            found.append(one)
            world.save("batch", described, {"cells": found} | lowest(found))
            world.say(shown(one))
    for figure, values in lowest(found).items():
        world.say(f"{figure}: " + ", ".join(f"{name} {value:.3f}" for name, value in values.items()))


def shown(one: Mapping[str, Any]) -> str:
    """A cell in a line."""
    rates = "  ".join(f"{name} {rate:.0f}" for name, rate in one["tokens_per_s"].items())
    ratios = "  ".join(f"{name} {value:.3f}" for name, value in one.get("over_ar", {}).items())
    ratios += f" (control {one['control']:.3f})" if "control" in one else ""
    slow = "  ".join(f"{name} {value:.2f}" for name, value in one["slowest_over_mean"].items())
    means = "  ".join(f"{name} {v:.2f}" for name, v in one.get("mean_request_over_ar", {}).items())
    parts = [f"tok/s {rates}", f"over ar {ratios}", f"mean request {means}", f"slowest/mean {slow}"]
    return f"{one['batch']:3d} {one['mix']:14s} " + " | ".join(parts)


def lowest(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over all cells: the worst a policy came to against plain decoding, and its slowest request."""
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
