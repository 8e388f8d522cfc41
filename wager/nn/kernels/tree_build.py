"""Builds a draft's tree on the device: from candidates to the tables of the pass that verifies them.

One program per row does what `tree/build.py` does for one tree: it takes the most probable node, adds its
next sibling and its first child, and repeats. It writes tokens, positions and masks of the nodes to the
tables of the pass, and the tree to a buffer that the host reads while the pass runs. So a pass can be
launched behind the draft before the host has read it; only the number of nodes must be known. The speed is
limited by latency: some hundred cycles per node, in registers except for the table of costs.
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

MAX_TREE_NODES = 64
"""Largest number of nodes of one tree: one word of a mask has one bit per node."""
REQUEST_FIELDS = 10
"""Number of values of a `TreeRequest` on the device."""
NODE_FIELDS = 4
"""Values per node that the host reads: depth, rank, parent, token."""

_LOWEST, _HIGHEST = float(np.log(1e-6)), float(np.log(1.0 - 1e-3))


class TreeRequest(NamedTuple):
    """The inputs of one row's tree, and its size."""

    line: int
    """Line of its first candidates."""
    num_depths: int
    """Number of lines of candidates, one per depth."""
    num_ranks: int
    """Number of candidates used per line: 1 for a chain."""
    num_nodes: int
    first: int
    """Index of its first node in the pass."""
    root: int
    """Position of its root."""
    weights: tuple[float, float, float] | None = None
    """Weights of the calibration (`policy/calibration.py`); None: the drafter's own probabilities."""

    def numbers(self) -> list[int]:
        weights = np.array(self.weights or (0.0, 0.0, 0.0), np.float32).view(np.int32).tolist()
        return [*self[:6], self.weights is not None, *weights]


class TreeBuffers(NamedTuple):
    """Memory on the device for as many trees as `beds` has lines."""

    beds: Tensor
    """The tree requests, [rows, FIELDS] int64."""
    costs: Tensor
    """The costs of candidates, [rows, depths * ranks] float32."""
    found: Tensor
    """The nodes at their indices in the pass, [TREE_FIELDS, tokens] int64."""


def max_tree_nodes(num_depths: int, num_ranks: int) -> int:
    """Returns the largest number of nodes of a tree with such candidates."""
    count = level = 0
    for _ in range(num_depths):
        level = min(max(level, 1) * num_ranks, MAX_TREE_NODES)
        count += level
    return min(count, MAX_TREE_NODES)


def build_trees(top: Tensor, num_rows: int, ground: TreeBuffers, tables: PassTables, vocab_size: int) -> None:
    """Builds the trees of the first `num_rows` requests from candidates `top` [lines, 2, ranks] float32.

    A line has the log-probabilities of its candidates, descending, and their tokens. It writes the nodes'
    part of the tables, and the nodes to `ground.found`; the host has written everything else.
    """
    beds, costs, found = ground
    ranks = top.shape[2]
    assert top.is_contiguous() and beds.is_contiguous() and beds.shape[1] == REQUEST_FIELDS
    assert found.is_contiguous() and costs.is_contiguous() and costs.shape[1] % ranks == 0
    assert tables.masks.dtype == found.dtype == beds.dtype == torch.int64
    _plant[(num_rows,)](
        top, *ground, tables.token_ids, tables.positions, tables.masks,
        found.shape[1], costs.shape[1], tables.masks.shape[1], vocab_size - 1, _LOWEST, _HIGHEST,
        RANKS=ranks, CELLS=power_of_two(costs.shape[1]), FRONT=2 * MAX_TREE_NODES, NODES=MAX_TREE_NODES,
        REQUEST_FIELDS=REQUEST_FIELDS, num_warps=1,
    )  # fmt: skip


@triton.jit
def _entry(cost, depth, rank, parent):
    """Returns a node as one number by which nodes are ordered; the parent is stored as its node plus one."""
    bits = cost.to(tl.int32, bitcast=True).to(tl.int64)  # the bits of non-negative floats are in order
    return (bits << 32) | (depth << 24) | (rank << 16) | parent


@triton.jit
def _write_costs(top, bed, costs, cells, lowest, highest, RANKS: tl.constexpr, CELLS: tl.constexpr):
    """Writes the cost of each candidate: minus the logarithm of its acceptance probability."""
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
    # A candidate that is not offered, or is NaN, comes after all others.
    cost = tl.where((own > -1e30) & (cost < 1e30), cost, 1e30)
    tl.store(costs + cell, cost, mask=cell < cells)


@triton.jit
def _write_nodes(
    top, bed, found, token_ids, positions, masks, stride, words, last_token,
    RANKS: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    """Writes tokens, positions and masks of all nodes at once."""
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
    # A NaN score may have any token.
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
    REQUEST_FIELDS: tl.constexpr,
):  # fmt: skip
    bed = beds + tl.program_id(0) * REQUEST_FIELDS
    costs += tl.program_id(0) * cells
    top += tl.load(bed) * 2 * RANKS
    num_depths, num_ranks, num_nodes = tl.load(bed + 1), tl.load(bed + 2), tl.load(bed + 3)
    nodes_at = found + tl.load(bed + 4)
    _write_costs(top, bed, costs, cells, lowest, highest, RANKS, CELLS)
    tl.debug_barrier()
    slot = tl.arange(0, FRONT)
    nothing = num_nodes * 0
    # The nodes that may come next: at first the best child of the root.
    entries = tl.where(slot == 0, _entry(tl.load(costs), nothing + 1, nothing, nothing), 0x7FFFFFFFFFFFFFFF)
    reached = tl.zeros((FRONT,), tl.float32)  # the cost of each node, after that of the root
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
    _write_nodes(top, bed, found, token_ids, positions, masks, stride, words, last_token, RANKS, NODES)
