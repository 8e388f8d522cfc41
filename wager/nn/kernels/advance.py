"""From the target's choices to the next draft's tables without the host: the walk along accepted paths.

A program does for its row what the host does at accept and at the start of a draft: it walks from the root
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

KEPT_SIZES = (8, 16, 32)
"""Tokens that a row may keep of one pass, pending ones and an accepted path: one of these for all rows."""
MAX_KEPT = KEPT_SIZES[-1]
MAX_NODES = 128
"""Of one row's tree."""


class Header(NamedTuple):
    """What the host says of a verified row; all 0 where there is none."""

    num_nodes: int
    num_pending: int
    context_len: int
    first_token: int
    """Its first token in the pass,"""
    first_choice: int
    """the choice behind its root among all of the pass,"""
    first_parent: int
    """and its first node's parent in the second line of numbers."""


HEADER = len(Header._fields)


class Walk(NamedTuple):
    """Verified rows on the device, all int64.

    `chosen` are the target's choices behind the root and each node, row after row, `token_ids` the tokens of
    the pass, `numbers` [2, any]: the rows' headers, and the parents of their nodes (-1: the root).
    """

    chosen: Tensor
    token_ids: Tensor
    numbers: Tensor


class Block(NamedTuple):
    """What a block drafter's blocks are, and the size of its pages."""

    mask_id: int
    size: int
    page_size: int


def advance(walk: Walk, num_rows: int, tables: PassTables, places: Tensor, block: Block) -> None:
    """Write `places` [3, rows, kept] and the lines of these rows in a block drafter's tables.

    Places are each kept token's position, slot (-1 behind the last) and index in the pass. Of the tables:
    token ids, positions and slots of the blocks, and the contexts of rows and items; the host has laid the
    rows and their pages for the longest context each may come to.
    """
    assert places.shape[0] == 3 and places.shape[2] in KEPT_SIZES and num_rows <= places.shape[1]
    assert places.stride(2) == 1 and places.stride(1) == places.shape[2]
    assert all(one.dtype == torch.int64 for one in (*walk, places))
    _advance[(num_rows,)](
        *walk, tables.pages, places, tables.token_ids, tables.positions, tables.slots, tables.rows,
        tables.items, walk.numbers.stride(0), tables.pages.stride(0), places.stride(0), *block,
        NODES=MAX_NODES, KEPT=places.shape[2], BLOCK=power_of_two(block.size),
        ITEMS=power_of_two(len(tables.items)), NUM_ITEMS=len(tables.items), ITEM=ITEM_FIELDS, ROW=ROW_FIELDS,
        HEAD=HEADER, num_warps=4,
    )  # fmt: skip


@triton.jit
def _advance(
    chosen, token_ids, numbers, pages, places, block_tokens, positions, slots, rows, items,
    parents_at, page_line, stride, mask_id, block_size, page_size,
    NODES: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr, ITEMS: tl.constexpr,
    NUM_ITEMS: tl.constexpr, ITEM: tl.constexpr, ROW: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = numbers + row * HEAD
    num_nodes, num_pending, context_len = tl.load(head), tl.load(head + 1), tl.load(head + 2)
    tokens, choices = token_ids + tl.load(head + 3), chosen + tl.load(head + 4)
    parents, own_pages = numbers + parents_at + tl.load(head + 5), pages + row * page_line
    node = tl.arange(0, NODES).to(tl.int64)
    there = node < num_nodes
    token = tl.load(tokens + num_pending + node, mask=there, other=-1)
    parent = tl.load(parents + node, mask=there, other=-2)
    kept = tl.arange(0, KEPT).to(tl.int64)
    source = kept  # pending tokens come first
    at = num_nodes * 0 - 1
    count = num_nodes * 0
    alive = num_nodes >= 0
    for _ in range(KEPT):
        wanted = tl.load(choices + at + 1)
        hit = there & (parent == at) & (token == wanted)
        first = tl.min(tl.where(hit, node, NODES), axis=0)
        alive = alive & (first < NODES)
        source = tl.where((kept == num_pending + count) & alive, num_pending + first, source)
        at = tl.where(alive, first, at)
        count += tl.where(alive, 1, 0)
    bonus = tl.load(choices + at + 1)
    num_kept = num_pending + count
    stands = kept < num_kept
    place = context_len + kept
    page = tl.load(own_pages + place // page_size, mask=stands, other=0).to(tl.int64)
    out = places + row * KEPT + kept
    tl.store(out, tl.where(stands, place, 0))
    tl.store(out + stride, tl.where(stands, page * page_size + place % page_size, -1))
    tl.store(out + 2 * stride, tl.where(stands, tl.load(head + 3) + source, 0))
    context_len += num_kept
    step = tl.arange(0, BLOCK).to(tl.int64)
    inside = (step < block_size) & (num_pending > 0)
    place = context_len + step
    page = tl.load(own_pages + place // page_size, mask=inside, other=0).to(tl.int64)
    line = row * block_size + step
    tl.store(block_tokens + line, tl.where(step == 0, bonus, mask_id), mask=inside)
    tl.store(positions + line, place, mask=inside)
    tl.store(slots + line, page * page_size + place % page_size, mask=inside)
    # The context is the fourth field of a row, and of the row's copy in every item of its own; the sixth is
    # its line of the page table, which is its place.
    tl.store(rows + row * ROW + 3, context_len.to(tl.int32), mask=num_pending > 0)
    item = tl.arange(0, ITEMS)
    its = tl.load(items + item * ITEM + 5, mask=item < NUM_ITEMS, other=-1)
    tl.store(items + item * ITEM + 3, context_len.to(tl.int32), mask=(its == row) & (num_pending > 0))
