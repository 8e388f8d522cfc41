"""From the target's choices to the next draft's tables without the host: the walk along the accepted path.

One program does for one row what the host does at accept and at the start of a draft: it walks from the root
to the node that carries the target's choice, as far as there is one (`tree/accept.py`), and writes where the
kept tokens' features go and where the next block stands. So a drafter's graphs can be launched behind the
target's pass, before anybody has read the verdict. Bound by latency: a few dozen dependent loads.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from wager.nn.kernels.device import power_of_two
from wager.nn.kernels.tables import ITEM_FIELDS, ROW_FIELDS, PassTables

MAX_KEPT = 32
"""Tokens that a row may keep of one pass: pending ones and an accepted path."""
HEADER = 4
"""num_nodes, num_pending, context_len, num_items: what the host says of the row."""


class Walk(NamedTuple):
    """A verified row on the device, all int64.

    `chosen` are the target's choices behind the root and each node, `token_ids` the tokens of its pass,
    `numbers` [2, nodes]: the header, and each node's parent (-1: the root).
    """

    chosen: Tensor
    token_ids: Tensor
    numbers: Tensor


class Block(NamedTuple):
    """What a block drafter's blocks are, and the size of its pages."""

    mask_id: int
    size: int
    page_size: int


def advance(walk: Walk, tables: PassTables, places: Tensor, block: Block) -> None:
    """Write `places` [3, MAX_KEPT or more] and line 0 of a block drafter's tables.

    Places are each kept token's position, slot (-1 behind the last) and index in the pass. Of the tables:
    token ids, positions and slots of the block, and the context of its row and items; the host has laid the
    row and its pages for the longest context it may come to.
    """
    assert places.shape[0] == 3 and places.shape[1] >= MAX_KEPT and places.is_contiguous()
    assert all(one.dtype == torch.int64 for one in (*walk, places))
    _advance[(1,)](
        *walk, tables.pages, places, tables.token_ids, tables.positions, tables.slots, tables.rows,
        tables.items, walk.numbers.stride(0), places.stride(0), *block,
        NODES=power_of_two(walk.numbers.shape[1]), KEPT=MAX_KEPT, BLOCK=power_of_two(block.size),
        ITEMS=power_of_two(len(tables.items)), ITEM=ITEM_FIELDS, ROW=ROW_FIELDS, num_warps=4,
    )  # fmt: skip


@triton.jit
def _advance(
    chosen, token_ids, numbers, pages, places, block_tokens, positions, slots, rows, items,
    parents_at, stride, mask_id, block_size, page_size,
    NODES: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr, ITEMS: tl.constexpr,
    ITEM: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    num_nodes, num_pending = tl.load(numbers), tl.load(numbers + 1)
    context_len, num_items = tl.load(numbers + 2), tl.load(numbers + 3)
    node = tl.arange(0, NODES).to(tl.int64)
    there = node < num_nodes
    token = tl.load(token_ids + num_pending + node, mask=there, other=-1)
    parent = tl.load(numbers + parents_at + node, mask=there, other=-2)
    kept = tl.arange(0, KEPT).to(tl.int64)
    source = kept  # pending tokens come first
    at = num_nodes * 0 - 1
    count = num_nodes * 0
    alive = num_nodes >= 0
    for _ in range(KEPT):
        wanted = tl.load(chosen + at + 1)
        hit = there & (parent == at) & (token == wanted)
        first = tl.min(tl.where(hit, node, NODES), axis=0)
        alive = alive & (first < NODES)
        source = tl.where((kept == num_pending + count) & alive, num_pending + first, source)
        at = tl.where(alive, first, at)
        count += tl.where(alive, 1, 0)
    bonus = tl.load(chosen + at + 1)
    num_kept = num_pending + count
    stands = kept < num_kept
    place = context_len + kept
    page = tl.load(pages + place // page_size, mask=stands, other=0).to(tl.int64)
    tl.store(places + kept, tl.where(stands, place, 0))
    tl.store(places + stride + kept, tl.where(stands, page * page_size + place % page_size, -1))
    tl.store(places + 2 * stride + kept, tl.where(stands, source, 0))
    context_len += num_kept
    step = tl.arange(0, BLOCK).to(tl.int64)
    inside = step < block_size
    place = context_len + step
    page = tl.load(pages + place // page_size, mask=inside, other=0).to(tl.int64)
    tl.store(block_tokens + step, tl.where(step == 0, bonus, mask_id), mask=inside)
    tl.store(positions + step, place, mask=inside)
    tl.store(slots + step, page * page_size + place % page_size, mask=inside)
    # The context is the fourth field of a row, and of the row's copy in every item.
    tl.store(rows + 3, context_len.to(tl.int32))
    item = tl.arange(0, ITEMS)
    tl.store(items + item * ITEM + 3, context_len.to(tl.int32), mask=item < num_items)
