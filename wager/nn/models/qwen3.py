"""Qwen3 (model_type `qwen3`): queries and keys normed per head, own head size, windows on upper layers if
asked.

Turns its config.json into a `DecoderSpec`; the network itself is `decoder.py`. Registered in this folder's
`__init__`.
"""

from collections.abc import Mapping
from typing import Any

from wager.nn.models.decoder import DecoderSpec
from wager.nn.models.hf_config import HFConfig
from wager.nn.models.qwen2 import qwen_windows
from wager.nn.rope import read_rope


def read_spec(values: Mapping[str, Any]) -> DecoderSpec:
    """The spec of a Qwen3 config; raises ModelError naming a field it cannot honour."""
    config = HFConfig(values)
    config.require_silu()
    config.refuse("num_experts", "quantization_config")
    num_layers, num_heads = config.count("num_hidden_layers"), config.count("num_attention_heads")
    head_dim = config.count("head_dim", 128)
    bias = config.flag("attention_bias")
    return DecoderSpec(
        model_type="qwen3",
        hidden_size=config.count("hidden_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.count("num_key_value_heads", num_heads),
        head_dim=head_dim,
        intermediate_size=config.count("intermediate_size"),
        vocab_size=config.count("vocab_size"),
        eps=config.number("rms_norm_eps", 1e-6),
        rope=read_rope(values, head_dim),
        windows=qwen_windows(config, num_layers),
        max_position=config.count("max_position_embeddings", 32_768),
        qk_norm=True,
        qkv_bias=bias,
        o_bias=bias,
        tie_embeddings=config.flag("tie_word_embeddings"),
    )
