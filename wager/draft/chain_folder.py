"""A chain drafter from its model folder: how it is recognised, checked, measured and made.

Any decoder folder of a supported model type is one. The network itself is chain.py's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from wager.draft.base import PoolShape, TargetInterface
from wager.draft.chain import ChainDrafter, ChainOptions
from wager.draft.kind import ConfigCheck, DraftSource, compare
from wager.kvcache.pool import PoolSpec
from wager.nn.models import MODEL_TYPES, load_target, read_spec
from wager.nn.models.decoder import DecoderSpec

log = logging.getLogger(__name__)


def make(target: TargetInterface, shape: PoolShape, source: DraftSource) -> ChainDrafter:
    """Loads the folder."""
    options = source.options
    if options is not None and options.quant_bits is not None:
        # Only kernels multiply by narrow weights.
        log.warning("the chain drafter keeps wide weights: it runs by plain torch, not by kernels")
        options = replace(options, weights="auto", kernels=False)
    model = load_target(source.model_folder, source.dtype, source.device, source.layout, options)
    return ChainDrafter(model, target, shape, ChainOptions(**source.given("depth", "ranks")))


def reads(values: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a decoder."""
    return values.get("model_type") in MODEL_TYPES


def page_bytes(values: Mapping[str, Any], page_size: int, dtype: torch.dtype) -> int:
    """The bytes of one page of its K/V pool."""
    spec = read_spec(values)
    return PoolSpec(spec.num_layers, 1, page_size, spec.num_kv_heads, spec.head_dim, dtype).page_bytes


def check(values: Mapping[str, Any], target: DecoderSpec | None) -> Iterator[ConfigCheck]:
    """What the model is, and whether its vocabulary is the target's."""
    spec = read_spec(values)
    detail = f"{spec.model_type}, {spec.num_layers} layers, drafts a chain token by token"
    yield ConfigCheck("drafter model", "ok", detail)
    if target is not None:
        yield compare("vocabulary", spec.vocab_size, target.vocab_size)
