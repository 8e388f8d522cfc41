"""Where a step's time goes: by stage, between the passes, and in relation to the memory bandwidth.

`Profiler` observes the steps of each policy; on a CUDA device it also measures how long the device was busy.
The result is a `Profile` per policy, which a report stores and `timeline` shows. Steps that read the prompt
are left out. `wager bench --stages` uses this.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from wager.bench.records import Profile
from wager.engine.telemetry import STAGES, StepReport

if TYPE_CHECKING:
    from wager.engine.device_clock import DeviceClock
    from wager.engine.engine import Engine
    from wager.nn.kernels.capture import GraphCache
    from wager.nn.models.decoder import Decoder
    from wager.target import TargetRunner

__all__ = ["Profiler", "profile_of", "streamed_bytes", "timeline"]

PASSES = ("draft", "verify")
"""The stages in which a network runs."""
_WIDTHS = {"int4": 0.5, "int8": 1.0, "bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "float64": 8.0}


class StepTimes(NamedTuple):
    """One step, in milliseconds."""

    stage_ms: Mapping[str, float]
    emitted: int
    device_ms: Mapping[str, float] | None = None

    @property
    def total_ms(self) -> float:
        return sum(self.stage_ms.values())

    @property
    def pass_ms(self) -> float:
        """Time in which a network ran, as far as it is known."""
        if self.device_ms is not None:
            return sum(self.device_ms.values())
        return sum(self.stage_ms.get(stage, 0.0) for stage in PASSES)


def profile_of(steps: Sequence[StepTimes], pass_bytes: int | None = None) -> Profile:
    """Returns the profile of some steps. Precondition: there is at least one."""
    total_ms = sum(step.total_ms for step in steps)
    by_stage = {stage: [step.stage_ms.get(stage, 0.0) for step in steps] for stage in STAGES}
    clocked = [step.device_ms for step in steps if step.device_ms is not None]
    device_ms = _device_medians(clocked) if clocked else None
    gaps = [max(0.0, step.total_ms - step.pass_ms) for step in steps]
    verify_ms = statistics.median(by_stage["verify"]) if device_ms is None else device_ms.get("verify", 0.0)
    return Profile(
        len(steps),
        sum(step.emitted for step in steps) / len(steps),
        statistics.median([step.total_ms for step in steps]),
        {stage: statistics.median(times) for stage, times in by_stage.items()},
        {stage: sum(times) / total_ms if total_ms else 0.0 for stage, times in by_stage.items()},
        statistics.median(gaps),
        sum(gaps) / total_ms if total_ms else 0.0,
        device_ms,
        pass_bytes,
        pass_bytes / verify_ms / 1e6 if pass_bytes and verify_ms else None,
    )


def _device_medians(clocked: Sequence[Mapping[str, float]]) -> dict[str, float]:
    stages = sorted({stage for one in clocked for stage in one})
    return {stage: statistics.median([one.get(stage, 0.0) for one in clocked]) for stage in stages}


class Profiler:
    """Observes the steps of each policy of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._clock = device_clock(engine)
        self._pass_bytes = streamed_bytes(engine.runner.decoder)
        self._steps: dict[str, list[StepTimes]] = {}

    def forget(self, contender: str) -> None:
        """Discards the steps of a contender so far, which were warm-up."""
        self._steps.pop(contender, None)

    def listener(self, contender: str, also: Callable[[StepReport], None]) -> Callable[[StepReport], None]:
        """Returns a listener to the steps of one answer, which also calls `also`."""
        steps, clock = self._steps.setdefault(contender, []), self._clock
        last: list[StepReport] = []
        if clock is not None:
            clock.reset()

        def listen(report: StepReport) -> None:
            also(report)
            if clock is None:
                _enter(steps, report, None)
                return
            # The device's times belong to the previous step.
            device_ms = clock.turn()
            if last and device_ms:
                _enter(steps, last[0], device_ms)
            last[:] = [report]

        return listen

    def profiles(self) -> dict[str, Profile]:
        return {name: profile_of(steps, self._pass_bytes) for name, steps in self._steps.items() if steps}


def _enter(steps: list[StepTimes], report: StepReport, device_ms: Mapping[str, float] | None) -> None:
    reads_prompt = report.num_tokens - report.num_nodes > report.num_rows
    if not reads_prompt:
        steps.append(StepTimes(dict(report.stage_ms), report.emitted, device_ms))


def device_clock(engine: Engine) -> DeviceClock | None:
    """Returns a clock of all passes of the engine's networks on a CUDA device; None if there are none."""
    from wager.engine.device_clock import DeviceClock

    devices = [drafter.device for drafter in engine.drafters.values()]
    owners = [("verify", passes) for passes in _captured(engine.runner)]
    owners += [("draft", device.graphs) for device in devices if device is not None]
    clock, found = DeviceClock(), False
    for stage, passes in owners:
        if passes.device.type == "cuda":
            clock.watch(passes, stage)
            found = True
    return clock if found else None


def _captured(runner: TargetRunner) -> Iterator[GraphCache]:
    """Returns the passes that a runner runs by graphs; only some runners have any."""
    from wager.nn.kernels.capture import GraphCache

    for one in vars(runner).values():
        if isinstance(one, GraphCache):
            yield one


def streamed_bytes(decoder: Decoder) -> int | None:
    """Returns the bytes of weights that every pass reads (all matrices and the head); None if unknown."""
    if decoder.streamed_bytes is not None:
        return decoder.streamed_bytes
    spec, heads = decoder.spec, decoder.spec.heads
    inner = heads.num_heads * heads.head_dim
    layer = spec.hidden_size * (2 * inner + 2 * heads.num_kv_heads * heads.head_dim)
    layer += 3 * spec.hidden_size * spec.intermediate_size
    count = spec.num_layers * layer + spec.vocab_size * spec.hidden_size
    return None if (width := _width(decoder)) is None else round(count * width)


def _width(decoder: Decoder) -> float | None:
    """Returns the stored bytes per weight."""
    kept = str(decoder.dtype).removeprefix("torch.")
    if not decoder.native_loader.reason:  # native passes name their format
        return next((width for name, width in _WIDTHS.items() if f" {name} " in str(decoder.layout)), None)
    return _WIDTHS.get(kept) if decoder.native_loader.options.weights in ("auto", "full") else None


def timeline(profiles: Mapping[str, Profile]) -> Table:
    """Returns a table of stages by policies: median milliseconds, and shares of the time of all steps."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    table.add_column("ms per step", no_wrap=True)
    for name in profiles:
        table.add_column(name, justify="right", no_wrap=True)
    found = list(profiles.values())
    for stage in STAGES:
        table.add_row(stage, *[_with_share(one.stage_ms[stage], one.stage_share[stage]) for one in found])
    table.add_section()
    table.add_row("step", *[f"{one.step_ms:.3f}      " for one in found])
    for stage in sorted({stage for one in found for stage in one.device_ms or ()}):
        table.add_row(f"device: {stage}", *[_device(one, stage) for one in found])
    table.add_row("host gap", *[_with_share(one.gap_ms, one.gap_share) for one in found])
    table.add_row("tokens per step", *[f"{one.tokens_per_step:.2f}      " for one in found])
    if any(one.bandwidth_gb_s for one in found):
        table.add_row("weights read, GB/s", *[_bandwidth(one) for one in found])
    return table


def _with_share(time_ms: float, share: float) -> str:
    return f"{time_ms:.3f} {100 * share:3.0f} %"


def _device(profile: Profile, stage: str) -> str:
    busy = (profile.device_ms or {}).get(stage)
    return "-      " if busy is None else f"{busy:.3f}      "


def _bandwidth(profile: Profile) -> str:
    return "-      " if profile.bandwidth_gb_s is None else f"{profile.bandwidth_gb_s:.1f}      "
