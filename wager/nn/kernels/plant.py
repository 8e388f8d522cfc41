"""A draft's tree built where the draft is: from candidates to the tables of the pass that verifies them.

One program a row does what `tree/build.py` does for one tree: it takes the most probable node, offers that
one's next sibling and first child, and goes on. Tokens, positions and masks of the nodes go to the pass's
tables, and the tree to where the host reads it while the pass runs. So a pass can be launched behind the
draft, before anybody has seen it; how many nodes it has must be known by then. Bound by latency: some
hundred cycles a node, in registers but for the table of costs.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from wager.nn.kernels.device import power_of_two
from wager.nn.kernels.tables import PassTables

MAX_PLANTED = 64
"""Nodes of one tree: those that one word of a mask holds."""
FIELDS = 10
"""Of a `Bed`, as numbers: a line each."""
TREE_FIELDS = 4
"""depth, rank, parent, token: what the host is told of a node."""

_LOWEST, _HIGHEST = float(np.log(1e-6)), float(np.log(1.0 - 1e-3))


class Bed(NamedTuple):
    """Where one row's tree grows, and how large it becomes."""

    line: int
    """Of its first candidates,"""
    num_depths: int
    """of which there are so many lines,"""
    num_ranks: int
    """and of each so many are used: 1 for a chain."""
    num_nodes: int
    first: int
    """The place of its first node in the pass."""
    root: int
    """The position of its root."""
    weights: tuple[float, float, float] | None = None
    """Of the calibration (`policy/calibration.py`); None: the drafter's own word."""

    def numbers(self) -> list[int]:
        weights = np.array(self.weights or (0.0, 0.0, 0.0), np.float32).view(np.int32).tolist()
        return [*self[:6], self.weights is not None, *weights]


class Ground(NamedTuple):
    """Room on the device for as many trees as `beds` has lines."""

    beds: Tensor
    """[rows, FIELDS] int64"""
    costs: Tensor
    """[rows, depths * ranks] float32"""
    found: Tensor
    """[TREE_FIELDS, tokens] int64: the nodes, at their places in the pass."""


def most_nodes(num_depths: int, num_ranks: int) -> int:
    """Nodes that a tree of such candidates can have, as far as one may be planted."""
    count = level = 0
    for _ in range(num_depths):
        level = min(max(level, 1) * num_ranks, MAX_PLANTED)
        count += level
    return min(count, MAX_PLANTED)


def plant(top: Tensor, num_rows: int, ground: Ground, tables: PassTables, vocab_size: int) -> None:
    """Grow the trees of the first `num_rows` beds from candidates `top` [lines, 2, ranks] float32.

    A line holds the log-probabilities of its candidates, descending, and their tokens. Writes the nodes' part
    of the tables, and what they are to `ground.found`; the host has laid everything else.
    """
    beds, costs, found = ground
    ranks = top.shape[2]
    assert top.is_contiguous() and beds.is_contiguous() and beds.shape[1] == FIELDS
    assert found.is_contiguous() and costs.is_contiguous() and costs.shape[1] % ranks == 0
    assert tables.masks.dtype == found.dtype == beds.dtype == torch.int64
    _plant[(num_rows,)](
        top, *ground, tables.token_ids, tables.positions, tables.masks,
        found.shape[1], costs.shape[1], tables.masks.shape[1], vocab_size - 1, _LOWEST, _HIGHEST,
        RANKS=ranks, CELLS=power_of_two(costs.shape[1]), FRONT=2 * MAX_PLANTED, NODES=MAX_PLANTED,
        FIELDS=FIELDS, num_warps=1,
    )  # fmt: skip


@triton.jit
def _entry(cost, depth, rank, parent):
    """A node that may come next as one number, by which they are ordered; the parent as its node plus one."""
    bits = cost.to(tl.int32, bitcast=True).to(tl.int64)  # of what is not negative, bits are in order
    return (bits << 32) | (depth << 24) | (rank << 16) | parent


@triton.jit
def _lay_costs(top, bed, costs, cells, lowest, highest, RANKS: tl.constexpr, CELLS: tl.constexpr):
    """What each candidate costs: minus the logarithm of the probability that it stands."""
    num_depths, num_ranks = tl.load(bed + 1), tl.load(bed + 2)
    cell = tl.arange(0, CELLS)
    depth, rank = cell // RANKS, cell % RANKS
    own = tl.load(top + depth * 2 * RANKS + rank, mask=(depth < num_depths) & (rank < num_ranks), other=-1.0)
    cost = -tl.minimum(own, 0.0)
    if tl.load(bed + 6) != 0:
        bias = tl.load(bed + 7).to(tl.int32).to(tl.float32, bitcast=True)
        slope = tl.load(bed + 8).to(tl.int32).to(tl.float32, bitcast=True)
        by_depth = tl.load(bed + 9).to(tl.int32).to(tl.float32, bitcast=True)
        bounded = tl.minimum(tl.maximum(own, lowest), highest)
        odds = bounded - tl.log(1.0 - tl.exp(bounded))
        against = -(slope * odds + bias + by_depth * tl.minimum(depth, 4).to(tl.float32) * 0.25)
        cost = tl.maximum(against, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(against)))
    # A candidate that is not offered, or is no number, comes behind all others.
    cost = tl.where((own > -1e30) & (cost < 1e30), cost, 1e30)
    tl.store(costs + cell, cost, mask=cell < cells)


@triton.jit
def _lay_nodes(
    top, bed, found, token_ids, positions, masks, stride, words, last_token,
    RANKS: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    """Tokens, positions and masks of the nodes that were found, all at once."""
    num_depths, num_nodes, first, root = (
        tl.load(bed + 1),
        tl.load(bed + 3),
        tl.load(bed + 4),
        tl.load(bed + 5),
    )
    node = tl.arange(0, NODES)
    grown = node < num_nodes
    at = found + first + node
    depth = tl.load(at, mask=grown, other=1)
    rank = tl.load(at + stride, mask=grown, other=0)
    above = tl.load(at + 2 * stride, mask=grown, other=-1)
    token = tl.load(top + (depth - 1) * 2 * RANKS + RANKS + rank, mask=grown, other=0.0)
    # Scores that are no numbers may come with any token.
    token = tl.where((token >= 0.0) & (token <= last_token), token, 0.0).to(tl.int64)
    tl.store(at + 3 * stride, token, mask=grown)
    tl.store(token_ids + first + node, token, mask=grown)
    tl.store(positions + first + node, root + depth, mask=grown)
    one = (depth * 0 + 1).to(tl.int64)
    mask = one << node.to(tl.int64)
    for _ in range(num_depths - 1):
        mask |= tl.where(above >= 0, one << tl.maximum(above, 0), 0)
        above = tl.load(found + 2 * stride + first + above, mask=grown & (above >= 0), other=-1)
    tl.store(masks + (first + node) * words, mask, mask=grown)
    for word in range(1, words):
        tl.store(masks + (first + node) * words + word, one * 0, mask=grown)


@triton.jit
def _plant(
    top, beds, costs, found, token_ids, positions, masks,
    stride, cells, words, last_token, lowest, highest,
    RANKS: tl.constexpr, CELLS: tl.constexpr, FRONT: tl.constexpr, NODES: tl.constexpr,
    FIELDS: tl.constexpr,
):  # fmt: skip
    bed = beds + tl.program_id(0) * FIELDS
    costs += tl.program_id(0) * cells
    top += tl.load(bed) * 2 * RANKS
    num_depths, num_ranks, num_nodes = tl.load(bed + 1), tl.load(bed + 2), tl.load(bed + 3)
    nodes_at = found + tl.load(bed + 4)
    _lay_costs(top, bed, costs, cells, lowest, highest, RANKS, CELLS)
    tl.debug_barrier()
    slot = tl.arange(0, FRONT)
    nothing = num_nodes * 0
    # What may come next: at first the best child of the root.
    entries = tl.where(slot == 0, _entry(tl.load(costs), nothing + 1, nothing, nothing), 0x7FFFFFFFFFFFFFFF)
    reached = tl.zeros((FRONT,), tl.float32)  # the cost of each node, behind that of the root
    for node in range(num_nodes):
        best = tl.min(entries, axis=0)
        cost = (best >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        depth, rank, parent = (best >> 24) & 255, (best >> 16) & 255, best & 65535
        tl.store(nodes_at + node, depth)
        tl.store(nodes_at + stride + node, rank)
        tl.store(nodes_at + 2 * stride + node, parent - 1)
        above = tl.sum(tl.where(slot == parent, reached, 0.0), axis=0)
        reached = tl.where(slot == node + 1, cost, reached)
        cell = costs + (depth - 1) * RANKS + rank
        beside = tl.load(cell + 1, mask=rank + 1 < num_ranks, other=2e30)
        below = tl.load(costs + depth * RANKS, mask=depth < num_depths, other=2e30)
        entries = tl.where(entries == best, _entry(above + beside, depth, rank + 1, parent), entries)
        child = _entry(cost + below, depth + 1, nothing, nothing + node + 1)
        entries = tl.where(slot == node + 1, child, entries)
    tl.debug_barrier()
    _lay_nodes(top, bed, found, token_ids, positions, masks, stride, words, last_token, RANKS, NODES)
