"""Build an engine from a config: find the folder, load the target, size the memory, choose the drafter.

Everything left to "auto" is decided here once, and each choice is noted with its reason (`Parts.notes`), for
`wager doctor`, banners and `/props`. It runs nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from wager.config import CacheConfig, EngineConfig, with_values
from wager.draft import DraftSource, kind_of, make_drafter
from wager.draft.base import Drafter, PoolShape
from wager.draft.block import BlockDrafter
from wager.draft.chain import ChainDrafter
from wager.engine.calibrate import prepare_costs
from wager.engine.device import make_runner, warm
from wager.engine.engine import Engine, Parts
from wager.engine.scheduler import Memory, Scheduler
from wager.errors import CapacityError, ModelError
from wager.kvcache.pages import PageAllocator
from wager.kvcache.prefix import PrefixIndex
from wager.nn import kernels
from wager.nn.models import dflash_spec, load_target, read_spec
from wager.nn.models.decoder import Decoder
from wager.nn.models.dflash import DFlash
from wager.nn.native.library import hold, wait_for_library
from wager.nn.native.switch import HOLD_S, Wish
from wager.nn.noise import NoiseSource
from wager.nn.weights import read_config
from wager.pairs import drafter_beside, find_pair, shipped_folder
from wager.policy import Controller, CostModel, Experience, Ledger
from wager.policy.settings import settings_from
from wager.target import TargetRunner
from wager.text.tokenizer import Tokenizer, model_eos_ids

log = logging.getLogger("wager.engine")

_GIB = 1 << 30
_CPU_SHARE = 0.25  # of the machine's memory for K/V when nobody says
_GPU_SHARE = 0.85  # of what the device has free once the weights are there


@dataclass(frozen=True)
class Found:
    """A choice made for the user, and why."""

    value: object
    source: str


def build_engine(config: EngineConfig, seed: int = 0) -> Engine:
    """Load everything; the engine is ready for requests. Raises ModelError and its kin, one line each."""
    device = pick_device(config.model.device)
    config = with_page_size(config, str(device.value))
    set_threads(config.threads)
    folder = find_folder(config.model.model)
    model = config.model
    decoder = load_target(folder, model.dtype, str(device.value), model.layout, wish_of(config, device.value))
    tokenizer = load_tokenizer(folder, decoder)
    max_context = config.scheduler.max_context or decoder.spec.max_position
    wanted = pick_drafter(config.model.drafter, config.model.model, folder)
    num_pages = size_memory(decoder, config, max_context, str(wanted.value))
    runner = make_runner(decoder, num_pages, config, max_context)
    drafters = load_drafters(wanted, runner, config, num_pages, max_context)
    parts = Parts(
        runner,
        tokenizer,
        drafters,
        build_controller(config),
        Scheduler(config.scheduler, build_memory(num_pages, config.cache)),
        NoiseSource(decoder.spec.vocab_size, decoder.device, dtype=noise_dtype(decoder)),
        max_context,
        tokenizer.eos_ids if tokenizer is not None else model_eos_ids(folder),
        seed,
        folder,
    )
    parts.notes = _notes(config, device, wanted, parts)
    parts.when_idle, parts.settle = use_idle_moment, settle
    engine = Engine(parts)
    warm(engine)
    prepare_costs(engine, config)
    quicken(engine)  # whatever is to be built is built from now on: loading has had the machine to itself
    return engine


def with_page_size(config: EngineConfig, device: str) -> EngineConfig:
    """The config with a size of pages: on a CUDA device one that holds the keys a kernel reads at a time."""
    if config.cache.page_size:
        return config
    return with_values(config, page_size=64 if torch.device(device).type == "cuda" else 32)


def wish_of(config: EngineConfig, device: object) -> Wish:
    """What the networks are asked for; ConfigError where this device has no passes with such weights."""
    by_kernels = config.model.kernels != "off" and kernels.has_kernels(device)
    return Wish(config.model.native, config.model.weights, kernels=by_kernels)


def use_idle_moment(engine: Engine) -> None:
    """What may change or be made ready only while nothing runs."""
    quicken(engine)
    hold(HOLD_S)
    engine.runner.when_idle()


def quicken(engine: Engine, *, wait: bool = False) -> None:
    """Let the networks of an idle engine change to native passes where those have become ready.

    What the old passes left behind goes: their times, which are void, and cached prefixes, which they rounded
    in their own way.
    """
    parts, changed = engine.parts, False
    for network in networks(parts):  # each of them, whatever the ones before it did
        changed |= network.quicken(wait=wait)
        network.switch.order()
    if not changed:
        return
    engine.controller.experience.costs = parts.make_costs()
    if engine.scheduler.memory.index is not None:
        engine.scheduler.memory.index.clear()
    parts.notes |= pass_notes(parts)
    log.info("passes are native from here on: %s", parts.runner.decoder.layout)


def settle(engine: Engine, tell: Callable[[str], None]) -> None:
    """Wait for native passes that are still being built, and change to them; `tell` hears why it takes long.

    For benchmarks, whose figures must not change halfway. Precondition: nothing runs.
    """
    if not any(network.switch.may_come for network in networks(engine.parts)):
        return
    tell("native passes are being built for this machine, once")
    wait_for_library()
    quicken(engine, wait=True)


def networks(parts: Parts) -> list[Decoder | DFlash]:
    """Every network of an engine."""
    found: list[Decoder | DFlash] = [parts.runner.decoder]
    for drafter in parts.drafters.values():
        if isinstance(drafter, BlockDrafter):
            found.append(drafter.net)
        elif isinstance(drafter, ChainDrafter):
            found.append(drafter.model)
    return found


def pass_notes(parts: Parts) -> dict[str, object]:
    """How the target's passes are run, why not natively where they are not, and how the drafters'."""
    decoder = parts.runner.decoder
    reason = decoder.switch.reason
    passes = {"value": "torch" if reason else "native", "source": reason or "auto"}
    if parts.runner.has_kernels:
        passes = {"value": "kernels", "source": "auto"}
    drafters = {name: drafter.describe() for name, drafter in parts.drafters.items()}
    return {"passes": passes, "layout": str(decoder.layout), "drafters": drafters}


def find_folder(model: str) -> Path:
    """The folder of a name: one that ships, a local folder, or one on the hub that is (or can be) cached."""
    if not model:
        raise ModelError("no model given: name a folder or a hub repository")
    shipped = shipped_folder(model)
    if shipped is not None and not shipped.is_dir():
        raise ModelError(f"{model}: ships with Wager, but is not in this installation")
    path = shipped or Path(model).expanduser()
    if path.is_dir():
        return path
    if path.exists() or model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ModelError(f"{model}: no such model folder")
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model"]
        return Path(snapshot_download(model, allow_patterns=patterns))
    except Exception as error:
        raise ModelError(f"{model}: neither a folder here nor to be had from the hub ({error})") from error


def load_tokenizer(folder: Path, decoder: Decoder) -> Tokenizer | None:
    """The folder's tokenizer; None where it has none at all: such a model takes and gives token ids."""
    if not any((folder / name).exists() for name in _TOKENIZER_FILES):
        return None
    tokenizer = Tokenizer.from_folder(folder)
    tokenizer.check_fits(decoder.spec.vocab_size)
    return tokenizer


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def pick_device(device: str) -> Found:
    if device != "auto":
        return Found(device, "config")
    if torch.cuda.is_available():
        return Found("cuda", "a CUDA device is present")
    return Found("cpu", "no CUDA device is present")


def set_threads(threads: int) -> None:
    """Threads for CPU passes: as asked, or the cores this process may use."""
    wanted = threads or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else threads
    if wanted and torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)


def pick_drafter(asked: str, model: str, folder: Path) -> Found:
    """What drafts: as asked, else the known partner of this target, else lookup."""
    if asked != "auto":
        return Found(asked, "config")
    beside = drafter_beside(folder)
    if beside is not None:
        return Found(str(beside), f"found beside the target: {beside.name}")
    match = find_pair(model)
    if match is not None:
        pair = match.pair
        try:
            return Found(str(find_folder(pair.drafter)), f"the known partner of {pair.target}")
        except ModelError as error:
            log.info("known drafter %s is not available: %s", pair.drafter, error)
            return Found("lookup", f"the known partner {pair.drafter} is not available here")
    return Found("lookup", "no drafter is known for this target")


def load_drafters(
    wanted: Found, runner: TargetRunner, config: EngineConfig, num_pages: int, max_context: int = 0
) -> dict[str, Drafter]:
    """The drafter asked for; a trained one has lookup beside it, and the bet chooses between them."""
    name = str(wanted.value)
    if name in ("", "none"):
        return {}
    shape = PoolShape(num_pages, config.cache.page_size, max_context)
    folder = name if name == "lookup" else str(find_folder(name))
    native = "off" if runner.decoder.switch.is_refused else "on"  # as the target, however small it is
    source = DraftSource(
        dtype=runner.decoder.dtype,
        device=runner.device,
        layout=config.model.layout,
        wish=replace(runner.decoder.switch.wish, native=native, guesses=True),
        kernels=config.model.kernels,
        min_match=config.policy.lookup_min,
        max_match=config.policy.lookup_max,
    )
    made = [make_drafter(kind, runner, shape, source) for kind in dict.fromkeys((folder, "lookup"))]
    return {drafter.name: drafter for drafter in made}


def size_memory(decoder: Decoder, config: EngineConfig, max_context: int, drafter: str = "none") -> int:
    """Pages: as asked, else what the memory budget holds, at most what all rows could ever use.

    A page carries the drafter's context beside the target's, so both count.
    """
    cache = config.cache
    if cache.num_pages:
        return cache.num_pages
    page_bytes = decoder.pool_spec(1, cache.page_size).page_bytes
    page_bytes += drafter_page_bytes(drafter, cache.page_size, decoder.dtype)
    most = config.scheduler.max_rows * -(-max_context // cache.page_size)
    pages = min(int(memory_budget(decoder, cache) // page_bytes), most)
    if pages < 1:
        raise CapacityError(f"the memory budget does not hold one page of {page_bytes} bytes")
    return pages


def drafter_page_bytes(drafter: str, page_size: int, dtype: torch.dtype) -> int:
    """What a drafter keeps per page; 0 for those that keep nothing there."""
    if drafter in ("", "none", "lookup"):
        return 0
    values = read_config(find_folder(drafter))
    spec = dflash_spec.read_spec(values) if kind_of(values) == "block" else read_spec(values)
    per_slot = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * dtype.itemsize
    return int(per_slot * page_size)


def memory_budget(decoder: Decoder, cache: CacheConfig) -> float:
    """Bytes for K/V."""
    if cache.memory_gib != "auto":
        return float(cache.memory_gib) * _GIB
    if torch.device(decoder.device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(decoder.device)
        return free * _GPU_SHARE
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total * _CPU_SHARE, 4 * _GIB)


def build_memory(num_pages: int, cache: CacheConfig) -> Memory:
    allocator = PageAllocator(num_pages, cache.page_size)
    index = PrefixIndex(cache.page_size, allocator) if cache.prefix_reuse else None
    return Memory(allocator, index, cache.memory_threshold)


def build_controller(config: EngineConfig, costs: CostModel | None = None) -> Controller:
    policy = config.policy
    experience = Experience(costs, Ledger(policy.ledger_floor))
    return Controller(policy.policy_name, experience, settings=settings_from(policy))


def noise_dtype(decoder: Decoder) -> torch.dtype:
    return torch.float64 if decoder.dtype == torch.float64 else torch.float32


def _notes(config: EngineConfig, device: Found, wanted: Found, parts: Parts) -> dict[str, object]:
    decoder, pool = parts.runner.decoder, parts.runner.pool
    return {
        "model": config.model.model,
        "model_type": decoder.spec.model_type,
        "device": {"value": str(decoder.device), "source": device.source},
        "dtype": str(decoder.dtype).removeprefix("torch."),
        **pass_notes(parts),
        "threads": torch.get_num_threads(),
        "drafter": {"value": list(parts.drafters) or ["none"], "source": wanted.source},
        "policy": parts.controller.policy.name,
        "max_context": parts.max_context,
        "kv_pages": pool.spec.num_pages,
        "kv_bytes": pool.bytes,
        "draft_context_bytes": pool.spec.num_pages
        * drafter_page_bytes(str(wanted.value), pool.spec.page_size, decoder.dtype),
    }
