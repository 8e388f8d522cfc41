"""Enlarges a trained pair to the shape of a big model without changing what it computes.

A grown pair has the acceptance of the small pair and the cost of a model of the large shape, so it measures
speculative decoding at that size without such a model. `plan_growth` reads and checks the small folders, and
`write_pair` writes the large ones. `grow_tensors.py` determines the position of each weight. `wager grow` and
benchmarks call this.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wager.errors import CapacityError, InputError, ModelError
from wager.nn.models import dflash, dflash_spec, read_spec
from wager.nn.models.decoder import DecoderSpec
from wager.nn.models.dflash_spec import DFlashSpec
from wager.nn.saving import save_tensors, writing_errors
from wager.nn.weights import INDEX_NAME, read_config
from wager.train.grow_shape import LayerShape, PairShape, check_growth, parse_shape
from wager.train.grow_tensors import GrownReader, Growth, Width, choose_constant

GROWN_FROM = "wager_grown_from"
"""The config field that says from what a folder was grown."""
DRAFTER_NAME = "drafter"
"""Name of the drafter's folder inside the grown target's folder, where it is found by default."""
SHARD_BYTES = 1 << 30

_NOT_COPIED = ("config.json", INDEX_NAME, "README.md")
Spec = DecoderSpec | DFlashSpec
Progress = Callable[[str, int, int], None]
"""Called with a written file, its number and the number of files."""


@dataclass(frozen=True)
class SmallPair:
    """The folders to grow from; the drafter is optional."""

    target: Path
    drafter: Path | None = None


@dataclass(frozen=True)
class NetPlan:
    """One network to grow: its source, its growth, and the config of the result."""

    folder: Path
    growth: Growth
    config: Mapping[str, Any]

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.growth.big_shapes().values())


@dataclass(frozen=True)
class GrowthPlan:
    """All decisions about a growth, before any work."""

    small: PairShape
    big: PairShape
    target: NetPlan
    drafter: NetPlan | None
    dtype: torch.dtype
    seed: int

    @property
    def num_bytes(self) -> int:
        nets = [self.target, self.drafter] if self.drafter else [self.target]
        return sum(net.num_parameters for net in nets) * self.dtype.itemsize


def plan_growth(
    pair: SmallPair, shape: PairShape | str, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> GrowthPlan:
    """Reads both configs and determines every size. `shape` is a shape or its text (`parse_shape`).

    Raises ModelError if this kind of pair cannot be grown, and ConfigError that names a size that is too
    small.
    """
    values, spec = _read_target(pair.target)
    drafter = _read_drafter(pair.drafter, spec) if pair.drafter is not None else None
    small = shape_of(spec, drafter)
    big = parse_shape(shape, small) if isinstance(shape, str) else shape
    check_growth(small, big)
    constant = 0.0
    if big.vocab_size > small.vocab_size:
        constant = choose_constant(min(one.eps for one in (spec, drafter) if one), small.hidden_size, dtype)
    sizes = _Sizes(small, big, constant)
    own = sizes.growth(small.target, big.target, spec, tied=spec.tie_embeddings)
    config = values | _grown_values(pair.target, spec, own, big, dtype, seed) | {"tie_word_embeddings": False}
    target = NetPlan(pair.target, own, config)
    if drafter is None:
        return GrowthPlan(small, big, target, None, dtype, seed)
    assert pair.drafter is not None and small.drafter is not None and big.drafter is not None
    num_features = len(drafter.target_layer_ids)
    grown = sizes.growth(small.drafter, big.drafter, drafter, num_features=num_features)
    config = read_config(pair.drafter) | _grown_values(pair.drafter, drafter, grown, big, dtype, seed)
    config |= _drafter_values(config, drafter, own)
    return GrowthPlan(small, big, target, NetPlan(pair.drafter, grown, config), dtype, seed)


@dataclass(frozen=True)
class _Sizes:
    """The values that both networks of a pair share."""

    small: PairShape
    big: PairShape
    constant: float

    def growth(self, small: LayerShape, big: LayerShape, spec: Spec, **own: Any) -> Growth:
        hidden = Width(self.small.hidden_size, self.big.hidden_size)
        vocab = Width(self.small.vocab_size, self.big.vocab_size)
        return Growth(small, big, hidden, vocab, spec.eps, self.constant, spec.qkv_bias, **own)


def shape_of(target: DecoderSpec, drafter: DFlashSpec | None = None) -> PairShape:
    """Returns the present sizes of a pair."""
    return PairShape(
        target.hidden_size,
        target.vocab_size,
        target.max_position,
        _layer_shape(target),
        _layer_shape(drafter) if drafter else None,
    )


def _layer_shape(spec: Spec) -> LayerShape:
    return LayerShape(
        spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.intermediate_size
    )


def _read_target(folder: Path) -> tuple[dict[str, Any], DecoderSpec]:
    values = read_config(folder)
    if values.get("model_type") != "qwen3":
        raise ModelError(f"{folder}: only qwen3 targets can be grown, not {values.get('model_type')!r}")
    spec = read_spec(values)
    _check_kind(folder, values, spec)
    return values, spec


def _read_drafter(folder: Path, target: DecoderSpec) -> DFlashSpec:
    values = read_config(folder)
    if "block_size" not in values:
        raise ModelError(f"{folder}: only DFlash drafters can be grown, and this config has no block_size")
    spec = dflash_spec.read_spec(values)
    dflash.check_pair(spec, target.hidden_size, target.num_layers, target.vocab_size)
    _check_kind(folder, values, spec)
    return spec


def _check_kind(folder: Path, values: Mapping[str, Any], spec: Spec) -> None:
    if values.get(GROWN_FROM):
        raise ModelError(f"{folder}: this is already a grown model; grow the original")
    if spec.rope.type != "default":
        raise ModelError(f"{folder}: rope_type {spec.rope.type!r} cannot be grown, only 'default'")
    if spec.eps <= 0:
        raise ModelError(f"{folder}: rms_norm_eps = {spec.eps} cannot be grown, only a positive one")


def _grown_values(
    folder: Path, spec: Spec, growth: Growth, big: PairShape, dtype: torch.dtype, seed: int
) -> dict[str, Any]:
    """Returns the config fields that change, which are the same for target and drafter."""
    net = growth.big
    return {
        "hidden_size": big.hidden_size,
        "vocab_size": big.vocab_size,
        "max_position_embeddings": big.max_position,
        "num_hidden_layers": net.num_layers,
        "num_attention_heads": net.num_heads,
        "num_key_value_heads": net.num_kv_heads,
        "head_dim": net.head_dim,
        "intermediate_size": net.intermediate_size,
        "rms_norm_eps": growth.grown_eps,
        "layer_types": _layer_types(spec.windows, growth),
        "dtype": str(dtype).removeprefix("torch."),
        GROWN_FROM: _origin(folder, growth, seed),
    }


def _layer_types(windows: Sequence[int | None], growth: Growth) -> list[str]:
    """Returns layer types: small layers keep their windows; new layers have full attention, which
    costs more.
    """
    kinds = ["full_attention"] * growth.big.num_layers
    for seat, window in zip(growth.layers, windows, strict=True):
        if window is not None:
            kinds[seat] = "sliding_attention"
    return kinds


def _origin(folder: Path, growth: Growth, seed: int) -> dict[str, Any]:
    """Returns what a folder was grown from, for reports on it."""
    small = growth.small
    return {
        "name": "/".join(folder.resolve().parts[-2:]),
        "weights_sha256": _digest(folder),
        "num_parameters": sum(math.prod(shape) for shape in growth.small_shapes().values()),
        "hidden_size": growth.hidden.small,
        "vocab_size": growth.vocab.small,
        "num_hidden_layers": small.num_layers,
        "num_attention_heads": small.num_heads,
        "num_key_value_heads": small.num_kv_heads,
        "head_dim": small.head_dim,
        "intermediate_size": small.intermediate_size,
        "layers": list(growth.layers),
        "seed": seed,
    }


def _digest(folder: Path) -> str:
    """Returns one digest over the weight files, ordered by name."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _drafter_values(values: Mapping[str, Any], spec: DFlashSpec, target: Growth) -> dict[str, Any]:
    """Returns the drafter's fields with the new indices of the layers that give features."""
    return {
        "num_target_layers": target.big.num_layers,
        "dflash_config": dict(values.get("dflash_config") or {})
        | {
            "target_layer_ids": [target.layers[index] for index in spec.target_layer_ids],
            "mask_token_id": spec.mask_token_id,
        },
    }


def reader_of(net: NetPlan, plan: GrowthPlan, device: torch.device | str = "cpu") -> GrownReader:
    """Returns a reader of the grown weights of the plan's target or drafter, which are created on `device` on
    demand.
    """
    return GrownReader(net.folder, net.growth, plan.dtype, device, plan.seed)


def write_pair(plan: GrowthPlan, out: Path, progress: Progress | None = None) -> None:
    """Writes the target to `out` and the drafter inside it, shard by shard; config.json comes last.

    It holds little more than a shard in memory. Raises InputError if `out` is not an empty or new folder, and
    CapacityError if the disk is too small.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("exists and is not an empty folder", str(out))
    out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out).free
    if free < plan.num_bytes:
        raise CapacityError(f"{out}: {plan.num_bytes:,} bytes to write, {free:,} free")
    if plan.drafter is not None:
        _write_net(plan.drafter, plan, out / DRAFTER_NAME, progress)
    for path in sorted(plan.target.folder.iterdir()):
        if path.is_file() and path.name not in _NOT_COPIED and path.suffix != ".safetensors":
            shutil.copyfile(path, out / path.name)
    _write_net(plan.target, plan, out, progress)


def _write_net(net: NetPlan, plan: GrowthPlan, folder: Path, progress: Progress | None) -> None:
    folder.mkdir(exist_ok=True)
    reader, shapes = reader_of(net, plan), net.growth.big_shapes()
    shards = _shards(shapes, plan.dtype.itemsize)
    home: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = "model.safetensors"
        if len(shards) > 1:
            file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_tensors({name: reader.get(name, shapes[name]) for name in names}, folder / file)
        home |= dict.fromkeys(names, file)
        if progress is not None:
            progress(str(folder / file), number, len(shards))
    if len(shards) > 1:
        total = net.num_parameters * plan.dtype.itemsize
        _write_json(folder / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": home})
    _write_json(folder / "config.json", dict(net.config))


def _shards(shapes: Mapping[str, Sequence[int]], itemsize: int) -> list[list[str]]:
    """Splits tensors, in order, into files up to the size limit; a larger tensor has a file of its own."""
    shards: list[list[str]] = [[]]
    used = 0
    for name, shape in shapes.items():
        size = math.prod(shape) * itemsize
        if shards[-1] and used + size > SHARD_BYTES:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += size
    return shards


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    with writing_errors(path):
        path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def grown_from(folder: str | Path) -> dict[str, Any] | None:
    """Returns what a model folder was grown from, or None if it was not grown. Raises ModelError."""
    found = read_config(Path(folder)).get(GROWN_FROM)
    return dict(found) if isinstance(found, Mapping) else None
