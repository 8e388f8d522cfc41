"""WHAT MIGHT COME NEXT?

May import levels 0-2 (`nn`, `kvcache`, `tree`, ...) and torch; never `target`, whose embedding, head and
features reach a drafter through the engine, as the contract's `TargetFace` and `KeptTokens`. One file per
drafter: a new one is a file and a line in DRAFTERS. `make_drafter` builds one from what a user names: a kind,
or a model folder.

Read `base.py` first, the contract; then `lookup.py`, the smallest drafter, and `block.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from wager.draft.base import Drafter, PoolShape, TargetFace
from wager.draft.block import BlockDrafter, BlockOptions
from wager.draft.chain import ChainDrafter, ChainOptions
from wager.draft.lookup import LookupDrafter
from wager.draft.none import NoDrafter
from wager.errors import DrafterError, ModelError
from wager.nn.models import MODEL_TYPES, load_target
from wager.nn.models.dflash import load_drafter
from wager.nn.native.switch import Wish
from wager.nn.weights import read_config

__all__ = ["DRAFTERS", "DraftSource", "kind_of", "make_drafter"]


@dataclass(frozen=True)
class DraftSource:
    """Where a drafter comes from and how it is set up; None: the drafter's own value.

    `wish` asks for native passes, `kernels` is the config's; `depth` and `ranks` limit what is proposed,
    `min_match` and `max_match` are for lookup, `known_tokens` and `block_lengths` for a block drafter whose
    folder does not say them.
    """

    folder: Path | None = None
    dtype: torch.dtype | str = "auto"
    device: torch.device | str = "cpu"
    layout: str = "auto"
    wish: Wish | None = None
    kernels: str = "auto"
    depth: int | None = None
    ranks: int | None = None
    min_match: int | None = None
    max_match: int | None = None
    known_tokens: int | None = None
    block_lengths: tuple[int, ...] | None = None

    def given(self, *names: str) -> dict[str, Any]:
        """Those of the named fields that have a value."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def _make_none(target: TargetFace, shape: PoolShape, source: DraftSource) -> Drafter:
    return NoDrafter()


def _make_lookup(target: TargetFace, shape: PoolShape, source: DraftSource) -> Drafter:
    return LookupDrafter(**source.given("depth", "min_match", "max_match"))


def _make_chain(target: TargetFace, shape: PoolShape, source: DraftSource) -> Drafter:
    wish = source.wish
    if wish is not None and wish.narrow_bits is not None:
        # Its passes are plain torch's, which narrow weights do not make quicker.
        wish = replace(wish, weights="auto", kernels=False)
    model = load_target(_folder(source), source.dtype, source.device, source.layout, wish)
    return ChainDrafter(model, target, shape, ChainOptions(**source.given("depth", "ranks")))


def _make_block(target: TargetFace, shape: PoolShape, source: DraftSource) -> Drafter:
    folder = _folder(source)
    own = read_config(folder).get("dflash_config") or {}
    options = _recorded(own) | source.given("ranks", "known_tokens", "block_lengths", "kernels")
    net = load_drafter(folder, source.dtype, source.device, source.layout, source.wish)
    return BlockDrafter(net, target, shape, BlockOptions(**options))


DRAFTERS: dict[str, Callable[[TargetFace, PoolShape, DraftSource], Drafter]] = {
    "none": _make_none,
    "lookup": _make_lookup,
    "chain": _make_chain,
    "block": _make_block,
}
"""Kinds of drafters; `chain` and `block` need a folder."""


def make_drafter(
    name: str | Path | None, target: TargetFace, shape: PoolShape, source: DraftSource | None = None
) -> Drafter:
    """A drafter by kind (None and "none" never draft) or from a model folder, whose config tells the kind.

    Raises DrafterError when there is no such kind or folder, ModelError when the folder cannot be used with
    this target, ConfigError naming a bad option.
    """
    source = source or DraftSource()
    kind = "none" if name is None else str(name)
    if kind not in DRAFTERS:
        folder = Path(kind)
        if not folder.is_dir():
            raise DrafterError(f"drafter {kind!r} is neither {', '.join(DRAFTERS)} nor a model folder")
        kind, source = kind_of(read_config(folder)), replace(source, folder=folder)
    return DRAFTERS[kind](target, shape, source)


def kind_of(config: Mapping[str, Any]) -> str:
    """The drafter a model folder's config.json describes; ModelError when it is none."""
    names = config.get("architectures") or []
    if config.get("dflash_config") or any("dflash" in str(name).lower() for name in names):
        return "block"
    if config.get("model_type") in MODEL_TYPES:
        return "chain"
    known = ", ".join(MODEL_TYPES)
    raise ModelError(
        f"config model_type {config.get('model_type')!r} is no drafter: neither DFlash nor {known}"
    )


def _folder(source: DraftSource) -> Path:
    if source.folder is None:
        raise DrafterError("this kind of drafter is loaded from a model folder: give its path")
    return source.folder


def _recorded(own: Mapping[str, Any]) -> dict[str, Any]:
    """What a block drafter's folder says of its training."""
    known = own.get("max_known_tokens", 1)
    if isinstance(known, bool) or not isinstance(known, int) or known < 1:
        raise ModelError(f"config dflash_config.max_known_tokens = {known!r}: expected a positive integer")
    lengths = own.get("block_lengths", [])
    if not isinstance(lengths, list) or not all(type(length) is int for length in lengths):
        raise ModelError(f"config dflash_config.block_lengths = {lengths!r}: expected a list of lengths")
    return {"known_tokens": known, "block_lengths": tuple(lengths)}
