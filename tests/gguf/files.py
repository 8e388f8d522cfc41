"""Tiny GGUF files for tests, written by the gguf package, with the model that transformers makes of them.

Names, order of rows and quantisation are the package's, so that nothing here rests on what is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from tests.nn.tiny import build_target

Array = npt.NDArray[Any]

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 2,
}
_HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
_SCALE = {
    "Q8_0": 1e-3,
    "Q4_0": 0.02,
    "Q4_1": 0.02,
    "Q5_0": 0.01,
    "Q5_1": 0.01,
    "Q4_K": 3e-4,
    "Q5_K": 2e-4,
    "Q6_K": 2e-5,
}
Writer = Any


def random_blocks(name: str, rows: int, columns: int, seed: int = 0) -> Array:
    """Bytes [rows, bytes of a row] of a random tensor of a type: every code, and small finite scales."""
    rng = np.random.default_rng(seed)
    if name in ("F32", "F16", "BF16"):
        values = rng.normal(0.0, 0.1, (rows, columns)).astype(np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8)
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (rows * columns // block_len, block_bytes), dtype=np.uint8)
    for start in _HALVES.get(name, (0,)):
        scale = rng.uniform(0.5, 1.5, (len(blocks), 1)) * _SCALE[name]
        if name in ("Q4_1", "Q5_1") and start == 2:
            scale = scale * -8  # the smallest value of a block
        blocks[:, start : start + 2] = scale.astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def values_of(stored: Array, name: str) -> Array:
    return gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[name]).astype(np.float32)


def permuted(weight: Array, num_heads: int) -> Array:
    """The rows of a Llama projection in the order of GGUF files."""
    parts = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return parts.swapaxes(1, 2).reshape(weight.shape)


def restored(weight: Array, num_heads: int) -> Array:
    """The published order of such rows."""
    parts = weight.reshape(num_heads, weight.shape[0] // num_heads // 2, 2, *weight.shape[1:])
    return parts.swapaxes(1, 2).reshape(weight.shape)


def heads_of(name: str, architecture: str, config: Any) -> int:
    if architecture != "llama" or (".bias" in name and "proj" not in name):
        return 0
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    return heads.get(name.split(".")[-2], 0)


def describe(writer: Writer, config: Any) -> None:
    """The usual keys of a target."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(config.vocab_size)


def save_gguf(
    path: Path,
    model_type: str = "llama",
    kinds: str | Callable[[str], str] = "Q8_0",
    change: Callable[[Writer], None] | None = None,
    **changes: Any,
) -> Any:
    """Writes a random target and returns the transformers model with the dequantised weights.

    `kinds` is the type of all matrices, or a function of a published name. `change` may add keys and tensors.
    """
    sizes = {**SIZES, **changes}
    model = build_target(model_type, seed=3, **sizes)
    config = model.config
    architecture = "llama" if model_type == "mistral" else model_type
    writer = gguf.GGUFWriter(path, architecture)
    describe(writer, config)
    if change is None:
        writer.add_tokenizer_model("no_vocab")
    else:
        change(writer)
    names = gguf.get_tensor_name_map(
        {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}[
            architecture
        ],
        config.num_hidden_layers,
    )
    with torch.no_grad():
        for number, (name, weight) in enumerate(model.named_parameters()):
            own_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
            heads = heads_of(name, architecture, config)
            if weight.ndim == 1:
                flat = weight.numpy()
                writer.add_tensor(own_name, permuted(flat, heads) if heads else flat)
                continue
            kind = kinds if isinstance(kinds, str) else kinds(name)
            stored = random_blocks(kind, *weight.shape, seed=number)
            raw_dtype = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(own_name, stored, raw_dtype=raw_dtype)
            values = values_of(stored, kind)
            weight.copy_(torch.from_numpy(restored(values, heads) if heads else values))
    finish(writer)
    return model


def finish(writer: Writer) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
