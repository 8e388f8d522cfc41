"""What passes cost on this machine, before the first request asks: short warm runs, kept for the next start.

On a CUDA device they are made at the start, where no calibration of such an engine is stored; on a CPU, where
somebody who waits would notice, run by run while a server is idle. They leave nothing behind but times, which
the cost model takes for a few samples each and goes on correcting. Which runs there are is cost_sweep.py's,
how one is timed pass_clock.py's, where times are kept cost_file.py's. Called by assemble.py.
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
from wager.engine import cost_file
from wager.engine.cost_file import Calibration, Key
from wager.engine.cost_sweep import Bounds, Sweep
from wager.engine.engine import Engine, Parts
from wager.engine.pass_clock import PassClock
from wager.errors import one_line
from wager.nn.models.decoder import DecoderSpec
from wager.policy import CostModel

__all__ = ["CostRuns", "key_of", "prepare_costs", "shape_digest"]

log = logging.getLogger("wager.engine")

_CONTEXTS = (512, 4096, 16384)
_CPU_CONTEXTS = (256,)
_BUDGET_S = 30.0  # of a start on a device: what was not reached by then is left to learning
_LONGEST_MS = 60.0  # on a CPU, where a request may come at any moment
_TIMED = 2  # the way in which passes are timed: times of another are not believed
_CPU_BYTES = 64 << 20  # that runs on a CPU may touch: there memory is only taken when it is first used


def prepare_costs(engine: Engine, config: EngineConfig) -> None:
    """Let an engine begin with what is known of its costs; on a CUDA device find out now if nothing is."""
    parts, runs = engine.parts, CostRuns(engine, config)
    parts.make_costs = runs.fresh_costs
    engine.controller.experience.costs = runs.fresh_costs()
    if runs.is_wanted and _is_cuda(parts):
        runs.finish()
    elif runs.is_wanted:
        parts.spare_time = runs.go_on


class CostRuns:
    """The calibration of one engine: what is known, and the runs still to be made."""

    def __init__(self, engine: Engine, config: EngineConfig) -> None:
        self._engine, self._config = engine, config
        self.is_wanted = config.policy.calibrate
        self._key: Key = {}
        self._known: Calibration | None = None
        self._sweep: Sweep | None = None
        self._runs: Iterator[None] = iter(())

    def fresh_costs(self) -> CostModel:
        """A cost model that begins with what is known of passes as they are run now."""
        parts = self._engine.parts
        costs, key = CostModel(buckets=buckets_of(parts)), key_of(parts)
        if key != self._key:
            self._key, self._sweep = key, None
            self._known = cost_file.read(key) if self.is_wanted else None
            self._note("none" if self._known is None else f"measured {self._known.age} ago")
        if self._known is not None:
            costs.load(self._known.passes, self._known.drafts)
        return costs

    def finish(self) -> None:
        """Make all runs now, if nothing is known."""
        while self._advance():
            pass

    def go_on(self) -> bool:
        """Make one run, where its time can be kept; True while there is more to do.

        Not before the passes are what they will stay, nor while others keep the machine busy. Precondition:
        nothing runs or waits.
        """
        settled = not self._engine.runner.decoder.switch.may_come
        if not settled or cost_file.folder() is None or (self._sweep is None and _is_busy()):
            return False
        return self._advance()

    def _advance(self) -> bool:
        """Make one run. Whatever fails ends the runs and no more: costs are then learned from requests."""
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
        """All runs are made: keep their times, and let the engine begin with them."""
        self._known = Calibration(self._key, tuple(sweep.passes), tuple(sweep.drafts), time.time())
        # A device works for itself: there a time that stands out is one of its own.
        is_restless = sweep.is_restless and not _is_cuda(self._engine.parts)
        if is_restless or not sweep.passes:
            self._give_up("the machine was busy" if sweep.passes else "no room for a single run")
            return
        cost_file.write(self._known)
        self._engine.controller.experience.costs.load(sweep.passes, sweep.drafts)
        self._note(f"measured in {sweep.spent_s:.1f} s")
        log.info("calibrated: %s in %.1f s", self._known.summary, sweep.spent_s)

    def _give_up(self, reason: str) -> None:
        """Costs are learned from requests then, until the next start."""
        log.warning("costs are not calibrated: %s", reason)
        self._known = Calibration(self._key, (), (), time.time())
        self._note(f"failed: {reason}")

    def _note(self, source: str) -> None:
        known = self._known
        note = {"value": "none" if known is None else known.summary, "source": source}
        self._engine.parts.notes["calibration"] = note if self.is_wanted else {**note, "source": "off"}


def bounds_of(parts: Parts, config: EngineConfig) -> Bounds:
    """What is worth timing for an engine of this configuration, and what may be spent on it."""
    is_cuda, policy = _is_cuda(parts), config.policy
    first, *longer = _CONTEXTS if is_cuda else _CPU_CONTEXTS
    contexts = (min(first, parts.max_context // 2), *longer)
    page_bytes = parts.runner.pool.page_bytes
    return Bounds(
        config.scheduler.max_rows,
        parts.max_context,
        policy.max_nodes,
        policy.max_batch_nodes,
        contexts,
        buckets_of(parts),
        most_pages=1 << 60 if is_cuda else _CPU_BYTES // page_bytes,
        longest_ms=math.inf if is_cuda else _LONGEST_MS,
        budget_s=_BUDGET_S if is_cuda else math.inf,
    )


def buckets_of(parts: Parts) -> tuple[int, ...]:
    """Sizes to which the target's passes are padded; () where they are not."""
    return tuple(getattr(parts.runner, "buckets", ()))


def key_of(parts: Parts) -> Key:
    """All that times hang on. Another machine, another model or another way of passes is another key."""
    runner = parts.runner
    decoder = runner.decoder
    way = "kernels" if runner.has_kernels else "torch" if decoder.switch.reason else str(decoder.layout)
    graphs = parts.notes.get("graphs")
    drafters = {name: {**one.describe(), "context_bytes": None} for name, one in parts.drafters.items()}
    return {
        "device": device_name(runner.device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "model_type": decoder.spec.model_type,
        "shape": shape_digest(decoder.spec),
        "drafters": {name: cost_file.digest(one) for name, one in drafters.items()},
        "dtype": str(decoder.dtype).removeprefix("torch."),
        "weights": decoder.switch.wish.weights,
        "passes": way,
        "graphs": isinstance(graphs, dict) and bool(graphs["value"]),
        "buckets": list(buckets_of(parts)),
        "page_size": runner.pool.spec.page_size,
        "torch": torch.__version__,
        "wager": _own_version(),
        "timed": _TIMED,
    }


def shape_digest(spec: DecoderSpec) -> str:
    """The shape of a model, whatever it is called and wherever it lies."""
    return cost_file.digest(asdict(spec))


def device_name(device: torch.device | str) -> str:
    """The processor's or the CUDA device's own name."""
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
    """Whether more wanted to run lately than there are cores."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1)


def _is_cuda(parts: Parts) -> bool:
    return torch.device(parts.runner.device).type == "cuda"
