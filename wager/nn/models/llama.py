"""Llama (model_type `llama`): grouped heads, optional biases on attention and MLP, full attention.

It converts the config.json to a `DecoderSpec`; the network is in `decoder.py`. `__init__.py` of this folder
registers it.
"""

from collections.abc import Mapping
from typing import Any

from wager.nn.models.common_spec import decoder_spec, split_head_dim
from wager.nn.models.decoder import DecoderSpec
from wager.nn.models.hf_config import HFConfig


def read_spec(values: Mapping[str, Any]) -> DecoderSpec:
    """Returns the spec of a Llama config. Raises ModelError that names an unsupported field."""
    config = HFConfig(values)
    config.require_silu()
    config.refuse("num_local_experts", "num_experts", "sliding_window", "quantization_config")
    bias = config.flag("attention_bias")
    return decoder_spec(
        "llama",
        config,
        split_head_dim(config),
        (None,) * config.count("num_hidden_layers"),
        default_max_position=2048,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.flag("mlp_bias"),
    )
