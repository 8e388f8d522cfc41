"""The grown pair on a device without weights on disk, and what the scripts of this folder share.

A model folder is written that lacks only the weights. While the engine is loaded from it, `wager.train.grow`
makes the weights instead of a reader. `BenchSession` makes everything when it is first used. It knows no
benchmark and is used by all of them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from bench.results import write_result
from wager.bench.suites import BenchPrompt, load_suite
from wager.garbage import settle_garbage
from wager.llm import LLM
from wager.nn import models
from wager.nn.models import dflash
from wager.nn.weights import WeightReader
from wager.pairs import DEMO_FOLDER
from wager.train.grow import DRAFTER_NAME, GrowthPlan, SmallPair, plan_growth
from wager.train.grow_tensors import GrownReader

SHAPE, TINY_SHAPE = "8b", "hidden=320,layers=24"
ROWS = 64
"""Most requests that may run together, which is the largest batch measured."""
MEMORY_GIB, TINY_MEMORY_GIB = 16.0, 0.25
REFERENCE_TB_PER_S = 4.25
"""Read rate of an H200 in an earlier measurement, in terabytes per second."""


def plan_pair(shape: str, dtype: torch.dtype) -> GrowthPlan:
    """The plan that grows the demo pair to `shape`."""
    return plan_growth(SmallPair(DEMO_FOLDER / "target", DEMO_FOLDER / "drafter"), shape, dtype)


def plan_assistant(vocab_size: int, dtype: torch.dtype) -> GrowthPlan:
    """The plan that gives the demo's small chain model the vocabulary size of the grown target."""
    folder = DEMO_FOLDER / "chain"
    own = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = f"hidden={own['hidden_size'] + 64},vocab={vocab_size}"
    if vocab_size == own["vocab_size"]:
        shape = f"hidden={own['hidden_size']}"
    return plan_growth(SmallPair(folder), shape, dtype)


def write_folder_without_weights(plan: GrowthPlan, folder: Path) -> None:
    """Write a model folder as `wager grow` does, without the weights."""
    folder.mkdir(parents=True)
    for path in plan.target.folder.iterdir():
        if path.is_file() and path.name != "config.json" and ".safetensors" not in path.name:
            shutil.copyfile(path, folder / path.name)
    nets = [(folder, plan.target)] + ([(folder / DRAFTER_NAME, plan.drafter)] if plan.drafter else [])
    for place, net in nets:
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps(dict(net.config), indent=1), encoding="utf-8")


@contextmanager
def grown_weights(plan: GrowthPlan, folder: Path) -> Iterator[None]:
    """While this is active, weights of `folder` and of the drafter inside it are grown instead of read."""
    nets = {folder: plan.target, folder / DRAFTER_NAME: plan.drafter}

    def reader(path: str | Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> WeightReader:
        net = nets.get(Path(path))
        if net is None:
            return WeightReader(path, dtype, device)
        return GrownReader(net.folder, net.growth, dtype, device, plan.seed)

    with ExitStack() as stack:
        for module in (models, dflash):
            stack.enter_context(patch.object(module, "WeightReader", reader))
        yield


def load_llm(plan: GrowthPlan, folder: Path, device: torch.device, **settings: Any) -> LLM:
    """Load the engine around the grown pair with its default settings, except that page reuse is off."""
    values: dict[str, Any] = {"prefix_reuse": False, "max_rows": ROWS, "device": str(device)} | settings
    with grown_weights(plan, folder):
        return LLM(str(folder), str(folder / DRAFTER_NAME), dtype=_name(plan.dtype), **values)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass
class BenchSession:
    """The pair, clock and result files of one process.

    Results go to `out`, or to bench/results if it is None.
    """

    shape: str = SHAPE
    tiny: bool = False
    out: Path | None = None
    began: float = field(default_factory=time.perf_counter)
    errors: list[dict[str, str]] = field(default_factory=list)

    @cached_property
    def device(self) -> torch.device:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @cached_property
    def plan(self) -> GrowthPlan:
        return plan_pair(self.shape, torch.bfloat16 if self.is_cuda else torch.float32)

    @cached_property
    def folder(self) -> Path:
        self._place = tempfile.TemporaryDirectory(prefix="grown-")
        folder = Path(self._place.name) / f"demo-{self.shape.partition(',')[0].replace('=', '-')}"
        write_folder_without_weights(self.plan, folder)
        return folder

    @cached_property
    def llm(self) -> LLM:
        self.say(f"growing the demo pair to {self.shape}: {self.plan.num_bytes / 1e9:.2f} GB")
        # This holds the longest context measured; the peers need the rest of the device's memory.
        memory = TINY_MEMORY_GIB if self.tiny else MEMORY_GIB
        own = {} if self.is_cuda else {"native": "off", "threads": torch.get_num_threads()}
        llm = load_llm(self.plan, self.folder, self.device, memory_gib=memory, **own)
        llm.settle(self.say)
        settle_garbage()  # a server does so, too, because its engine lives as long as the process
        self.synchronize()
        self.say("the engine is loaded")
        return llm

    @cached_property
    def prompts(self) -> list[BenchPrompt]:
        return load_suite("demo")

    @cached_property
    def bytes_per_s(self) -> float:
        """Bytes per second that a kernel which only reads gets from memory."""
        if self.is_cuda:
            from bench.gpu.kernel_clock import Clock, Shape, read_rate

            return read_rate(Shape(), Clock(self.device)) * 1e6
        return _host_read_rate()

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def say(self, text: str) -> None:
        print(f"[{self.elapsed:6.1f} s] {text}", flush=True)

    @contextmanager
    def case(self, label: str) -> Iterator[None]:
        """Run a part that may fail without stopping the others; result files list the failure."""
        try:
            yield
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0][:400]
            self.errors.append({"case": label, "error": text})
            self.say(f"{label} FAILED: {text}")

    def save(self, name: str, settings: Mapping[str, object], data: object) -> Path:
        """Write gpu_NAME.json with what is known so far."""
        found: dict[str, object] = {"seconds": round(self.elapsed, 1), "errors": self.errors}
        found |= {"drafter_failures": self.drafter_failures, "figures": data}
        path = None if self.out is None else self.out / f"gpu_{name}.json"
        return write_result(f"gpu_{name}", self.described() | dict(settings), found, path)

    @property
    def drafter_failures(self) -> int:
        """Number of drafts that failed so far; their requests continued without a draft."""
        return self.llm.engine.telemetry.drafter_failures if "llm" in self.__dict__ else 0

    def described(self) -> dict[str, object]:
        """Model, shape and device, for the result file."""
        return {
            "shape": self.shape,
            "target": self.plan.big.target.__dict__ | _outer(self.plan),
            "drafter": self.plan.big.drafter.__dict__ if self.plan.big.drafter else None,
            "grown_from": dict(self.plan.target.config["wager_grown_from"]),
            "dtype": _name(self.plan.dtype),
            "device": device_facts(self.device),
        }


def _outer(plan: GrowthPlan) -> dict[str, object]:
    big = plan.big
    return {"hidden_size": big.hidden_size, "vocab_size": big.vocab_size, "max_position": big.max_position}


def device_facts(device: torch.device) -> dict[str, object]:
    """The device and the versions of its libraries."""
    if device.type != "cuda":
        return {"name": "cpu", "torch": torch.__version__}
    import triton

    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "memory_gib": round(found.total_memory / (1 << 30), 1),
        "multiprocessors": found.multi_processor_count,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def _host_read_rate() -> float:
    source = torch.ones(1 << 22)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        source.sum()
        times.append(time.perf_counter() - start)
    return source.nbytes / min(times)
