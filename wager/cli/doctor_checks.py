"""The checks of `wager doctor` for the machine and the target model; doctor_drafter.py checks the drafter.

Each check returns findings and does not raise WagerError: a broken folder is a finding. The checks read
configs and file headers; they load no weights and download nothing. doctor.py prints the findings.
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
from wager.extras import EXTRAS, missing_packages
from wager.fetched import fetched_path, is_fetched
from wager.gguf.header import is_gguf
from wager.pairs import find_pair, shipped_folder
from wager.threads import usable_cpus

if TYPE_CHECKING:
    from wager.nn.models.decoder import DecoderSpec

# The oldest supported release of each package, as in pyproject.toml.
PACKAGES = {
    "torch": "2.11",
    "numpy": "2.0",
    "safetensors": "0.8",
    "tokenizers": "0.23.1",
    "huggingface_hub": "1.31",
    "jinja2": "3.1.6",
    "typer": "0.28",
    "rich": "13.8",
}
OLDEST_PYTHON = (3, 11)


class Finding(NamedTuple):
    """The result of one check."""

    name: str
    status: str
    """One of ok, warn and fail."""
    detail: str
    source: str = ""
    """Where the value was read."""


class Target(NamedTuple):
    """A target model whose config could be read."""

    folder: Path
    values: dict[str, Any]
    spec: DecoderSpec


def check_machine(config: EngineConfig) -> Iterator[Finding]:
    """Checks Python, the packages and the device."""
    version = platform.python_version()
    status = "ok" if sys.version_info >= OLDEST_PYTHON else "fail"
    yield Finding("python", status, version, sys.executable)
    for name, oldest in PACKAGES.items():
        yield _package(name, oldest)
    for extra in EXTRAS:
        yield _extra(extra)
    yield from run_check("device", lambda: _device(config.model.device))
    if config.model.weights not in ("auto", "full"):
        yield from run_check("rounding", lambda: _rounding(config))


def check_target(config: EngineConfig) -> tuple[list[Finding], Target | None]:
    """Checks the model's folder, config, weights and tokenizer; returns the target if its config is valid."""
    name = config.model.model
    folder = local_folder(name)
    if folder is None:
        return [_missing_model(name)], None
    found = [Finding("model folder", "ok", str(folder), name)]
    target: Target | None = None
    try:
        target = _read_target(folder)
    except WagerError as error:
        found.append(Finding("model config", "fail", one_line(error), str(config_source(folder))))
    else:
        found.append(_target_line(target))
    found += run_check("weights", lambda: weight_files(folder))
    found += run_check("tokenizer", lambda: _tokenizer(folder, target))
    return found, target


def check_passes(config: EngineConfig, target: Target | None) -> Iterator[Finding]:
    """Says which implementation runs the target's passes, and why no faster one is used."""
    if target is not None:
        yield from run_check("passes", lambda: _passes(config, target))


def check_calibration(config: EngineConfig, target: Target | None) -> Iterator[Finding]:
    """Lists the stored cost measurements of this model on this machine, with their age."""
    if not config.policy.calibrate:
        yield Finding("calibration", "ok", "off: costs are learned while requests run", "requested")
    elif target is not None:
        yield from run_check("calibration", lambda: _calibrations(config, target))


def local_folder(name: str) -> Path | None:
    """Returns the place of a model: the demo's, a path, or a published name in the download cache.

    This is the same search as the engine's `find_folder`, but nothing is downloaded.
    """
    shipped = shipped_folder(name)
    if shipped is not None:
        return shipped if shipped.exists() else None
    fetched = fetched_path(name)
    if fetched is not None:
        return fetched if is_fetched(name) else None
    path = Path(name).expanduser()
    if name and (path.is_dir() or is_gguf(path)):
        return path
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return None
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except Exception:  # the library raises many kinds of errors for a model that is not in the cache
        return None


def run_check(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Returns the findings of a check; an exception becomes a failed finding called `name`."""
    found: list[Finding] = []
    try:
        found.extend(check())
    except WagerError as error:
        found.append(Finding(name, "fail", one_line(error)))
    except Exception as error:  # broken files can raise anything, and doctor must report it
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


def _extra(extra: str) -> Finding:
    missing = missing_packages(extra)
    detail = f"no {', '.join(missing)}: pip install 'wager[{extra}]'" if missing else "installed"
    return Finding(f"extra {extra}", "ok", detail, "package")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _device(requested: str) -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        detail = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        yield Finding("device", "ok", detail, "cuda")
    elif requested.startswith("cuda"):
        yield Finding("device", "fail", f"{requested} was requested, but there is no CUDA device", "config")
    else:
        gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        yield Finding("device", "ok", f"cpu, {len(usable_cpus())} cores, {gib:.0f} GiB", "no CUDA device")


def _rounding(config: EngineConfig) -> Iterator[Finding]:
    """Checks that this device can run with weights rounded as requested."""
    from wager.engine.assemble import pass_options_of, pick_device
    from wager.nn.kernels.quant_layers import Quantisation

    bits = pass_options_of(config, pick_device(config.model.device).value).quant_bits
    detail = str(Quantisation(bits)) if bits is not None else config.model.weights
    yield Finding("rounding", "ok", detail, "GPU kernels" if bits is not None else "CPU")


def _passes(config: EngineConfig, target: Target) -> Iterator[Finding]:
    import torch

    from wager.engine.assemble import pass_options_of, pick_device
    from wager.nn.models.hf_config import pick_dtype
    from wager.nn.native import build
    from wager.nn.native.loader import NativeLoader

    if config.model.device.startswith("cuda") and not torch.cuda.is_available():
        return  # the check of the device reports it
    device = str(pick_device(config.model.device).value)
    options, dtype = pass_options_of(config, device), pick_dtype(config.model.dtype, target.values, device)
    if options.kernels:
        yield Finding("passes", "ok", "GPU kernels", device)
        return
    example = torch.empty(0, dtype=dtype, device=device)
    loader, built = (
        NativeLoader(options, config.model.layout, example, 4 * target.spec.num_weights),
        build.find(),
    )
    if loader.is_refused or build.compiler() is None:
        yield Finding("passes", "ok", "plain torch", loader.reason or built.reason)
    elif built.path is not None:
        yield Finding("passes", "ok", "native", built.reason)
    else:
        later = " and the model is restarted" if loader.is_large else ""
        yield Finding("passes", "ok", f"plain torch until the native passes are built{later}", built.reason)


def _calibrations(config: EngineConfig, target: Target) -> Iterator[Finding]:
    from wager.engine import cost_file
    from wager.engine.calibrate import device_name, shape_digest

    device = device_name("cuda" if _has_cuda(config) else "cpu")
    wanted = {"device": device, "shape": shape_digest(target.spec)}
    found = [stored for stored in cost_file.stored() if wanted.items() <= stored.key.items()]
    for stored in found:
        drafters = stored.key.get("drafters")
        names = ", ".join(drafters) if isinstance(drafters, dict) and drafters else "no drafter"
        detail = f"{stored.summary}; {stored.key.get('dtype')}, {stored.key.get('passes')}, {names}"
        yield Finding("calibration", "ok", detail, f"{stored.age} old")
    if not found:
        detail = "none yet: costs are learned while requests run"
        yield Finding("calibration", "ok", detail, str(cost_file.folder()))


def _has_cuda(config: EngineConfig) -> bool:
    import torch

    return config.model.device != "cpu" and torch.cuda.is_available()


def _missing_model(name: str) -> Finding:
    if shipped_folder(name) is not None:
        return Finding("model", "fail", f"{name} is part of Wager, but is missing in this installation")
    if fetched_path(name) is not None:
        return Finding("model", "fail", f"{name} is not on this machine yet: `wager fetch {name}` brings it")
    match = find_pair(name)
    if match is not None and "/" in name:
        detail = f"{name} is not on this machine yet; it is downloaded on first use"
        return Finding("model", "warn", detail, "download cache")
    return Finding("model", "fail", f"{name} is neither a folder nor in the download cache")


def _read_target(folder: Path) -> Target:
    from wager.nn.models import read_spec
    from wager.nn.weights import read_config

    values = read_config(folder)
    return Target(folder, values, read_spec(values))


def _target_line(target: Target) -> Finding:
    spec = target.spec
    detail = (
        f"{spec.model_type}, {spec.num_layers} layers x {spec.hidden_size}, {spec.vocab_size} tokens, "
        f"rope theta {spec.rope.theta:g}, {spec.max_position} positions"
    )
    return Finding("model config", "ok", detail, str(config_source(target.folder)))


def config_source(folder: Path) -> Path:
    """Returns the file that has the config: config.json, or the GGUF file itself."""
    return folder if folder.is_file() else folder / "config.json"


def weight_files(folder: Path, name: str = "weights") -> Iterator[Finding]:
    """Checks by their headers that all weight files are present and complete."""
    import torch

    from wager.nn.weights import WeightReader

    WeightReader(folder, torch.float32)
    files = [folder] if folder.is_file() else sorted(folder.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files) / 2**30
    yield Finding(name, "ok", f"{len(files)} files, {size:.2f} GiB", str(folder))


def _tokenizer(folder: Path, target: Target | None) -> Iterator[Finding]:
    from wager.text.chat import ChatTemplate
    from wager.text.tokenizer import Tokenizer, has_tokenizer

    if not has_tokenizer(folder):
        yield Finding("tokenizer", "warn", "none: prompts and outputs are token ids", str(folder))
        return
    tokenizer = Tokenizer.from_folder(folder)
    if target is not None:
        tokenizer.check_fits(target.spec.vocab_size)
    yield Finding(
        "tokenizer", "ok", f"{tokenizer.vocab_size} tokens, end-of-text ids {list(tokenizer.eos_ids)}"
    )
    if not tokenizer.eos_ids:
        yield Finding("end of text", "warn", "no end-of-text token: every answer runs to max_tokens")
    template = ChatTemplate.from_folder(folder)
    detail = "none: prompts are used as they are" if template is None else "found: applied unless --raw"
    yield Finding("chat template", "ok", detail)
