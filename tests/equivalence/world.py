"""A small world to run engines in: a target, drafters that sometimes agree with it, and ways to run requests.

Everything is random but the chain drafter, a disturbed copy of the target, so that it is right often and
wrong often. Costs are made up (`steady`), so that policies that weigh time decide the same on every machine.
Shared by the tests of equivalence, engine and target; it judges nothing itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.nn.tiny import build_target, save_drafter, save_target
from wager.config import EngineConfig, with_values
from wager.engine.assemble import build_engine
from wager.engine.engine import Engine, Event
from wager.engine.telemetry import StepReport
from wager.policy import StepOutcome
from wager.records import SamplingParams

VOCAB = 64
SIZES = {"vocab_size": VOCAB, "max_position_embeddings": 512}
STRICT = {"dtype": "float64", "layout": "out_in", "device": "cpu", "threads": 1}
MOST_STEPS = 4000


@dataclass(frozen=True)
class World:
    """Model folders. `reference` is the target as transformers runs it."""

    target: str
    chain: str
    block: str
    reference: Any

    def drafter(self, kind: str) -> str:
        return {"chain": self.chain, "block": self.block}.get(kind, kind)


def make_world(folder: Path, seed: int = 0, **changes: Any) -> World:
    """Save a target and both trained kinds of drafters."""
    sizes = SIZES | changes
    reference = save_target(folder / "target", "qwen3", seed, **sizes)
    near = build_target("qwen3", seed, **sizes)
    torch.manual_seed(seed + 1)
    with torch.no_grad():
        for weight in near.parameters():
            weight.add_(torch.randn_like(weight) * 0.02)
    near.save_pretrained(folder / "chain")
    save_drafter(folder / "block", seed + 2, vocab_size=sizes["vocab_size"], dflash_config=_block_config())
    return World(str(folder / "target"), str(folder / "chain"), str(folder / "block"), reference)


def _block_config() -> dict[str, Any]:
    return {"mask_token_id": 5, "target_layer_ids": [0, 2]}


def make_engine(world: World, drafter: str = "none", policy: str = "ar", **settings: Any) -> Engine:
    """An engine in float64 with steady costs, unless the settings say otherwise."""
    values = {
        **STRICT,
        "model": world.target,
        "drafter": world.drafter(drafter),
        "policy": policy,
        **settings,
    }
    values.setdefault("num_pages", 256)
    values.setdefault("page_size", 8)
    engine = build_engine(with_values(EngineConfig(), **values))
    steady(engine)
    return engine


def steady(engine: Engine) -> None:
    """Let the policy learn from made-up times: a pass hardly dearer with more tokens, a draft nearly free."""
    learn = engine.controller.learn

    def steadied(outcome: StepOutcome) -> StepOutcome:
        drafted = any(share.offer.drafter is not None for share in outcome.rows)
        verify_ms = 10.0 + 0.02 * outcome.num_tokens
        return outcome._replace(verify_ms=verify_ms, draft_ms=0.05 if drafted else 0.0)

    def learn_steadily(*outcomes: StepOutcome) -> None:
        learn(*[steadied(outcome) for outcome in outcomes])

    engine.controller.learn = learn_steadily  # type: ignore[method-assign]


@dataclass(frozen=True)
class Job:
    """A request of a test."""

    prompt: list[int]
    params: SamplingParams


@dataclass
class Run:
    """What came of a run: every event, in order, and the reports of its steps."""

    events: list[Event] = field(default_factory=list)
    reports: list[StepReport] = field(default_factory=list)

    def tokens(self, request_id: object) -> list[int]:
        return [t for event in self.events if event.request_id == request_id for t in event.token_ids]

    def last(self, request_id: object) -> Event:
        (event,) = [e for e in self.events if e.request_id == request_id and e.finish is not None]
        return event

    @property
    def accepted(self) -> int:
        return sum(report.accepted for report in self.reports)

    @property
    def verified(self) -> int:
        return sum(report.num_nodes for report in self.reports)


def drive(engine: Engine, joins: Mapping[int, Iterable[Any]], aborts: Mapping[int, Iterable[Any]]) -> Run:
    """Run to the end. `joins[n]` are (id, job) that arrive before step n, `aborts[n]` ids that end there."""
    run = Run()
    engine.telemetry.listener = run.reports.append
    last = max([*joins, *aborts], default=0)
    for step in range(MOST_STEPS):
        for request_id, job in joins.get(step, ()):
            engine.add(request_id, job.prompt, job.params)
        for request_id in aborts.get(step, ()):
            engine.abort(request_id)
        run.events += engine.step()
        if step >= last and not engine.has_work:
            engine.check()
            return run
    raise AssertionError(f"not done after {MOST_STEPS} steps")


def alone(engine: Engine, jobs: Iterable[Job]) -> list[list[int]]:
    """Each job by itself; their tokens."""
    found = []
    for index, job in enumerate(jobs):
        run = drive(engine, {0: [(f"alone-{index}", job)]}, {})
        found.append(run.tokens(f"alone-{index}"))
    return found


def is_clean(engine: Engine) -> bool:
    """Whether nothing of any request is left, and no page is held but by the prefix index."""
    memory = engine.scheduler.memory
    kept = len(memory.index) if memory.index is not None else 0
    states = [getattr(d, name, {}) for d in engine.drafters.values() for name in _STATES]
    return (
        memory.allocator.num_used == kept
        and not any(states)
        and not engine.draft_outcomes._open
        and not engine.controller.experience.ledger.requests
        and not engine.scheduler.running
        and not engine.scheduler.waiting
    )


_STATES = ("_contexts", "_stored", "_indexes")


def prompt(seed: int, length: int, period: int = 0, vocab: int = VOCAB) -> list[int]:
    """Random ids; with a period, the same few over and over, for lookup to find."""
    ids = np.random.default_rng(seed).integers(0, vocab, period or length).tolist()
    return (ids * (length // len(ids) + 1))[:length]
