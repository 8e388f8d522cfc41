"""Qwen2 and Qwen2.5 (model_type `qwen2`): biases on q, k, v only; optional windows on upper layers.

It converts the config.json to a `DecoderSpec`; the network is in `decoder.py`. `__init__.py` of this folder
registers it.
"""

from collections.abc import Mapping
from typing import Any

from wager.nn.models.common_spec import decoder_spec, split_head_dim
from wager.nn.models.decoder import DecoderSpec
from wager.nn.models.hf_config import HFConfig


def read_spec(values: Mapping[str, Any]) -> DecoderSpec:
    """Returns the spec of a Qwen2 config. Raises ModelError that names an unsupported field."""
    config = HFConfig(values)
    config.require_silu()
    config.refuse("num_experts", "quantization_config")
    windows = qwen_windows(config, config.count("num_hidden_layers"))
    # The published network accepts a head size in its config.
    head_dim = split_head_dim(config)
    return decoder_spec("qwen2", config, head_dim, windows, default_max_position=32_768, qkv_bias=True)


def qwen_windows(config: HFConfig, num_layers: int) -> tuple[int | None, ...]:
    """Returns each layer's window: by `layer_types`, else from layer `max_window_layers` on."""
    use_window = config.flag("use_sliding_window") and config.values.get("sliding_window") is not None
    window = config.count("sliding_window") if use_window else None
    listed = config.layer_windows(num_layers, window)
    if listed is not None:
        return listed
    first = config.count("max_window_layers", 28) if config.values.get("max_window_layers") != 0 else 0
    return tuple(window if index >= first else None for index in range(num_layers))
