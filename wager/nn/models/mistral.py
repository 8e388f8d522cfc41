"""Mistral (model_type `mistral`): no biases; one sliding window for all layers if the config sets one.

It converts the config.json to a `DecoderSpec`; the network is in `decoder.py`. `__init__.py` of this folder
registers it.
"""

from collections.abc import Mapping
from typing import Any

from wager.nn.models.common_spec import decoder_spec, split_head_dim
from wager.nn.models.decoder import DecoderSpec
from wager.nn.models.hf_config import HFConfig


def read_spec(values: Mapping[str, Any]) -> DecoderSpec:
    """Returns the spec of a Mistral config. Raises ModelError that names an unsupported field."""
    config = HFConfig(values)
    config.require_silu()
    config.refuse("num_local_experts", "num_experts", "layer_types", "attention_bias", "quantization_config")
    window = config.count("sliding_window") if values.get("sliding_window") is not None else None
    return decoder_spec(
        "mistral",
        config,
        split_head_dim(config),
        (window,) * config.count("num_hidden_layers"),
        default_max_position=131_072,
        default_kv_heads=None if "num_key_value_heads" in values else 8,
    )
