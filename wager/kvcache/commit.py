"""Commit: make the K/V pool equal to the verdict, by moving the accepted path right behind the pending
tokens.

In a pass a row's tokens lie in pass order: pending tokens, then the tree's nodes. The kept nodes are a path,
whose slots may have gaps; afterwards they are consecutive. What lies behind them is stale, and no reader
reaches it.

Called by the engine's commit stage, once for all rows. It does not decide what is kept.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wager.kvcache.pool import KVPool


class Moves(NamedTuple):
    """Slots to copy, pairwise."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]


def plan_moves(slots: NDArray[np.int64], kept: NDArray[np.int64]) -> Moves:
    """One row's moves: `slots` of its pass tokens in pass order, `kept` the indices among them that stand,
    ascending.

    The i-th kept token belongs at the i-th slot; those already there (all of a chain, all pending) do not
    move.
    """
    src, dst = slots[kept], slots[: len(kept)]
    moved = src != dst
    return Moves(src[moved], dst[moved])


def commit_path(
    pool: KVPool, slots: Sequence[NDArray[np.int64]], kept: Sequence[NDArray[np.int64] | Sequence[int]]
) -> int:
    """Compact all rows of a pass in one copy over all layers; returns how many slots moved (0: nothing was
    launched).

    `slots[r]` are the slots of row r's tokens in pass order; `kept[r]` the ascending indices of those that
    stand, pending tokens included.
    """
    moves = plan_all(slots, kept)
    if len(moves.src):
        move_slots(pool, torch.from_numpy(moves.src), torch.from_numpy(moves.dst))
    return len(moves.src)


def plan_all(slots: Sequence[NDArray[np.int64]], kept: Sequence[NDArray[np.int64] | Sequence[int]]) -> Moves:
    """The moves of all rows of a pass, arguments as `commit_path`'s."""
    moves = [plan_moves(row, np.asarray(keep, dtype=np.int64)) for row, keep in zip(slots, kept, strict=True)]
    if len(moves) == 1:
        return moves[0]
    return Moves(np.concatenate([move.src for move in moves]), np.concatenate([move.dst for move in moves]))


def move_slots(pool: KVPool, src: Tensor, dst: Tensor) -> None:
    """Copy K/V between slots given as tensors on any device."""
    device = pool.store.device
    pool.copy_slots(src.to(device), dst.to(device))
