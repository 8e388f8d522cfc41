"""Qwen3 (model_type `qwen3`): norms per query and key head; optional windows on upper layers.

It converts the config.json to a `DecoderSpec`; the network is in `decoder.py`. `__init__.py` of this folder
registers it.
"""

from collections.abc import Mapping
from typing import Any

from wager.nn.models.common_spec import decoder_spec
from wager.nn.models.decoder import DecoderSpec
from wager.nn.models.hf_config import HFConfig
from wager.nn.models.qwen2 import qwen_windows


def read_spec(values: Mapping[str, Any]) -> DecoderSpec:
    """Returns the spec of a Qwen3 config. Raises ModelError that names an unsupported field."""
    config = HFConfig(values)
    config.require_silu()
    config.refuse("num_experts", "quantization_config")
    bias = config.flag("attention_bias")
    return decoder_spec(
        "qwen3",
        config,
        config.count("head_dim", 128),
        qwen_windows(config, config.count("num_hidden_layers")),
        default_max_position=32_768,
        qk_norm=True,
        qkv_bias=bias,
        o_bias=bias,
    )
