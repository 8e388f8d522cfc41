"""Qwen2 and Qwen2.5 (model_type `qwen2`): biases on q, k, v but not on the output, windows on upper layers if
asked.

Turns its config.json into a `DecoderSpec`; the network itself is `decoder.py`. Registered in this folder's
`__init__`.
"""

from collections.abc import Mapping
from typing import Any

from wager.nn.models.decoder import DecoderSpec
from wager.nn.models.hf_config import HFConfig
from wager.nn.rope import read_rope


def read_spec(values: Mapping[str, Any]) -> DecoderSpec:
    """The spec of a Qwen2 config; raises ModelError naming a field it cannot honour."""
    config = HFConfig(values)
    config.require_silu()
    config.refuse("num_experts", "quantization_config")
    num_layers, num_heads = config.count("num_hidden_layers"), config.count("num_attention_heads")
    hidden_size = config.count("hidden_size")
    # The published network honours a head size in the file, where there is one.
    head_dim = config.count("head_dim", hidden_size // num_heads)
    return DecoderSpec(
        model_type="qwen2",
        hidden_size=hidden_size,
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
        qkv_bias=True,
        tie_embeddings=config.flag("tie_word_embeddings"),
    )


def qwen_windows(config: HFConfig, num_layers: int) -> tuple[int | None, ...]:
    """Each layer's window: by `layer_types` if listed, else from layer `max_window_layers` on; if switched
    on.
    """
    use_window = config.flag("use_sliding_window") and config.values.get("sliding_window") is not None
    window = config.count("sliding_window") if use_window else None
    listed = config.layer_windows(num_layers, window)
    if listed is not None:
        return listed
    first = config.count("max_window_layers", 28) if config.values.get("max_window_layers") != 0 else 0
    return tuple(window if index >= first else None for index in range(num_layers))
