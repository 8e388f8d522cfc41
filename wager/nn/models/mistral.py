"""Mistral (model_type `mistral`): no biases, one sliding window for all layers where the config sets one.

Turns its config.json into a `DecoderSpec`; the network itself is `decoder.py`. Registered in this folder's
`__init__`.
"""

from collections.abc import Mapping
from typing import Any

from wager.nn.models.decoder import DecoderSpec
from wager.nn.models.hf_config import HFConfig
from wager.nn.rope import read_rope


def read_spec(values: Mapping[str, Any]) -> DecoderSpec:
    """The spec of a Mistral config; raises ModelError naming a field it cannot honour."""
    config = HFConfig(values)
    config.require_silu()
    config.refuse("num_local_experts", "num_experts", "layer_types", "attention_bias", "quantization_config")
    num_layers, num_heads = config.count("num_hidden_layers"), config.count("num_attention_heads")
    hidden_size = config.count("hidden_size")
    head_dim = config.count("head_dim", hidden_size // num_heads)
    window = config.count("sliding_window") if values.get("sliding_window") is not None else None
    return DecoderSpec(
        model_type="mistral",
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.count("num_key_value_heads", num_heads if "num_key_value_heads" in values else 8),
        head_dim=head_dim,
        intermediate_size=config.count("intermediate_size"),
        vocab_size=config.count("vocab_size"),
        eps=config.number("rms_norm_eps", 1e-6),
        rope=read_rope(values, head_dim),
        windows=(window,) * num_layers,
        max_position=config.count("max_position_embeddings", 131_072),
        tie_embeddings=config.flag("tie_word_embeddings"),
    )
