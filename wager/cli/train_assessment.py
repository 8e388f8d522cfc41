"""Says at the end of `wager train` whether the drafter is worth using on this machine.

The engine's passes and drafts are timed as they run. The held-out acceptance by depth says how many tokens a
step with a chain of each length gives. The best fixed chain is the estimate: `auto`, which chooses at every
step, should not be slower.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from wager.config import EngineConfig, with_values
from wager.errors import ModelError
from wager.trace.costs import StepCosts, step_costs

if TYPE_CHECKING:
    from wager.train.drafter_quality import Measured

__all__ = ["Assessment", "Estimate", "assess", "best_chain", "time_steps"]

_ROUNDS = 7
_CONTEXT = 256
_PAGES = 64
_CLEAR = 0.05
"""An estimated gain or loss of less than this fraction is not called one."""


class Estimate(NamedTuple):
    """The best fixed chain on this machine."""

    num_guesses: int
    tokens_per_step: float
    speedup: float


def best_chain(by_depth: Sequence[float], costs: StepCosts) -> Estimate:
    """Returns the chain with the most tokens per millisecond, compared with plain decoding."""
    found, tokens, reached = [], 1.0, 1.0
    for depth, rate in enumerate(by_depth, 1):
        reached *= rate
        tokens += reached
        step_ms = costs.draft_time_ms() + costs.verify(depth + 1)
        found.append(Estimate(depth, tokens, tokens * costs.plain_ms() / step_ms))
    return max(found, key=lambda one: one.speedup)


def time_steps(target: Path, drafter: Path, device: str, say: Callable[[str], None]) -> StepCosts:
    """Times plain passes, passes over chains, and whole drafts on this machine. Raises WagerError."""
    from wager.engine.assemble import build_engine
    from wager.engine.pass_clock import DraftCase, PassCase, PassClock

    models = {"model": str(target), "drafter": str(drafter), "device": device}
    config = with_values(EngineConfig(), max_rows=1, num_pages=_PAGES, calibrate=False, **models)
    engine = build_engine(config)
    engine.settle(say)
    [name] = [name for name in engine.drafters if name != "lookup"]
    context = min(_CONTEXT, engine.parts.max_context // 2)
    clock, draft = PassClock(engine), DraftCase(name, 1, 0, context)
    first = clock.time_draft(draft)
    if first is None:
        raise ModelError("the drafter proposes nothing")
    sizes = sorted({1, 2, 3, 5, 9, first.depth + 1})
    drafts: list[float] = []
    passes: dict[int, list[float]] = {size: [] for size in sizes}
    for number in range(_ROUNDS + 1):  # the first round is a warm-up
        for size in sizes:
            passes[size].append(clock.time_pass(PassCase(size, 1, context)).time_ms)
        timed = clock.time_draft(draft)
        drafts += [] if timed is None else [timed.time_ms]
        if number == 0:
            drafts.clear()
            passes = {size: [] for size in sizes}
    del clock, engine
    gc.collect()
    return step_costs("here", median(drafts), {size: median(times) for size, times in passes.items()})


class Assessment(NamedTuple):
    """What is said at the end of a training."""

    text: str
    advice: str = ""
    """What may help if the drafter gains nothing."""


def assess(measured: Sequence[Measured], costs: StepCosts) -> Assessment:
    """Returns two sentences about the use of the drafter on this machine."""
    found = {one.temperature: best_chain(one.by_depth, costs) for one in measured}
    if not found:
        return Assessment("There were no held-out texts, so nothing can be said about the speed.")
    speeds = [one.speedup for one in found.values()]
    estimated = " and ".join(f"{_texts(t)} {one.speedup:.2f} times" for t, one in found.items())
    lengths = " and ".join(str(one.num_guesses) for one in found.values())
    largest = 1 + max(one.num_guesses for one in found.values())
    text = (
        f"{_judged(speeds)}: it is estimated to make {estimated} as fast as plain decoding. That is with "
        f"chains of {lengths} guesses; a target pass takes {costs.plain_ms():.2f} ms, a draft "
        f"{costs.draft_time_ms():.2f} ms, and a pass over {largest} tokens {costs.verify(largest):.2f} ms."
    )
    return Assessment(text, _ADVICE if max(speeds) < 1.0 + _CLEAR else "")


_ADVICE = "more --updates and --own-text raise its acceptance, fewer --layers make a draft cheaper"


def _texts(temperature: float) -> str:
    return "greedy text" if temperature == 0 else f"text at temperature {temperature:g}"


def _judged(speeds: Sequence[float]) -> str:
    if min(speeds) >= 1.0 + _CLEAR:
        return "This drafter is worth using on this machine"
    if max(speeds) >= 1.0 + _CLEAR:
        return "This drafter is worth using on this machine for some texts"
    if max(speeds) > 1.0 - _CLEAR:
        return "This drafter makes little difference on this machine"
    return "This drafter is not worth using on this machine"
