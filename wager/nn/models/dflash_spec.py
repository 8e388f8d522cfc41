"""A DFlash drafter's config.json as a frozen record with every effective value.

A missing list of target layers is derived by the published rule, with a warning; a missing mask token or
block size is refused. This module knows no tensors. `dflash.py`, `dflash_net.py` and `wager doctor` use it.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wager.errors import ModelError
from wager.nn.layers.attention import HeadShape
from wager.nn.models.hf_config import HFConfig
from wager.nn.rope import RopeSpec, has_theta, read_rope

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DFlashSpec:
    """The shape of a block drafter.

    `feature_size` is the input width of `ingest`: len(target_layer_ids) * hidden_size.
    `block_causal_in_sliding` says whether sliding layers are causal inside the block; trainers differ, so it
    is stored with the drafter. `layer_ids_derived` says that the config did not list the layers.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    eps: float
    rope: RopeSpec
    windows: tuple[int | None, ...]
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None = None
    block_causal_in_sliding: bool = False
    layer_ids_derived: bool = False
    attention_bias: bool = False

    qk_norm = True
    mlp_bias = False

    @property
    def heads(self) -> HeadShape:
        return HeadShape(self.num_heads, self.num_kv_heads, self.head_dim)

    @property
    def feature_size(self) -> int:
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def qkv_bias(self) -> bool:
        return self.attention_bias

    @property
    def o_bias(self) -> bool:
        return self.attention_bias


def derive_layer_ids(num_layers: int, num_target_layers: int) -> tuple[int, ...]:
    """Returns layers spread evenly from layer 1 to the third last, or the middle one for a single draft
    layer.
    """
    if num_layers == 1:
        return (num_target_layers // 2,)
    step = (num_target_layers - 4) / (num_layers - 1)
    return tuple(round(1 + index * step) for index in range(num_layers))


def read_spec(values: Mapping[str, Any]) -> DFlashSpec:
    """Returns the spec of a drafter's config. Raises ModelError that names a missing or unsupported field."""
    config = HFConfig(values)
    config.require_silu()
    config.refuse("num_experts", "quantization_config")
    num_layers, num_heads = config.count("num_hidden_layers"), config.count("num_attention_heads")
    hidden_size = config.count("hidden_size")
    head_dim = config.count("head_dim", hidden_size // num_heads)
    # A wrong theta would only show as poor drafts late in a text.
    if not has_theta(values):
        raise ModelError("config field rope_theta is missing")
    own = values.get("dflash_config") or {}
    ids = _layer_ids(config, own, num_layers)
    has_count = values.get("num_target_layers") is not None
    return DFlashSpec(
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.count("num_key_value_heads", num_heads),
        head_dim=head_dim,
        intermediate_size=config.count("intermediate_size"),
        eps=config.number("rms_norm_eps", 1e-6),
        rope=read_rope(values, head_dim),
        windows=_windows(config, num_layers),
        block_size=config.count("block_size"),
        mask_token_id=_mask_token(own, values),
        target_layer_ids=ids,
        num_target_layers=config.count("num_target_layers") if has_count else None,
        block_causal_in_sliding=bool(own.get("block_causal_in_sliding", False)),
        layer_ids_derived=own.get("target_layer_ids") is None,
        attention_bias=config.flag("attention_bias"),
    )


def _windows(config: HFConfig, num_layers: int) -> tuple[int | None, ...]:
    """Returns windows by `layer_types`; without that list every layer sees the whole context."""
    has_window = config.values.get("sliding_window") is not None
    window = config.count("sliding_window") if has_window else None
    return config.layer_windows(num_layers, window) or (None,) * num_layers


def _mask_token(own: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    mask = own.get("mask_token_id", values.get("mask_token_id"))
    if isinstance(mask, bool) or not isinstance(mask, int) or mask < 0:
        raise ModelError(f"config dflash_config.mask_token_id = {mask!r}: expected a token id")
    return mask


def _layer_ids(config: HFConfig, own: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    listed = own.get("target_layer_ids")
    if listed is None:
        ids = derive_layer_ids(num_layers, config.count("num_target_layers"))
        _log.warning("drafter config has no dflash_config.target_layer_ids; derived %s", list(ids))
    elif isinstance(listed, list) and listed and all(isinstance(index, int) for index in listed):
        ids = tuple(listed)
    else:
        raise ModelError(f"config dflash_config.target_layer_ids = {listed!r}: expected a list of layers")
    if min(ids) < 0:
        raise ModelError(f"config dflash_config.target_layer_ids {list(ids)} has a negative layer")
    return ids
