"""Llama (model_type `llama`): grouped heads, optional biases on attention and MLP, full attention throughout.

Turns its config.json into a `DecoderSpec`; the network itself is `decoder.py`. Registered in this folder's
`__init__`.
"""

from collections.abc import Mapping
from typing import Any

from wager.nn.models.decoder import DecoderSpec
from wager.nn.models.hf_config import HFConfig
from wager.nn.rope import read_rope


def read_spec(values: Mapping[str, Any]) -> DecoderSpec:
    """The spec of a Llama config; raises ModelError naming a field it cannot honour."""
    config = HFConfig(values)
    config.require_silu()
    config.refuse("num_local_experts", "num_experts", "sliding_window", "quantization_config")
    num_layers, num_heads = config.count("num_hidden_layers"), config.count("num_attention_heads")
    hidden_size = config.count("hidden_size")
    head_dim = config.count("head_dim", hidden_size // num_heads)
    bias = config.flag("attention_bias")
    return DecoderSpec(
        model_type="llama",
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.count("num_key_value_heads", num_heads),
        head_dim=head_dim,
        intermediate_size=config.count("intermediate_size"),
        vocab_size=config.count("vocab_size"),
        eps=config.number("rms_norm_eps", 1e-6),
        rope=read_rope(values, head_dim),
        windows=(None,) * num_layers,
        max_position=config.count("max_position_embeddings", 2048),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.flag("mlp_bias"),
        tie_embeddings=config.flag("tie_word_embeddings"),
    )
