"""Build an engine from a config: find the folder, load the target, size the memory, choose the drafter.

Everything that a config leaves to "auto" is decided here once, and each choice is noted with its reason in
`Parts.notes`, for `wager doctor`, banners and `/props`. What an idle engine may change later is
native_passes.py's.
"""

from __future__ import annotations

import gc
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from wager.config import CacheConfig, EngineConfig, with_values
from wager.costs import CostModel
from wager.draft import DRAFTERS, DraftSource, make_drafter, page_bytes
from wager.draft.base import Drafter, PoolShape
from wager.engine.calibrate import prepare_costs
from wager.engine.device import make_runner, warm
from wager.engine.engine import Engine, Parts
from wager.engine.native_passes import (
    pass_notes,
    try_native_passes,
    use_idle_moment,
    use_own_threads,
    wait_for_native_passes,
    warn_without_native_passes,
)
from wager.engine.scheduler import Memory, Scheduler
from wager.errors import CapacityError, ConfigError, ModelError
from wager.fetched import fetched_path, is_fetched
from wager.gguf.header import is_gguf
from wager.kvcache.pages import PageAllocator
from wager.kvcache.prefix import PrefixIndex
from wager.nn import kernels
from wager.nn.kernels.support import max_pool_slots
from wager.nn.models import load_target
from wager.nn.models.decoder import Decoder, DecoderSpec
from wager.nn.native.loader import PassOptions
from wager.nn.native.pack import return_freed_memory
from wager.nn.noise import NoiseSource
from wager.pairs import BUILT_IN, drafter_beside, find_pair, shipped_folder
from wager.policy import Controller, Experience, Ledger
from wager.policy.names import settings_from
from wager.target import TargetRunner
from wager.text.tokenizer import Tokenizer, has_tokenizer, model_eos_ids
from wager.threads import choose_threads

log = logging.getLogger("wager.engine")

_GIB = 1 << 30
CPU_MEMORY_SHARE = 0.25
"""The share of the machine's memory for K/V on a CPU, if the config does not say; other programs run there.
"""
MAX_CPU_GIB = 4
"""The most K/V memory on a CPU, if the config does not say: passes over more would be too slow to use."""
GPU_MEMORY_SHARE = 0.85
"""The share for K/V of the memory that is free on the device once the weights are loaded."""
CPU_PAGE_SIZE, CUDA_PAGE_SIZE = 32, 64
"""Tokens of a page; on a CUDA device as many keys as the attention kernel reads at once."""


@dataclass(frozen=True)
class Found:
    """A choice that was made for the user, and where it came from."""

    value: object
    source: str


def build_engine(config: EngineConfig, seed: int = 0) -> Engine:
    """Loads everything; the engine is ready for requests. Raises ModelError and others, with a line each."""
    device = pick_device(config.model.device)
    config = with_page_size(config, str(device.value))
    num_threads = choose_threads(config.threads).number
    torch.set_num_threads(num_threads)
    folder = find_folder(config.model.model)
    model = config.model
    decoder = load_target(
        folder, model.dtype, str(device.value), model.layout, pass_options_of(config, device.value)
    )
    tokenizer = load_tokenizer(folder, decoder)
    max_context = context_length(config.scheduler.max_context, decoder.spec)
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
    parts.num_threads = num_threads
    parts.notes = _notes(config, device, wanted, parts)
    parts.when_idle, parts.settle = use_idle_moment, wait_for_native_passes
    engine = Engine(parts)
    use_own_threads(engine)
    warm(engine)
    prepare_costs(engine, config)
    try_native_passes(engine)  # starts what has to be built: until here loading had the machine to itself
    if config.model.native == "on":
        warn_without_native_passes(engine)
    return engine


def with_page_size(config: EngineConfig, device: str) -> EngineConfig:
    """Returns the config with a page size."""
    if config.cache.page_size:
        return config
    is_cuda = torch.device(device).type == "cuda"
    return with_values(config, page_size=CUDA_PAGE_SIZE if is_cuda else CPU_PAGE_SIZE)


def context_length(asked: int, spec: DecoderSpec) -> int:
    """Returns the longest text in tokens; raises ConfigError if the model has no such positions.

    Rope scaling of the kind yarn reaches further than the config's own number of positions says.
    """
    scaled = spec.rope.original_max_position * spec.rope.factor if spec.rope.type == "yarn" else 0.0
    most = max(spec.max_position, int(scaled))
    if asked > most:
        raise ConfigError("max_context", asked, f"at most {most}, the number of positions of this model")
    return asked or spec.max_position


def pass_options_of(config: EngineConfig, device: object) -> PassOptions:
    """Returns what the networks are asked for; raises ConfigError if this device cannot use such weights."""
    model = config.model
    by_kernels = model.kernels != "off" and kernels.has_kernels(device)
    return PassOptions(model.native, model.weights, kernels=by_kernels, activations=model.activations)


def find_folder(model: str) -> Path:
    """Returns the place of a model: shipped or fetched, a local folder or GGUF file, or the hub's cache."""
    if not model:
        raise ModelError("no model given: name a folder, a GGUF file or a hub repository")
    shipped = shipped_folder(model)
    if shipped is not None and not shipped.exists():
        raise ModelError(f"{model}: ships with Wager, but is not in this installation")
    path = shipped or _fetched(model) or Path(model).expanduser()
    if path.is_dir() or is_gguf(path):
        return path
    if path.exists() or model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ModelError(f"{model}: no such model folder or GGUF file; `wager models` lists known names")
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model"]
        return Path(snapshot_download(model, allow_patterns=patterns))
    except Exception as error:
        raise ModelError(f"{model}: neither a local folder nor available from the hub ({error})") from error


def _fetched(model: str) -> Path | None:
    """Returns the file of a fetchable model, None for any other name; raises ModelError if it is missing."""
    path = fetched_path(model)
    if path is not None and not is_fetched(model):
        raise ModelError(f"{model} is not on this machine yet: `wager fetch {model}` brings it")
    return path


def load_tokenizer(folder: Path, decoder: Decoder) -> Tokenizer | None:
    """Returns the model's tokenizer, or None if it has none: such a model takes and returns token ids."""
    if not has_tokenizer(folder):
        return None
    tokenizer = Tokenizer.from_folder(folder)
    tokenizer.check_fits(decoder.spec.vocab_size)
    return tokenizer


def refuse_missing_device(device: str) -> None:
    """Raises ConfigError for a CUDA device that is not there."""
    if not device.startswith("cuda"):
        return
    if not torch.cuda.is_available():
        built = torch.backends.cuda.is_built()
        why = "no CUDA device was found" if built else "this build of torch has no CUDA"
        raise ConfigError("device", device, f"cpu or auto: {why}")
    number = int(device.partition(":")[2] or 0)
    if number >= torch.cuda.device_count():
        raise ConfigError("device", device, f"a device from cuda:0 to cuda:{torch.cuda.device_count() - 1}")


def pick_device(device: str) -> Found:
    """Returns the device that was asked for, otherwise a CUDA device if there is one."""
    if device != "auto":
        refuse_missing_device(device)
        return Found(device, "config")
    if torch.cuda.is_available():
        return Found("cuda", "a CUDA device is present")
    return Found("cpu", "no CUDA device is present")


def pick_drafter(asked: str, model: str, folder: Path) -> Found:
    """Returns the drafter that was asked for, otherwise the target's known partner, otherwise `lookup`."""
    if asked != "auto":
        return Found(asked, "config")
    beside = drafter_beside(folder)
    if beside is not None:
        return Found(str(beside), f"found beside the target: {beside.name}")
    match = find_pair(model)
    if match is not None:
        pair = match.pair
        if pair.drafter in BUILT_IN:
            return Found(pair.drafter, f"no drafter is trained for {pair.target} yet")
        try:
            return Found(str(find_folder(pair.drafter)), f"the known partner of {pair.target}")
        except ModelError as error:
            log.info("known drafter %s is not available: %s", pair.drafter, error)
            return Found("lookup", f"the known partner {pair.drafter} is not available here")
    return Found("lookup", "no drafter is known for this target")


def load_drafters(
    wanted: Found, runner: TargetRunner, config: EngineConfig, num_pages: int, max_context: int = 0
) -> dict[str, Drafter]:
    """Builds the drafter that was asked for, and `lookup` beside it; the policy chooses between them."""
    name = str(wanted.value)
    if name in ("", "none"):
        return {}
    shape = PoolShape(num_pages, config.cache.page_size, max_context)
    folder = name if name in DRAFTERS else str(find_folder(name))
    # The drafter's passes are of the target's kind.
    native = "off" if runner.decoder.native_loader.is_refused else "auto"
    source = DraftSource(
        dtype=runner.decoder.dtype,
        device=runner.device,
        layout=config.model.layout,
        options=runner.decoder.native_loader.options.for_drafter(native),
        kernels=config.model.kernels,
        min_match=config.policy.lookup_min,
        max_match=config.policy.lookup_max,
    )
    made = [make_drafter(kind, runner, shape, source) for kind in dict.fromkeys((folder, "lookup"))]
    return {drafter.name: drafter for drafter in made}


def size_memory(decoder: Decoder, config: EngineConfig, max_context: int, drafter: str = "none") -> int:
    """Returns the number of pages: as asked for, otherwise as many as the memory budget holds.

    A page has room for the drafter's context beside the target's. There are never more pages than the longest
    texts in all rows can use.
    """
    cache = config.cache
    if cache.num_pages:
        return cache.num_pages
    own_bytes = decoder.pool_spec(1, cache.page_size).page_bytes
    own_bytes += drafter_page_bytes(drafter, cache.page_size, decoder.dtype)
    most = config.scheduler.max_rows * -(-max_context // cache.page_size)
    if decoder.weights is not None:  # the kernels limit the pool
        most = min(most, max_pool_slots(decoder.spec.head_dim) // cache.page_size)
    pages = min(int(memory_budget(decoder, cache) // own_bytes), most)
    if pages < 1:
        raise CapacityError(f"the memory budget does not hold one page of {own_bytes} bytes")
    return pages


def drafter_page_bytes(drafter: str, page_size: int, dtype: torch.dtype) -> int:
    """Returns the bytes that a drafter, which need not be built yet, keeps per page."""
    name = drafter or "none"
    return page_bytes(name if name in DRAFTERS else find_folder(name), page_size, dtype)


def memory_budget(decoder: Decoder, cache: CacheConfig) -> float:
    """Returns the bytes for K/V."""
    if cache.memory_gib != "auto":
        return float(cache.memory_gib) * _GIB
    if torch.device(decoder.device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(decoder.device)
        return free * GPU_MEMORY_SHARE
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total * CPU_MEMORY_SHARE, MAX_CPU_GIB * _GIB)


def build_memory(num_pages: int, cache: CacheConfig) -> Memory:
    allocator = PageAllocator(num_pages, cache.page_size)
    index = PrefixIndex(cache.page_size, allocator) if cache.prefix_reuse else None
    return Memory(allocator, index, cache.memory_threshold)


def build_controller(config: EngineConfig, costs: CostModel | None = None) -> Controller:
    policy = config.policy
    experience = Experience(costs, Ledger(policy.ledger_floor))
    return Controller(policy.policy, experience, settings=settings_from(policy))


def give_back_memory() -> None:
    """Gives the memory of engines that nobody uses any more back to the system and to the device."""
    gc.collect()
    return_freed_memory()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


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
        "threads": parts.num_threads,
        "drafter": {"value": list(parts.drafters) or ["none"], "source": wanted.source},
        "policy": parts.controller.policy.name,
        "max_context": parts.max_context,
        "kv_pages": pool.spec.num_pages,
        "kv_bytes": pool.bytes,
        "draft_context_bytes": pool.spec.num_pages
        * drafter_page_bytes(str(wanted.value), pool.spec.page_size, decoder.dtype),
    }
