"""One file per published model type; `decoder.py` is the network they share, `dflash.py` the block drafter.

`load_target` turns a folder (config.json and safetensors) into a `Decoder`. A new model family is one file
with a `read_spec` and one line in MODEL_TYPES. Read `decoder.py` first.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from wager.errors import ModelError
from wager.nn.kernels.narrow_layers import Narrowing, check_dtype
from wager.nn.models import llama, mistral, qwen2, qwen3
from wager.nn.models.decoder import Decoder, DecoderSpec
from wager.nn.models.hf_config import pick_dtype
from wager.nn.models.tensors import read_decoder, read_narrow_decoder
from wager.nn.native.switch import Wish
from wager.nn.weights import WeightReader, read_config

MODEL_TYPES: dict[str, Callable[[Mapping[str, Any]], DecoderSpec]] = {
    "llama": llama.read_spec,
    "mistral": mistral.read_spec,
    "qwen2": qwen2.read_spec,
    "qwen3": qwen3.read_spec,
}


def read_spec(values: Mapping[str, Any]) -> DecoderSpec:
    """The spec of a config of any supported type; raises ModelError naming the type or field that is not."""
    kind = values.get("model_type")
    if kind not in MODEL_TYPES:
        raise ModelError(f"config model_type {kind!r} is not supported; known: {', '.join(MODEL_TYPES)}")
    return MODEL_TYPES[kind](values)


def load_target(
    folder: str | Path,
    dtype: torch.dtype | str = "auto",
    device: torch.device | str = "cpu",
    layout: str = "auto",
    wish: Wish | None = None,
) -> Decoder:
    """Load a target. `dtype` "auto" takes the config's (float32 on a CPU); `layout` is "auto" (probe) or one
    of `linear.WAYS`; `wish` asks for native passes and narrower weights.

    Raises ModelError when the folder, its config or a feature of it cannot be used, WeightsError naming a bad
    tensor.
    """
    path = Path(folder)
    values = read_config(path)
    spec = read_spec(values)
    reader = WeightReader(path, pick_dtype(dtype, values, str(device)), device)
    bits = wish.narrow_bits if wish is not None else None
    if bits is None:
        return Decoder(spec, read_decoder(reader, spec), layout, wish)
    check_dtype(reader.dtype)
    return Decoder(spec, read_narrow_decoder(reader, spec, Narrowing(bits)), layout, wish)
