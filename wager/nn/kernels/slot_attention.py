"""Attention of one token in every slot over that slot's own keys, which lie in fixed room.

A program takes one slot and one key head. The query heads that share this key head are folded into the tile,
so keys and values are read once, and only up to the slot's position. The speed is limited by that reading:
there are thousands of slots, so nothing is split. The grid is fixed, so a pass can be captured once and
replayed. `wager/train` writes a target's texts with it. The plain-torch reference is
`layers/slot_attention.py`, because a CPU needs it without triton.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

import math

import triton
import triton.language as tl
from torch import Tensor

from wager.nn.kernels.device import power_of_two, tile_product
from wager.nn.layers.slot_attention import attend_slots as attend_slots_reference

__all__ = ["attend_slots", "attend_slots_reference"]

_KEYS = 64
_LEAST_LINES = 16
"""Smallest number of rows of a tile product."""


def attend_slots(
    queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor, window: int | None = None
) -> Tensor:
    """Returns the attention [slots, heads * head_dim] that the reference returns."""
    num_slots, num_heads, size = queries.shape
    num_kv_heads, length = keys.shape[1], keys.shape[2]
    assert keys.shape == values.shape == (num_slots, num_kv_heads, length, size), f"{tuple(keys.shape)}"
    assert keys.is_contiguous() and values.is_contiguous(), "keys and values in one piece"
    assert positions.shape == (num_slots,) and positions.is_contiguous(), "one position per slot"
    queries, group = queries.contiguous(), num_heads // num_kv_heads
    out = queries.new_empty((num_slots, num_heads * size))
    if num_slots:
        _attend_slots[(num_slots, num_kv_heads)](
            queries, keys, values, positions, out, length, window or 0, math.log2(math.e) / math.sqrt(size),
            NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=size, BLOCK_D=max(16, power_of_two(size)),
            LINES=max(_LEAST_LINES, power_of_two(group)), KEYS=_KEYS, HAS_WINDOW=window is not None,
        )  # fmt: skip
    return out


@triton.jit
def _attend_slots(
    queries, keys, values, positions, out, length, window, scale,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    LINES: tl.constexpr, KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    slot, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    stop = tl.load(positions + slot).to(tl.int32) + 1
    first = stop * 0
    if HAS_WINDOW:
        first = tl.maximum(stop - window, 0)
    line, at, key = tl.arange(0, LINES), tl.arange(0, BLOCK_D), tl.arange(0, KEYS)
    wide = (at < HEAD_DIM)[None, :]
    cells = ((slot * NUM_KV_HEADS + head) * GROUP + line[:, None]) * HEAD_DIM + at[None, :]
    there = (line < GROUP)[:, None] & wide
    query = tl.load(queries + cells, mask=there, other=0.0)
    base = (slot * NUM_KV_HEADS + head) * length * HEAD_DIM
    peak = tl.full((LINES,), float("-inf"), tl.float32)
    total = tl.zeros((LINES,), tl.float32)
    mixed = tl.zeros((LINES, BLOCK_D), tl.float32)
    for start in range(first, stop, KEYS):
        inside = start + key < stop
        places = base + (start + key)[:, None] * HEAD_DIM + at[None, :]
        tile = tl.load(keys + places, mask=inside[:, None] & wide, other=0.0)
        scores = tile_product(query, tl.trans(tile), tl.zeros((LINES, KEYS), tl.float32)) * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        shares = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(peak - higher)
        total = total * fade + tl.sum(shares, axis=1)
        tile = tl.load(values + places, mask=inside[:, None] & wide, other=0.0)
        mixed = tile_product(shares.to(tile.dtype), tile, mixed * fade[:, None])
        peak = higher
    tl.store(out + cells, mixed / total[:, None], mask=there)
