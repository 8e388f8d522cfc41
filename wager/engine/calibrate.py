"""Measures what passes cost on this machine before the first request, and stores the times for the next
start.

On a CUDA device this happens at the start, unless a calibration of the same engine is stored. On a CPU, where
a request would have to wait, a server makes one run at a time while it is idle. The cost model counts each
measured time as a few samples and corrects it later. Which runs are made is cost_sweep.py's, how one is timed
is pass_clock.py's, where times are stored is cost_file.py's. Called by assemble.py.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from wager.config import EngineConfig
from wager.costs import CostModel
from wager.engine import cost_file
from wager.engine.cost_file import Calibration, Key
from wager.engine.cost_sweep import Bounds, Sweep
from wager.engine.engine import Engine, Parts
from wager.engine.pass_clock import PassClock
from wager.errors import one_line
from wager.nn.models.decoder import DecoderSpec

__all__ = ["CostRuns", "key_of", "prepare_costs", "shape_digest"]

log = logging.getLogger("wager.engine")

CUDA_CONTEXTS = (512, 4096, 16384)
"""Context lengths of the runs on a CUDA device, in tokens."""
CPU_CONTEXTS = (256,)
"""Context lengths of the runs on a CPU, where long ones take too much time."""
CUDA_BUDGET_S = 30.0
"""The time for calibration at a start on a CUDA device; what is not measured by then is learned later."""
MAX_CPU_RUN_MS = 60.0
"""The longest run on a CPU, where a request may come at any moment."""
TIMING_VERSION = 2
"""The way in which passes are timed; stored times of another version are not used."""
MAX_CPU_BYTES = 64 << 20
"""K/V memory that the runs on a CPU may use: the system only provides memory at its first use."""


def prepare_costs(engine: Engine, config: EngineConfig) -> None:
    """Gives an engine the costs that are known; on a CUDA device they are measured now if none are."""
    parts, runs = engine.parts, CostRuns(engine, config)
    parts.make_costs = runs.fresh_costs
    engine.controller.experience.costs = runs.fresh_costs()
    if runs.is_wanted and _is_cuda(parts):
        runs.make_all_runs()
    elif runs.is_wanted:
        parts.spare_time = runs.make_one_run


class CostRuns:
    """The calibration of one engine: the known times, and the runs that are still to be made."""

    def __init__(self, engine: Engine, config: EngineConfig) -> None:
        self._engine, self._config = engine, config
        self.is_wanted = config.policy.calibrate
        self._key: Key = {}
        self._known: Calibration | None = None
        self._sweep: Sweep | None = None
        self._runs: Iterator[None] = iter(())

    def fresh_costs(self) -> CostModel:
        """Returns a cost model with the known times of passes as they are run now."""
        parts = self._engine.parts
        costs, key = CostModel(buckets=buckets_of(parts)), key_of(parts)
        if key != self._key:
            self._key, self._sweep = key, None
            self._known = cost_file.read(key) if self.is_wanted else None
            self._note("none" if self._known is None else f"measured {self._known.age} ago")
        if self._known is not None:
            costs.load(self._known.passes, self._known.drafts)
        return costs

    def make_all_runs(self) -> None:
        """Makes all runs now, unless times are known."""
        while self._advance():
            pass

    def make_one_run(self) -> bool:
        """Makes one run if its time can be stored; returns whether there are more.

        It waits until passes are native if they may become so, and while other programs keep the machine
        busy. Precondition: no request runs or waits.
        """
        is_final = not self._engine.runner.decoder.native_loader.may_become_ready
        if not is_final or cost_file.folder() is None or (self._sweep is None and _is_busy()):
            return False
        return self._advance()

    def _advance(self) -> bool:
        """Makes one run. If it fails, no more are made, and costs are learned from requests."""
        if self._known is not None:
            return False
        if self._sweep is None:
            bounds = bounds_of(self._engine.parts, self._config)
            self._sweep = Sweep(PassClock(self._engine), list(self._engine.drafters), bounds)
            self._runs = iter(self._sweep)
        try:
            next(self._runs)
        except StopIteration:
            self._take(self._sweep)
        except Exception as error:
            self._give_up(one_line(error))
        return self._known is None

    def _take(self, sweep: Sweep) -> None:
        """Stores the times of a complete sweep and gives them to the engine."""
        self._known = Calibration(self._key, tuple(sweep.passes), tuple(sweep.drafts), time.time())
        # Nothing else runs on a CUDA device, so unsteady times there are no sign of a busy machine.
        is_unsteady = sweep.is_unsteady and not _is_cuda(self._engine.parts)
        if is_unsteady or not sweep.passes:
            self._give_up("the machine was busy" if sweep.passes else "no room for a single run")
            return
        cost_file.write(self._known)
        self._engine.controller.experience.costs.load(sweep.passes, sweep.drafts)
        self._note(f"measured in {sweep.spent_s:.1f} s")
        log.info("calibrated: %s in %.1f s", self._known.summary, sweep.spent_s)

    def _give_up(self, reason: str) -> None:
        """Notes that there are no measured times until the next start."""
        log.warning("costs are not calibrated and will be learned from requests: %s", reason)
        self._known = Calibration(self._key, (), (), time.time())
        self._note(f"failed: {reason}")

    def _note(self, source: str) -> None:
        known = self._known
        note = {"value": "none" if known is None else known.summary, "source": source}
        self._engine.parts.notes["calibration"] = note if self.is_wanted else {**note, "source": "off"}


def bounds_of(parts: Parts, config: EngineConfig) -> Bounds:
    """Returns which runs are useful for this engine, and the time and memory they may take."""
    is_cuda, policy = _is_cuda(parts), config.policy
    first, *longer = CUDA_CONTEXTS if is_cuda else CPU_CONTEXTS
    contexts = (min(first, parts.max_context // 2), *longer)
    page_bytes = parts.runner.pool.page_bytes
    return Bounds(
        config.scheduler.max_rows,
        parts.max_context,
        policy.max_nodes,
        policy.max_batch_nodes,
        contexts,
        buckets_of(parts),
        most_pages=1 << 60 if is_cuda else MAX_CPU_BYTES // page_bytes,
        longest_ms=math.inf if is_cuda else MAX_CPU_RUN_MS,
        budget_s=CUDA_BUDGET_S if is_cuda else math.inf,
    )


def buckets_of(parts: Parts) -> tuple[int, ...]:
    """Returns the sizes to which the target's passes are padded; () if they are not padded."""
    return tuple(getattr(parts.runner, "buckets", ()))


def key_of(parts: Parts) -> Key:
    """Returns everything that times depend on: machine, model, drafters, and how passes are run."""
    runner = parts.runner
    decoder = runner.decoder
    passes = (
        "kernels" if runner.has_kernels else "torch" if decoder.native_loader.reason else str(decoder.layout)
    )
    graphs = parts.notes.get("graphs")
    drafters = {name: {**one.describe(), "context_bytes": None} for name, one in parts.drafters.items()}
    return {
        "device": device_name(runner.device),
        "cores": os.cpu_count(),
        "threads": parts.num_threads,
        "model_type": decoder.spec.model_type,
        "shape": shape_digest(decoder.spec),
        "drafters": {name: cost_file.digest(one) for name, one in drafters.items()},
        "dtype": str(decoder.dtype).removeprefix("torch."),
        "weights": decoder.native_loader.options.weights,
        "passes": passes,
        "graphs": isinstance(graphs, dict) and bool(graphs["value"]),
        "buckets": list(buckets_of(parts)),
        "page_size": runner.pool.spec.page_size,
        "torch": torch.__version__,
        "wager": _own_version(),
        "timed": TIMING_VERSION,
    }


def shape_digest(spec: DecoderSpec) -> str:
    """Returns a digest of the shape of a model, without its name and folder."""
    return cost_file.digest(asdict(spec))


def device_name(device: torch.device | str) -> str:
    """Returns the name of the processor or the CUDA device."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _own_version() -> str:
    try:
        return version("wager")
    except PackageNotFoundError:
        return ""


def _is_busy() -> bool:
    """Returns whether the machine's load is above the number of its cores."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1)


def _is_cuda(parts: Parts) -> bool:
    return torch.device(parts.runner.device).type == "cuda"
