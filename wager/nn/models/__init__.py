"""One file per published model type; `decoder.py` is the network they share, `dflash.py` the block drafter.

`load_target` loads a folder (config.json and safetensors) as a `Decoder`. A new model family is one file with
a `read_spec` and one line in MODEL_TYPES. Read `decoder.py` first.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from wager.errors import ModelError
from wager.nn.kernels.quant_layers import Quantisation, check_dtype
from wager.nn.kernels.support import refusal
from wager.nn.models import llama, mistral, qwen2, qwen3
from wager.nn.models.decoder import Decoder, DecoderSpec, DecoderWeights
from wager.nn.models.hf_config import pick_dtype
from wager.nn.models.tensors import read_decoder, read_narrow_decoder, read_quant_decoder
from wager.nn.narrow import NarrowDecoder
from wager.nn.native.loader import PassOptions
from wager.nn.native.pack import return_freed_memory
from wager.nn.weights import WeightReader, read_config

MODEL_TYPES: dict[str, Callable[[Mapping[str, Any]], DecoderSpec]] = {
    "llama": llama.read_spec,
    "mistral": mistral.read_spec,
    "qwen2": qwen2.read_spec,
    "qwen3": qwen3.read_spec,
}


def read_spec(values: Mapping[str, Any]) -> DecoderSpec:
    """Returns the spec of a config of any supported type. Raises ModelError that names an unsupported type or
    field.
    """
    kind = values.get("model_type")
    if kind not in MODEL_TYPES:
        raise ModelError(f"config model_type {kind!r} is not supported; known: {', '.join(MODEL_TYPES)}")
    return MODEL_TYPES[kind](values)


def load_target(
    folder: str | Path,
    dtype: torch.dtype | str = "auto",
    device: torch.device | str = "cpu",
    layout: str = "auto",
    options: PassOptions | None = None,
) -> Decoder:
    """Loads a target.

    `dtype` "auto" is the dtype of the config, but float32 on a CPU. `layout` is "auto" (measure) or one of
    `linear.LAYOUT_NAMES`. `options` select native passes, kernels and quantised weights. Raises ModelError if
    the folder, its config or a feature cannot be used, and WeightsError that names a faulty tensor.
    """
    path = Path(folder)
    values = read_config(path)
    spec = read_spec(values)
    reader = WeightReader(path, pick_dtype(dtype, values, str(device)), device)
    bits = options.quant_bits if options is not None else None
    if bits is None:
        # NOTE: no name may hold the weights here, because what is freed later does not go back to the system.
        decoder = Decoder(spec, _read_checked(reader, spec, layout, options), layout, options)
        return_freed_memory()
        return decoder
    check_dtype(reader.dtype)
    reason = refusal(spec, reader.dtype, spec.vocab_size)
    if reason:
        raise ModelError(f"weights in {bits} bits need kernels: {reason}")
    return Decoder(spec, read_quant_decoder(reader, spec, Quantisation(bits)), layout, options)


def _read_checked(
    reader: WeightReader, spec: DecoderSpec, layout: str, options: PassOptions | None
) -> DecoderWeights | NarrowDecoder:
    """Returns the weights in the form that these options can use; raises ConfigError if they ask for more."""
    keeps_narrow = options is not None and options.keeps_narrow(reader.dtype, reader.device, layout)
    read = read_narrow_decoder if keeps_narrow else read_decoder
    weights: DecoderWeights | NarrowDecoder = read(reader, spec)
    if options is not None:
        options.check_activations(isinstance(weights, NarrowDecoder) and weights.is_quantised)
    return weights
