"""A block drafter from its model folder: how it is recognised, checked, measured and made.

The folder's config.json has a `dflash_config`, in which training may have recorded the number of pending
tokens and the block lengths it used. The network itself is block.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from wager.draft.base import PoolShape, TargetInterface
from wager.draft.block import BlockDrafter, BlockOptions
from wager.draft.kind import ConfigCheck, DraftSource, compare
from wager.errors import ModelError
from wager.kvcache.pool import PoolSpec
from wager.nn.models.decoder import DecoderSpec
from wager.nn.models.dflash import load_drafter
from wager.nn.models.dflash_spec import read_spec
from wager.nn.weights import read_config


def make(target: TargetInterface, shape: PoolShape, source: DraftSource) -> BlockDrafter:
    """Loads the folder."""
    folder = source.model_folder
    recorded = _recorded_options(read_config(folder).get("dflash_config") or {})
    options = recorded | source.given("ranks", "known_tokens", "block_lengths", "kernels")
    _check_words(options.get("draft_vocab", ()), target.vocab_size, options.get("ranks"))
    net = load_drafter(folder, source.dtype, source.device, source.layout, source.options)
    return BlockDrafter(net, target, shape, BlockOptions(**options))


def _check_words(words: Sequence[int], vocab_size: int, ranks: int | None) -> None:
    if words and max(words) >= vocab_size:
        raise ModelError(f"config dflash_config.draft_vocab names token {max(words)} of {vocab_size}")
    least = BlockOptions().ranks if ranks is None else ranks
    if words and len(words) < least:
        raise ModelError(
            f"config dflash_config.draft_vocab has {len(words)} tokens, fewer than {least} ranks"
        )


def reads(values: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a DFlash network."""
    names = values.get("architectures") or []
    return bool(values.get("dflash_config")) or any("dflash" in str(name).lower() for name in names)


def page_bytes(values: Mapping[str, Any], page_size: int, dtype: torch.dtype) -> int:
    """The bytes of one page of its K/V pool."""
    spec = read_spec(values)
    return PoolSpec(spec.num_layers, 1, page_size, spec.num_kv_heads, spec.head_dim, dtype).page_bytes


def check(values: Mapping[str, Any], target: DecoderSpec | None) -> Iterator[ConfigCheck]:
    """The block size, and whether sizes, layers, vocabulary and positions are the target's."""
    spec = read_spec(values)
    yield ConfigCheck("block size", "ok", str(spec.block_size))
    if target is None:
        return
    yield compare("hidden size", spec.hidden_size, target.hidden_size)
    ids = list(spec.target_layer_ids)
    inside = max(ids) < target.num_layers
    yield ConfigCheck("layer ids", "ok" if inside else "fail", f"{ids} of {target.num_layers} layers")
    if spec.layer_ids_derived:
        yield ConfigCheck("layer ids listed", "warn", "not in the config; derived by the published rule")
    if spec.num_target_layers is not None:
        yield compare("target layers", spec.num_target_layers, target.num_layers)
    vocab_size = values.get("vocab_size")
    if vocab_size is not None:
        yield compare("vocabulary", vocab_size, target.vocab_size, if_different="warn")
    mask = spec.mask_token_id
    status = "ok" if mask < target.vocab_size else "fail"
    yield ConfigCheck("mask token", status, f"id {mask} of {target.vocab_size} tokens")
    yield compare("rope theta", spec.rope.theta, target.rope.theta, if_different="warn")
    longest = max((window or 0 for window in spec.windows), default=0)
    yield ConfigCheck("windows", "ok", f"sliding, {longest} positions" if longest else "full attention")


def _recorded_options(own: Mapping[str, Any]) -> dict[str, Any]:
    """What the folder records of its training; raises ModelError naming a field with a bad value."""
    known = own.get("max_known_tokens", 1)
    if isinstance(known, bool) or not isinstance(known, int) or known < 1:
        raise ModelError(f"config dflash_config.max_known_tokens = {known!r}: expected a positive integer")
    lengths = own.get("block_lengths", [])
    if not isinstance(lengths, list) or not all(type(length) is int for length in lengths):
        raise ModelError(f"config dflash_config.block_lengths = {lengths!r}: expected a list of lengths")
    words = own.get("draft_vocab", [])
    if not isinstance(words, list) or not all(type(word) is int and word >= 0 for word in words):
        raise ModelError("config dflash_config.draft_vocab: expected a list of token ids")
    if len(set(words)) != len(words):
        raise ModelError("config dflash_config.draft_vocab names a token twice")
    return {"known_tokens": known, "block_lengths": tuple(lengths), "draft_vocab": tuple(words)}
