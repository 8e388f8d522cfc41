"""The checks of `wager doctor`: machine, model folder, and whether a drafter fits its target.

Each answers with findings and raises nothing of Wager's own: a broken folder is a finding, not an ending. It
reads configs and file headers and loads no weights; nothing is fetched. How findings look is doctor.py's.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wager.config import EngineConfig
from wager.errors import WagerError, one_line
from wager.pairs import BUILT_IN, drafter_beside, find_pair, shipped_folder
from wager.resolve import Resolved

if TYPE_CHECKING:
    from wager.nn.models.decoder import DecoderSpec
    from wager.nn.models.dflash_spec import DFlashSpec

# Oldest releases that are supported, as in pyproject.toml.
PACKAGES = {
    "torch": "2.11",
    "transformers": "5.17",
    "numpy": "2.0",
    "scipy": "1.13",
    "safetensors": "0.8",
    "tokenizers": "0.23.1",
    "huggingface_hub": "1.31",
    "typer": "0.28",
    "rich": "13.8",
}
OLDEST_PYTHON = (3, 11)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


class Finding(NamedTuple):
    """One thing that was looked at. `status`: ok, warn or fail; `source`: where the value was read."""

    name: str
    status: str
    detail: str
    source: str = ""


class Target(NamedTuple):
    """A target as far as its config tells."""

    folder: Path
    values: dict[str, Any]
    spec: DecoderSpec


def check_machine(config: EngineConfig) -> Iterator[Finding]:
    """Python, packages and the device."""
    version = platform.python_version()
    status = "ok" if sys.version_info >= OLDEST_PYTHON else "fail"
    yield Finding("python", status, version, sys.executable)
    for name, oldest in PACKAGES.items():
        yield _package(name, oldest)
    yield from _guarded("device", lambda: _device(config.model.device))
    if config.model.weights not in ("auto", "full"):
        yield from _guarded("rounding", lambda: _rounding(config))


def check_target(config: EngineConfig) -> tuple[list[Finding], Target | None]:
    """The model's folder, config, weights and tokenizer; the target itself where its config can be read."""
    name = config.model.model
    folder = local_folder(name)
    if folder is None:
        return [_absent("model", name)], None
    found = [Finding("model folder", "ok", str(folder), name)]
    target: Target | None = None
    try:
        target = _read_target(folder)
    except WagerError as error:
        found.append(Finding("model config", "fail", one_line(error), str(folder / "config.json")))
    else:
        found.append(_target_line(target))
    found += _guarded("weights", lambda: _weights(folder))
    found += _guarded("tokenizer", lambda: _tokenizer(folder, target))
    return found, target


def check_drafter(config: EngineConfig, target: Target | None) -> Iterator[Finding]:
    """Which drafter will be used, and whether it fits."""
    asked = config.model.drafter
    if asked in BUILT_IN:
        yield Finding("drafter", "ok", asked, "asked for")
        return
    folder = drafter_folder(config, target)
    if folder is None:
        yield _no_drafter(asked, config.model.model)
        return
    yield Finding(
        "drafter folder", "ok", str(folder), "asked for" if asked != "auto" else "beside the target"
    )
    yield from _guarded("drafter weights", lambda: _weights(folder, "drafter weights"))
    yield from _guarded("drafter config", lambda: _fit(folder, target))


def check_passes(config: EngineConfig, target: Target | None) -> Iterator[Finding]:
    """How the target's passes will run, and why not by something quicker."""
    if target is not None:
        yield from _guarded("passes", lambda: _passes(config, target))


def check_calibration(config: EngineConfig, target: Target | None) -> Iterator[Finding]:
    """The costs that were measured of this model on this machine, and when."""
    if not config.policy.calibrate:
        yield Finding("calibration", "ok", "none: costs are learned from requests", "asked for")
    elif target is not None:
        yield from _guarded("calibration", lambda: _calibrations(config, target))


def drafter_folder(config: EngineConfig, target: Target | None) -> Path | None:
    """The drafter's folder, where it has one and it is here."""
    asked = config.model.drafter
    if asked != "auto":
        return None if asked in BUILT_IN else local_folder(asked)
    beside = drafter_beside(target.folder) if target is not None else None
    match = find_pair(config.model.model)
    return beside or (local_folder(match.pair.drafter) if match is not None else None)


def decide(settings: Resolved[EngineConfig], target: Target | None) -> Resolved[EngineConfig]:
    """The settings with every "auto" decided that can be decided without loading, each with its reason."""
    import torch

    from wager.nn.models.hf_config import choose_dtype

    config = settings.config
    if config.model.device == "auto":
        has_cuda = torch.cuda.is_available()
        reason = "auto: a CUDA device is here" if has_cuda else "auto: no CUDA device is here"
        settings = settings.choose("device", "cuda" if has_cuda else "cpu", reason)
    if config.threads == 0:
        settings = settings.choose("threads", usable_cores(), "0: the cores this process may use")
    if target is None:
        return settings
    source = f"auto: {target.folder / 'config.json'}"
    if config.model.dtype == "auto":
        dtype = choose_dtype("auto", target.values, str(settings.value("device")))
        settings = settings.choose("dtype", dtype.name, f"auto: {dtype.reason}")
    if config.scheduler.max_context == 0:
        settings = settings.choose("max_context", target.spec.max_position, source.replace("auto", "0"))
    if config.model.drafter == "auto":
        folder = drafter_folder(config, target)
        reason = "auto: none is here" if folder is None else "auto: found here"
        settings = settings.choose("drafter", "lookup" if folder is None else str(folder), reason)
    return settings


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_folder(name: str) -> Path | None:
    """The folder of a model that is here: one that ships, a path, or a published name in the download cache.

    The same as the engine's `find_folder`, but nothing is fetched.
    """
    shipped = shipped_folder(name)
    if shipped is not None:
        return shipped if shipped.is_dir() else None
    path = Path(name).expanduser()
    if name and path.is_dir():
        return path
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return None
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except Exception:  # the library has many ways to say that it is not there
        return None


def _guarded(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """A check's findings up to where it broke, and then the reason."""
    found: list[Finding] = []
    try:
        found.extend(check())
    except WagerError as error:
        found.append(Finding(name, "fail", one_line(error)))
    except Exception as error:  # doctor looks at broken things: whatever breaks is what it was asked for
        found.append(Finding(name, "fail", f"{type(error).__name__}: {one_line(error)}"))
    return found


def _package(name: str, oldest: str) -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "fail", f"not installed; needs {oldest} or newer", "package")
    if _numbers(version) < _numbers(oldest):
        return Finding(name, "fail", f"{version}; needs {oldest} or newer", "package")
    return Finding(name, "ok", version, "package")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _device(asked: str) -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        detail = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        yield Finding("device", "ok", detail, "cuda")
    elif asked.startswith("cuda"):
        yield Finding("device", "fail", f"{asked} was asked for, and there is no CUDA device", "config")
    else:
        gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        yield Finding("device", "ok", f"cpu, {usable_cores()} cores, {gib:.0f} GiB", "no CUDA device")


def _rounding(config: EngineConfig) -> Iterator[Finding]:
    """Whether this device has passes with weights rounded as asked for."""
    from wager.engine.assemble import pick_device, wish_of
    from wager.nn.kernels.narrow_layers import Narrowing

    bits = wish_of(config, pick_device(config.model.device).value).narrow_bits
    detail = str(Narrowing(bits)) if bits is not None else config.model.weights
    yield Finding("rounding", "ok", detail, "by kernels" if bits is not None else "on the processor")


def _passes(config: EngineConfig, target: Target) -> Iterator[Finding]:
    import torch

    from wager.engine.assemble import pick_device, wish_of
    from wager.nn.models.hf_config import pick_dtype
    from wager.nn.native import build
    from wager.nn.native.switch import Switch

    if config.model.device.startswith("cuda") and not torch.cuda.is_available():
        return  # the device's own finding says so
    device = str(pick_device(config.model.device).value)
    wish, dtype = wish_of(config, device), pick_dtype(config.model.dtype, target.values, device)
    if wish.kernels:
        yield Finding("passes", "ok", "by kernels", device)
        return
    example = torch.empty(0, dtype=dtype, device=device)
    switch, built = Switch(wish, config.model.layout, example, 4 * target.spec.num_weights), build.find()
    if switch.is_refused or build.compiler() is None:
        yield Finding("passes", "ok", "plain torch", switch.reason or built.reason)
    elif built.path is not None:
        yield Finding("passes", "ok", "native", built.reason)
    else:
        later = ", and the model is started again" if switch.is_large else ""
        yield Finding("passes", "ok", f"plain torch until native ones are built{later}", built.reason)


def _calibrations(config: EngineConfig, target: Target) -> Iterator[Finding]:
    from wager.engine import cost_file
    from wager.engine.calibrate import device_name, shape_digest

    device = device_name("cuda" if _has_cuda(config) else "cpu")
    wanted = {"device": device, "shape": shape_digest(target.spec)}
    found = [one for one in cost_file.stored() if all(one.key.get(k) == wanted[k] for k in wanted)]
    for one in found:
        drafters = one.key.get("drafters")
        beside = ", ".join(drafters) if isinstance(drafters, dict) and drafters else "no drafter"
        detail = f"{one.summary}; {one.key.get('dtype')}, {one.key.get('passes')}, {beside}"
        yield Finding("calibration", "ok", detail, f"{one.age} old")
    if not found:
        yield Finding(
            "calibration", "ok", "none yet: costs are learned from requests", str(cost_file.folder())
        )


def _has_cuda(config: EngineConfig) -> bool:
    import torch

    return config.model.device != "cpu" and torch.cuda.is_available()


def _absent(what: str, name: str) -> Finding:
    if shipped_folder(name) is not None:
        return Finding(what, "fail", f"{name} ships with Wager, but is not in this installation")
    match = find_pair(name)
    if match is not None and "/" in name:
        return Finding(what, "warn", f"{name} is not here yet; it is fetched on first use", "download cache")
    return Finding(what, "fail", f"{name} is neither a folder nor in the download cache")


def _read_target(folder: Path) -> Target:
    from wager.nn.models import read_spec
    from wager.nn.weights import read_config

    values = read_config(folder)
    return Target(folder, values, read_spec(values))


def _target_line(target: Target) -> Finding:
    spec = target.spec
    detail = (
        f"{spec.model_type}, {spec.num_layers} layers x {spec.hidden_size}, {spec.vocab_size} words, "
        f"rope theta {spec.rope.theta:g}, {spec.max_position} positions"
    )
    return Finding("model config", "ok", detail, str(target.folder / "config.json"))


def _weights(folder: Path, name: str = "weights") -> Iterator[Finding]:
    """Whether every weights file is there and whole, by its header."""
    import torch

    from wager.nn.weights import WeightReader

    WeightReader(folder, torch.float32)
    files = sorted(folder.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files) / 2**30
    yield Finding(name, "ok", f"{len(files)} files, {size:.2f} GiB", str(folder))


def _tokenizer(folder: Path, target: Target | None) -> Iterator[Finding]:
    from wager.text.chat import ChatTemplate
    from wager.text.tokenizer import Tokenizer

    if not any((folder / name).exists() for name in TOKENIZER_FILES):
        yield Finding("tokenizer", "warn", "none: prompts and outputs are token ids", str(folder))
        return
    tokenizer = Tokenizer.from_folder(folder)
    if target is not None:
        tokenizer.check_fits(target.spec.vocab_size)
    yield Finding("tokenizer", "ok", f"{tokenizer.vocab_size} tokens, ends {list(tokenizer.eos_ids)}")
    if not tokenizer.eos_ids:
        yield Finding("end of text", "warn", "no token ends a text: it runs to max_tokens")
    template = ChatTemplate.from_folder(folder)
    detail = "none: prompts are taken raw" if template is None else "present, applied unless --raw"
    yield Finding("chat template", "ok", detail)


def _no_drafter(asked: str, model: str) -> Finding:
    if asked != "auto":
        return Finding("drafter", "fail", f"{asked} was asked for and is not here", "asked for")
    match = find_pair(model)
    if match is None:
        return Finding("drafter", "ok", "lookup: no drafter is known for this target", "auto")
    return Finding("drafter", "warn", f"the published {match.pair.drafter} is not here; else lookup", "auto")


def _fit(folder: Path, target: Target | None) -> Iterator[Finding]:
    from wager.nn.models import dflash_spec
    from wager.nn.weights import read_config

    values = read_config(folder)
    source = str(folder / "config.json")
    if "dflash_config" not in values and "block_size" not in values:
        yield from _chain_fit(values, source, target)
        return
    spec = dflash_spec.read_spec(values)
    yield Finding("block size", "ok", str(spec.block_size), source)
    if target is not None:
        yield from (finding._replace(source=source) for finding in _block_fit(spec, values, target.spec))


def _chain_fit(values: dict[str, Any], source: str, target: Target | None) -> Iterator[Finding]:
    from wager.nn.models import read_spec

    spec = read_spec(values)
    yield Finding(
        "drafter model", "ok", f"{spec.model_type}, {spec.num_layers} layers, guesses a chain", source
    )
    if target is not None:
        yield _compare("vocabulary", spec.vocab_size, target.spec.vocab_size)._replace(source=source)


def _block_fit(spec: DFlashSpec, values: dict[str, Any], target: DecoderSpec) -> Iterator[Finding]:
    yield _compare("hidden size", spec.hidden_size, target.hidden_size)
    ids = list(spec.target_layer_ids)
    inside = max(ids) < target.num_layers
    yield Finding("layer ids", "ok" if inside else "fail", f"{ids} of {target.num_layers} layers")
    if spec.layer_ids_derived:
        yield Finding("layer ids listed", "warn", "not in the config: derived by the published rule")
    if spec.num_target_layers is not None:
        yield _compare("target layers", spec.num_target_layers, target.num_layers)
    words = values.get("vocab_size")
    if words is not None:
        yield _compare("vocabulary", words, target.vocab_size, otherwise="warn")
    mask = spec.mask_token_id
    known = "ok" if mask < target.vocab_size else "fail"
    yield Finding("mask token", known, f"{mask} of {target.vocab_size} words")
    yield _compare("rope theta", spec.rope.theta, target.rope.theta, otherwise="warn")
    longest = max((window or 0 for window in spec.windows), default=0)
    yield Finding("windows", "ok", f"sliding, {longest} positions" if longest else "full attention")


def _compare(name: str, own: float, targets: float, otherwise: str = "fail") -> Finding:
    if own == targets:
        return Finding(name, "ok", f"{own:g}" if isinstance(own, float) else str(own))
    return Finding(name, otherwise, f"{own:g}, but the target has {targets:g}")
