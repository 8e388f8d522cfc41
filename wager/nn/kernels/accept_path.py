"""Walks the accepted paths on the device: from the target's choices to the next draft's tables, without the
host.

One program per row does what the host does at accept and at the start of a draft. It walks from the root as
long as a child carries the target's choice (`tree/accept.py`), and writes the destinations of the kept
tokens' features and the position of the next block. So a drafter's graphs can be launched behind the target's
pass before the verdict is read. The speed is limited by latency: a few dozen dependent loads.
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
"""Capacities for the kept tokens of a row (pending ones and an accepted path); one of them holds for all
rows.
"""
MAX_KEPT = KEPT_SIZES[-1]
MAX_NODES = 128
"""Largest number of nodes in the tree of a row."""


class VerifiedRow(NamedTuple):
    """A verified row as the host describes it; all fields are 0 for an empty row."""

    num_nodes: int
    num_pending: int
    context_len: int
    first_token: int
    """Index of its first token in the pass."""
    first_choice: int
    """Index of the choice after its root among all choices of the pass."""
    first_parent: int
    """Index of its first node's parent in the second line of `VerifiedPass.numbers`."""


VERIFIED_ROW_FIELDS = len(VerifiedRow._fields)


class VerifiedPass(NamedTuple):
    """Verified rows on the device, all int64.

    `chosen` are the target's choices after the root and each node, row after row. `token_ids` are the tokens
    of the pass. `numbers` [2, any] has the rows' fields in its first line and the parents of their nodes (-1:
    the root) in its second line.
    """

    chosen: Tensor
    token_ids: Tensor
    numbers: Tensor


class BlockShape(NamedTuple):
    """The size of a block drafter's blocks and pages."""

    mask_id: int
    size: int
    page_size: int


def accept_paths(
    walk: VerifiedPass, num_rows: int, tables: PassTables, places: Tensor, block: BlockShape
) -> None:
    """Writes `places` [3, rows, kept] and the lines of these rows in a block drafter's tables.

    Places are the position, the slot (-1 after the last) and the index in the pass of each kept token. In the
    tables it writes token ids, positions and slots of the blocks, and the contexts of rows and items. The
    host has written the rows and their pages for the longest possible context.
    """
    assert places.shape[0] == 3 and places.shape[2] in KEPT_SIZES and num_rows <= places.shape[1]
    assert places.stride(2) == 1 and places.stride(1) == places.shape[2]
    assert all(one.dtype == torch.int64 for one in (*walk, places))
    _advance[(num_rows,)](
        *walk, tables.pages, places, tables.token_ids, tables.positions, tables.slots, tables.rows,
        tables.items, walk.numbers.stride(0), tables.pages.stride(0), places.stride(0), *block,
        NODES=MAX_NODES, KEPT=places.shape[2], BLOCK=power_of_two(block.size),
        ITEMS=power_of_two(len(tables.items)), NUM_ITEMS=len(tables.items), ITEM=ITEM_FIELDS, ROW=ROW_FIELDS,
        HEAD=VERIFIED_ROW_FIELDS, num_warps=4,
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
    # The context is the fourth field of a row, and of its copy in each of its items. The sixth field is
    # its line of the page table.
    tl.store(rows + row * ROW + 3, context_len.to(tl.int32), mask=num_pending > 0)
    item = tl.arange(0, ITEMS)
    its = tl.load(items + item * ITEM + 5, mask=item < NUM_ITEMS, other=-1)
    tl.store(items + item * ITEM + 3, context_len.to(tl.int32), mask=(its == row) & (num_pending > 0))
