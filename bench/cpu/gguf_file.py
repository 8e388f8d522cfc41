"""A Qwen3 target as a GGUF file for llama.cpp: matrices in float32, bfloat16 or Q8_0, norms in float32.

The file has no tokenizer: whoever runs it feeds token ids. What llama.cpp could not compute as Wager does
(biases, sliding windows, scaled rotary embedding) is refused. Needs the package gguf, of the optional extra
`bench`. Called by peers.py; knows nothing of how the file is run.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from wager.errors import ConfigError, ModelError
from wager.nn.models import read_spec
from wager.nn.models.decoder import DecoderSpec
from wager.nn.weights import WeightReader, read_config

__all__ = ["FORMS", "library", "write_gguf"]

FORMS = ("f32", "bf16", "q8_0")
"""What a file's matrices may be."""
_GROUP = 32  # weights of a row that share a scale in Q8_0


class Named(NamedTuple):
    """Where a tensor is found, what GGUF calls it, and its shape."""

    source: str
    name: str
    shape: tuple[int, ...]


def library(name: str) -> Any:
    """A package of the extra `bench`. Raises ModelError that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ModelError(
            f"the package {name.replace('_', '-')}, which only the comparison with llama.cpp needs, is not "
            f"to be had here ({error}): pip install -c constraints.txt -e '.[bench]' builds it, in minutes"
        ) from error


def write_gguf(folder: Path, path: Path, form: str) -> Path:
    """Convert a model folder; returns `path`. Raises ConfigError on an unknown form, ModelError on a model
    that llama.cpp would not run as Wager does."""
    if form not in FORMS:
        raise ConfigError("form", form, f"one of {', '.join(FORMS)}")
    gguf = library("gguf")
    spec = read_spec(read_config(folder))
    _refuse(spec)
    reader = WeightReader(folder, torch.float32)
    writer = gguf.GGUFWriter(str(path), "qwen3")
    _describe(gguf, writer, spec, form)
    for one in tensors_of(spec):
        _add(gguf, writer, one, reader.get(one.source, one.shape).numpy(), form)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _refuse(spec: DecoderSpec) -> None:
    wrong = {
        f"of the type {spec.model_type}": spec.model_type != "qwen3",
        "with biases": spec.qkv_bias or spec.o_bias or spec.mlp_bias,
        "with sliding windows": any(window is not None for window in spec.windows),
        f"with {spec.rope.type} rotary embedding": spec.rope.type != "default",
    }
    for what, is_so in wrong.items():
        if is_so:
            raise ModelError(f"a target {what} is not converted to GGUF here")


def _describe(gguf: Any, writer: Any, spec: DecoderSpec, form: str) -> None:
    types = gguf.LlamaFileType
    kinds = {"f32": types.ALL_F32, "bf16": types.MOSTLY_BF16, "q8_0": types.MOSTLY_Q8_0}
    writer.add_file_type(kinds[form])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(spec.max_position)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.eps)
    writer.add_rope_freq_base(spec.rope.theta)
    writer.add_vocab_size(spec.vocab_size)
    writer.add_tokenizer_model("no_vocab")


def tensors_of(spec: DecoderSpec) -> Iterator[Named]:
    """Every tensor of the file. A tied head has none of its own: llama.cpp takes the embedding."""
    words = (spec.vocab_size, spec.hidden_size)
    yield Named("model.embed_tokens.weight", "token_embd.weight", words)
    for index in range(spec.num_layers):
        yield from _layer(spec, index)
    yield Named("model.norm.weight", "output_norm.weight", (spec.hidden_size,))
    if not spec.tie_embeddings:
        yield Named("lm_head.weight", "output.weight", words)


def _layer(spec: DecoderSpec, index: int) -> Iterator[Named]:
    hidden, middle, head = spec.hidden_size, spec.intermediate_size, spec.head_dim
    q_size, kv_size = spec.num_heads * head, spec.num_kv_heads * head
    parts: dict[str, tuple[str, tuple[int, ...]]] = {
        "input_layernorm": ("attn_norm", (hidden,)),
        "self_attn.q_proj": ("attn_q", (q_size, hidden)),
        "self_attn.k_proj": ("attn_k", (kv_size, hidden)),
        "self_attn.v_proj": ("attn_v", (kv_size, hidden)),
        "self_attn.q_norm": ("attn_q_norm", (head,)),
        "self_attn.k_norm": ("attn_k_norm", (head,)),
        "self_attn.o_proj": ("attn_output", (hidden, q_size)),
        "post_attention_layernorm": ("ffn_norm", (hidden,)),
        "mlp.gate_proj": ("ffn_gate", (middle, hidden)),
        "mlp.up_proj": ("ffn_up", (middle, hidden)),
        "mlp.down_proj": ("ffn_down", (hidden, middle)),
    }
    for source, (name, shape) in parts.items():
        yield Named(f"model.layers.{index}.{source}.weight", f"blk.{index}.{name}.weight", shape)


def _add(gguf: Any, writer: Any, one: Named, values: npt.NDArray[np.float32], form: str) -> None:
    if form == "f32" or len(one.shape) == 1:
        writer.add_tensor(one.name, values)
        return
    if form == "q8_0" and one.shape[1] % _GROUP:
        raise ModelError(f"{one.source} has rows of {one.shape[1]}: Q8_0 needs a multiple of {_GROUP}")
    kind = gguf.GGMLQuantizationType[form.upper()]
    writer.add_tensor(one.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
