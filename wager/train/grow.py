"""Enlarge a trained pair to a big model's shape without changing what it computes.

A grown pair accepts what the small pair accepts and costs what a model of the large shape costs, so it
measures speculative decoding at that size without such a model at hand. `plan_growth` reads and checks the
small folders; then either `write_pair` streams folders to disk, or `load_grown_target` and
`load_grown_drafter` build the networks on a device without any. Which weight goes where is in
`grow_tensors.py`. Called by `wager grow` and by benchmarks.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from wager.errors import CapacityError, InputError, ModelError
from wager.nn.models import dflash, dflash_spec, qwen3, read_spec
from wager.nn.models.decoder import Decoder, DecoderSpec
from wager.nn.models.dflash import DFlash
from wager.nn.models.dflash_spec import DFlashSpec
from wager.nn.models.tensors import read_decoder
from wager.nn.weights import INDEX_NAME, read_config
from wager.train.grow_shape import LayerShape, PairShape, check_growth, parse_shape
from wager.train.grow_tensors import GrownReader, Growth, Width, choose_constant

GROWN_FROM = "wager_grown_from"
"""The config field that says a folder was grown, and from what."""
DRAFTER_NAME = "drafter"
"""The drafter's folder inside the grown target's, where it is found without being named."""
SHARD_BYTES = 1 << 30

_NOT_COPIED = ("config.json", INDEX_NAME, "README.md")
Spec = DecoderSpec | DFlashSpec
Progress = Callable[[str, int, int], None]
"""Called with a file just written, its number and how many there are."""


@dataclass(frozen=True)
class SmallPair:
    """The folders to grow from; without a drafter the target grows alone."""

    target: Path
    drafter: Path | None = None


@dataclass(frozen=True)
class NetPlan:
    """One network to grow: where from, how, and the config of the result."""

    folder: Path
    growth: Growth
    config: Mapping[str, Any]

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.growth.big_shapes().values())


@dataclass(frozen=True)
class GrowthPlan:
    """Everything decided, nothing made yet."""

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
    """Read both configs and settle every size. `shape` is a shape or its words (`parse_shape`).

    Raises ModelError where the pair is of a kind that cannot be grown, ConfigError naming a size that does
    not hold it.
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
    """What both networks of a pair share on their way."""

    small: PairShape
    big: PairShape
    constant: float

    def growth(self, small: LayerShape, big: LayerShape, spec: Spec, **own: Any) -> Growth:
        hidden = Width(self.small.hidden_size, self.big.hidden_size)
        vocab = Width(self.small.vocab_size, self.big.vocab_size)
        return Growth(small, big, hidden, vocab, spec.eps, self.constant, spec.qkv_bias, **own)


def shape_of(target: DecoderSpec, drafter: DFlashSpec | None = None) -> PairShape:
    """A pair's present sizes."""
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
        raise ModelError(f"{folder}: is a grown model already; grow the original")
    if spec.rope.type != "default":
        raise ModelError(f"{folder}: rope_type {spec.rope.type!r} cannot be grown, only 'default'")
    if spec.eps <= 0:
        raise ModelError(f"{folder}: rms_norm_eps = {spec.eps} cannot be grown, only a positive one")


def _grown_values(
    folder: Path, spec: Spec, growth: Growth, big: PairShape, dtype: torch.dtype, seed: int
) -> dict[str, Any]:
    """The config fields that change, alike for target and drafter."""
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
    """Small layers keep their windows; new ones see everything, which is the dearer."""
    kinds = ["full_attention"] * growth.big.num_layers
    for seat, window in zip(growth.layers, windows, strict=True):
        if window is not None:
            kinds[seat] = "sliding_attention"
    return kinds


def _origin(folder: Path, growth: Growth, seed: int) -> dict[str, Any]:
    """What a folder was grown from, for whoever states figures of it."""
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
    """One digest over the weights files by name."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _drafter_values(values: Mapping[str, Any], spec: DFlashSpec, target: Growth) -> dict[str, Any]:
    """The tapped layers, where they sit now."""
    return {
        "num_target_layers": target.big.num_layers,
        "dflash_config": dict(values.get("dflash_config") or {})
        | {
            "target_layer_ids": [target.layers[index] for index in spec.target_layer_ids],
            "mask_token_id": spec.mask_token_id,
        },
    }


def reader_of(net: NetPlan, plan: GrowthPlan, device: torch.device | str = "cpu") -> GrownReader:
    """The grown weights of the plan's target or drafter, made on `device` when asked for."""
    return GrownReader(net.folder, net.growth, plan.dtype, device, plan.seed)


def grow_state(
    net: NetPlan, plan: GrowthPlan, device: torch.device | str = "cpu"
) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor, one at a time, in the order of a pass.

    The same seed gives the same weights on the same kind of device; random parts differ between kinds.
    """
    return reader_of(net, plan, device).tensors()


def load_grown_target(plan: GrowthPlan, device: torch.device | str = "cpu", layout: str = "auto") -> Decoder:
    """The grown target, built on the device without files."""
    spec = qwen3.read_spec(plan.target.config)
    return Decoder(spec, read_decoder(reader_of(plan.target, plan, device), spec), layout)


def load_grown_drafter(plan: GrowthPlan, device: torch.device | str = "cpu", layout: str = "auto") -> DFlash:
    """The grown drafter likewise; ModelError where the pair has none."""
    if plan.drafter is None:
        raise ModelError("this pair was planned without a drafter")
    spec = dflash_spec.read_spec(plan.drafter.config)
    return DFlash(spec, dflash.read_weights(reader_of(plan.drafter, plan, device), spec), layout)


def write_pair(plan: GrowthPlan, out: Path, progress: Progress | None = None) -> None:
    """Write the target to `out` and the drafter inside it, shard by shard; config.json comes last.

    Holds little more than a shard in memory. Raises InputError where `out` is not an empty or new folder,
    CapacityError where the disk is too small.
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
        save_file(
            {name: reader.get(name, shapes[name]) for name in names}, folder / file, metadata={"format": "pt"}
        )
        home |= dict.fromkeys(names, file)
        if progress is not None:
            progress(str(folder / file), number, len(shards))
    if len(shards) > 1:
        total = net.num_parameters * plan.dtype.itemsize
        _write_json(folder / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": home})
    _write_json(folder / "config.json", dict(net.config))


def _shards(shapes: Mapping[str, Sequence[int]], itemsize: int) -> list[list[str]]:
    """Tensors in order, as many to a file as fit; a larger one has a file of its own."""
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
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def grown_from(folder: str | Path) -> dict[str, Any] | None:
    """What a model folder was grown from, or None where it was not. Raises ModelError as reading it does."""
    found = read_config(Path(folder)).get(GROWN_FROM)
    return dict(found) if isinstance(found, Mapping) else None


def is_grown(folder: str | Path) -> bool:
    """Whether a model folder is a grown one: its figures must say so."""
    return grown_from(folder) is not None
