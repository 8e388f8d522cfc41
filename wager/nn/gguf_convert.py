"""Converts the weights of model folders and GGUF files: drafters both ways, targets from GGUF to a folder.

A drafter's matrices are written in bfloat16, float16, Q8_0 or Q4_1, and its norms and biases in float32. A
folder gets the values of its GGUF file exactly: plain types keep theirs, quantised ones become float32.
Nothing is derived or guessed: every size comes from the config and is checked against the tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wager.errors import ConfigError, InputError, WeightsError
from wager.gguf.drafter_config import drafter_metadata
from wager.gguf.names import DRAFTER_STYLES
from wager.gguf.types import BY_NUMBER, TensorType
from wager.gguf.writer import NewTensor, write_gguf
from wager.nn.gguf_blocks import encode_q4_1, encode_q8_0
from wager.nn.gguf_weights import GGUFStore
from wager.nn.models.dflash_spec import DFlashSpec, read_spec
from wager.nn.models.tensors import layer_shapes
from wager.nn.saving import save_tensors
from wager.nn.weights import INDEX_NAME, WeightReader, read_config

__all__ = ["FORMS", "Converted", "drafter_shapes", "drafter_to_gguf", "gguf_to_folder"]

FORMS = ("bf16", "f16", "q8_0", "q4_1")
"""The types in which a drafter's matrices can be written."""
_BY_NAME = {kind.name: kind for kind in BY_NUMBER.values()}
_FILE_TYPES = {"f16": 1, "q4_1": 3, "q8_0": 7, "bf16": 32}
_QUANTISATION_VERSION = 2
_SHARD_BYTES = 2 << 30
_ENCODERS = {"Q8_0": encode_q8_0, "Q4_1": encode_q4_1}
_NO_VOCABULARY = {"tokenizer.ggml.model": "no_vocab"}


class Converted(NamedTuple):
    """What was written."""

    path: Path
    num_tensors: int
    unused: list[str]
    """Tensors of the source that the model does not use; they were left out."""


def drafter_to_gguf(
    folder: Path, out: Path, form: str, vocabulary: Mapping[str, Any] | None = None
) -> Converted:
    """Writes a block drafter's folder as a GGUF file with the names of llama.cpp.

    `vocabulary` has the metadata keys of the target's tokenizer. Raises ConfigError for an
    unknown form, ModelError that names a field of the config, WeightsError that names a tensor, and
    InputError if the file cannot be written.
    """
    if form not in FORMS:
        raise ConfigError("form", form, f"one of {', '.join(FORMS)}")
    values = read_config(folder)
    metadata = drafter_metadata(values) | {
        "general.file_type": _FILE_TYPES[form],
        "general.quantization_version": _QUANTISATION_VERSION,
    }
    spec, reader = read_spec(values), WeightReader(folder, torch.float32)
    if vocabulary is not None:
        metadata |= _fitting_words(vocabulary, spec, values)
    else:
        metadata |= _NO_VOCABULARY
    shapes = drafter_shapes(spec)
    tensors = [_planned(reader, name, shape, form) for name, shape in shapes.items()]
    write_gguf(out, metadata, tensors)
    return Converted(out, len(tensors), reader.leftovers())


def drafter_shapes(spec: DFlashSpec) -> dict[str, tuple[int, ...]]:
    """Returns the published names of a block drafter's tensors with their shapes."""
    found: dict[str, tuple[int, ...]] = {
        "fc.weight": (spec.hidden_size, spec.feature_size),
        "hidden_norm.weight": (spec.hidden_size,),
        "norm.weight": (spec.hidden_size,),
    }
    for index in range(spec.num_layers):
        found |= layer_shapes(spec, f"layers.{index}.")
    return found


def _planned(reader: WeightReader, name: str, shape: tuple[int, ...], form: str) -> NewTensor:
    """Returns a tensor of the new file; raises WeightsError if the folder has none of this shape."""
    if name not in reader:
        raise WeightsError(f"is missing from {reader.folder}", name)
    if reader.shape(name) != shape:
        raise WeightsError(f"has shape {list(reader.shape(name))}, the config asks for {list(shape)}", name)
    kind = _BY_NAME["F32" if len(shape) == 1 else form.upper()]
    if shape[-1] % kind.block_len:
        raise WeightsError(f"has rows of {shape[-1]}: {kind.name} needs multiples of {kind.block_len}", name)
    own_name = DRAFTER_STYLES["llama.cpp"].to_gguf(name)
    assert own_name is not None, name
    return NewTensor(own_name, shape, kind, lambda: _encoded(reader.get(name, shape), name, kind))


def _encoded(values: Tensor, name: str, kind: TensorType) -> bytes:
    if kind.name in _ENCODERS:
        stored = _ENCODERS[kind.name](values)
    else:
        stored = values.to({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind.name])
        if not bool(torch.isfinite(stored).all()):
            raise WeightsError(f"has values that are too large for {kind.name}", name)
    return stored.contiguous().view(torch.uint8).numpy().tobytes()


def _fitting_words(
    vocabulary: Mapping[str, Any], spec: DFlashSpec, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the keys of a vocabulary without the mask token, which the drafter has itself."""
    count = len(vocabulary["tokenizer.ggml.tokens"])
    if spec.mask_token_id >= count:
        raise InputError(
            f"it has {count} tokens, and the drafter's mask token is {spec.mask_token_id}", "target"
        )
    if values["vocab_size"] < count:
        raise InputError(f"it has {count} tokens, and the drafter's config {values['vocab_size']}", "target")
    return {key: value for key, value in vocabulary.items() if key != "tokenizer.ggml.mask_token_id"}


def gguf_to_folder(path: Path, out: Path) -> Converted:
    """Writes the config and the weights of a GGUF file as a model folder with safetensors.

    Raises ModelError or WeightsError if the file is damaged or not supported, InputError if the folder cannot
    be written.
    """
    values, store = read_config(path), GGUFStore(path)
    known = [name for name in store.names() if store.is_published(name)]
    dtype = _matrix_dtype(store, known)
    try:
        out.mkdir(parents=True, exist_ok=True)
        _write_shards(store, known, dtype, out)
        stated = values | {"dtype": str(dtype).removeprefix("torch.")}
        (out / "config.json").write_text(json.dumps(stated, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}", "out") from error
    return Converted(out, len(known), sorted(set(store.names()) - set(known)))


def _matrix_dtype(store: GGUFStore, names: list[str]) -> torch.dtype:
    """Returns the dtype of all matrices if they are of one plain type, else float32."""
    kinds = {store.entry(name).type.name for name in names if len(store.shape(name)) > 1}
    return {"BF16": torch.bfloat16, "F16": torch.float16}.get(
        kinds.pop() if len(kinds) == 1 else "", torch.float32
    )


def _write_shards(store: GGUFStore, names: list[str], dtype: torch.dtype, out: Path) -> None:
    shards: list[list[str]] = [[]]
    size = 0
    for name in names:
        count = 4 * torch.Size(store.shape(name)).numel()
        if size + count > _SHARD_BYTES and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += count
    files = [f"model-{at + 1:05d}-of-{len(shards):05d}.safetensors" for at in range(len(shards))]
    files = ["model.safetensors"] if len(shards) == 1 else files
    for file, part in zip(files, shards, strict=True):
        tensors = {name: _exact(store.tensor(name), dtype).clone() for name in part}
        save_tensors(tensors, out / file)
    if len(shards) > 1:
        homes = {name: file for file, part in zip(files, shards, strict=True) for name in part}
        (out / INDEX_NAME).write_text(json.dumps({"weight_map": homes}, indent=1), encoding="utf-8")


def _exact(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the tensor in a dtype if that changes none of its values, else as it is."""
    changed = tensor.to(dtype)
    return changed if torch.equal(changed.to(tensor.dtype), tensor) else tensor.contiguous()
