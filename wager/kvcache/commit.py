"""Commit: makes the K/V pool equal to the verdict by moving the accepted path directly behind the pending
tokens.

The slots of a row's tokens are in pass order: first the pending tokens, then the nodes of the tree. The kept
nodes form a path, and their slots may have gaps; after the move they are consecutive. Slots behind them hold
stale values that are never read. The commit stage of the engine calls this once for all rows. This module
does not decide which nodes are kept.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wager.kvcache.pool import KVPool


class Moves(NamedTuple):
    """Source and destination slots of the copies."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]


def plan_row_moves(slots: NDArray[np.int64], kept: NDArray[np.int64]) -> Moves:
    """Returns the moves of one row, from the `slots` of its tokens in pass order and the ascending `kept`
    indices.

    The i-th kept token belongs into the i-th slot. Tokens that are already there do not move: all of a chain,
    and all pending tokens.
    """
    src, dst = slots[kept], slots[: len(kept)]
    moved = src != dst
    return Moves(src[moved], dst[moved])


def commit_path(
    pool: KVPool, slots: Sequence[NDArray[np.int64]], kept: Sequence[NDArray[np.int64] | Sequence[int]]
) -> int:
    """Moves the kept tokens of all rows in one copy over all layers, and returns the number of moved slots.

    `slots[r]` are the slots of row r's tokens in pass order. `kept[r]` are the ascending indices of its kept
    tokens, including the pending ones. Nothing is launched if no slot moves.
    """
    moves = plan_pass_moves(slots, kept)
    if len(moves.src):
        move_slots(pool, torch.from_numpy(moves.src), torch.from_numpy(moves.dst))
    return len(moves.src)


def plan_pass_moves(
    slots: Sequence[NDArray[np.int64]], kept: Sequence[NDArray[np.int64] | Sequence[int]]
) -> Moves:
    """Returns the moves of all rows of a pass; the arguments are those of `commit_path`."""
    moves = [
        plan_row_moves(row, np.asarray(keep, dtype=np.int64)) for row, keep in zip(slots, kept, strict=True)
    ]
    if len(moves) == 1:
        return moves[0]
    return Moves(np.concatenate([move.src for move in moves]), np.concatenate([move.dst for move in moves]))


def move_slots(pool: KVPool, src: Tensor, dst: Tensor) -> None:
    """Copies K/V between slots that are given as tensors on any device."""
    device = pool.store.device
    pool.copy_slots(src.to(device), dst.to(device))
