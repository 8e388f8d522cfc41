"""Tiny drafters as folders and as GGUF files of both styles, the latter written by the gguf package."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import torch

from tests.gguf.files import finish
from tests.nn.tiny import save_drafter

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_WHOLE = {
    "dflash": ("fc.weight", "enc.output_norm.weight"),
    "qwen35-dflash-draft": ("dflash.fc.weight", "dflash.hidden_norm.weight"),
}


def own_name(name: str, architecture: str) -> str:
    fc, features = _WHOLE[architecture]
    whole = {"fc.weight": fc, "hidden_norm.weight": features, "norm.weight": "output_norm.weight"}
    if name in whole:
        return whole[name]
    _, layer, part = name.removesuffix(".weight").split(".", 2)
    return f"blk.{layer}.{_LAYER[part]}.weight"


def save_drafter_gguf(
    path: Path,
    architecture: str = "dflash",
    change: Callable[[Any, dict[str, torch.Tensor]], None] | None = None,
    **changes: Any,
) -> dict[str, torch.Tensor]:
    """Writes a drafter in float32 and returns its tensors; `change` may alter the keys and tensors before."""
    tensors = save_drafter(path.parent / f"{path.stem}-folder", **SIZES, **changes)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(97)
    if architecture == "dflash":
        writer.add_uint32("dflash.block_size", 8)
        writer.add_array("dflash.target_layers", [1, 3])
        writer.add_mask_token_id(96)
    else:
        writer.add_uint32(f"{architecture}.dflash.block_size", 8)
        writer.add_uint32(f"{architecture}.dflash.n_target_layers", 2)
        writer.add_uint32(f"{architecture}.dflash.mask_token_id", 96)
        writer.add_array(f"{architecture}.dflash.target_layer_ids", [0, 2])
    named = {own_name(name, architecture): tensor for name, tensor in tensors.items()}
    if change is not None:
        change(writer, named)
    for name, tensor in named.items():
        writer.add_tensor(name, tensor.numpy())
    finish(writer)
    return tensors


def without(name: str) -> Callable[[Any, Any], None]:
    return lambda writer, named: writer.kv_data[0].pop(name)


def with_key(name: str, value: Any) -> Callable[[Any, Any], None]:
    """Replaces a key, or adds it."""

    def change(writer: Any, named: Any) -> None:
        writer.kv_data[0].pop(name, None)
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_uint32(name, value)

    return change
