"""WHAT MIGHT COME NEXT?

The drafters, one file for each. May import levels 0 to 2 (`nn`, `kvcache`, `tree`, ...) and torch, but never
`target`: the target's embedding, head and features reach a drafter through the engine, as the contract's
`TargetInterface` and `KeptTokens`.

Read `base.py` first, which is the contract; then `lookup.py`, the smallest useful drafter, and `block.py`. A
new drafter is one file and one line in DRAFTERS; docs/drafters.md has a complete example.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from wager.draft import block_folder, chain_folder
from wager.draft.base import Drafter, PoolShape, TargetInterface
from wager.draft.kind import DrafterKind, DraftSource
from wager.draft.lookup import LookupDrafter
from wager.draft.none import NoDrafter
from wager.errors import DrafterError, ModelError
from wager.gguf.header import is_gguf
from wager.nn.models import MODEL_TYPES
from wager.nn.weights import read_config

__all__ = ["DRAFTERS", "DraftSource", "kind_of", "make_drafter", "page_bytes"]

DRAFTERS: dict[str, DrafterKind] = {
    "none": DrafterKind(NoDrafter.make),
    "lookup": DrafterKind(LookupDrafter.make),
    "block": DrafterKind(block_folder.make, block_folder.page_bytes, block_folder.reads, block_folder.check),
    "chain": DrafterKind(chain_folder.make, chain_folder.page_bytes, chain_folder.reads, chain_folder.check),
}
"""Every kind of drafter. The config of a model folder belongs to the first kind that `reads` it."""


def make_drafter(
    name: str | Path | None, target: TargetInterface, shape: PoolShape, source: DraftSource | None = None
) -> Drafter:
    """Builds a drafter from the name of its kind or from a model folder; None and "none" never guess.

    Raises DrafterError if there is no such kind or folder, ModelError if the folder cannot be used with this
    target, and ConfigError for a bad option.
    """
    source = source or DraftSource()
    kind = "none" if name is None else str(name)
    if kind not in DRAFTERS:
        kind, source = kind_of(_config_of(kind)), replace(source, folder=Path(kind))
    return DRAFTERS[kind].make(target, shape, source)


def page_bytes(name: str | Path, page_size: int, dtype: torch.dtype) -> int:
    """Returns the bytes that a drafter will keep per page, from its kind or its model folder."""
    kind = str(name)
    if kind in DRAFTERS:
        return DRAFTERS[kind].page_bytes({}, page_size, dtype)
    values = _config_of(kind)
    return DRAFTERS[kind_of(values)].page_bytes(values, page_size, dtype)


def kind_of(config: Mapping[str, Any]) -> str:
    """Returns the kind of the drafter that a config.json describes; raises ModelError if there is none."""
    for name, kind in DRAFTERS.items():
        if kind.reads(config):
            return name
    known = ", ".join(MODEL_TYPES)
    raise ModelError(
        f"config model_type {config.get('model_type')!r} is no drafter: neither DFlash nor {known}"
    )


def _config_of(name: str) -> dict[str, Any]:
    folder = Path(name)
    if not (folder.is_dir() or is_gguf(folder)):
        raise DrafterError(
            f"drafter {name!r} is neither {', '.join(DRAFTERS)} nor a model folder nor a GGUF file"
        )
    return read_config(folder)
