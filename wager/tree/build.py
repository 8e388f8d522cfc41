"""Best-first order of the guesses of a whole batch, by path probability.

The input is a log-probability per row, depth and rank; the output is one flat order whose every prefix is a
forest. The score of a path never rises with depth, so the best B nodes of each level contain the best B of
all nodes. This module knows neither tokens nor costs: the policy chooses the length of the prefix to verify,
and `row_trees` converts the prefix into trees. The order is: higher score, then lower row, then lower depth,
then the path that comes first when the ranks of each depth are read from best to worst. Every algorithm below
returns this order with bit-identical scores.
"""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wager.errors import InputError
from wager.tree.tree import ROOT, Int32Array, Int64Array, Tree

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# A heap in plain Python is faster than array operations per depth up to this number of nodes. For more than
# _FEW_ROWS rows the limit is smaller by a factor, because array operations handle all rows together.
_HEAP_MAX_NODES = 512
_FEW_ROWS = 16
_MANY_ROWS_DIVISOR = 4
_LOWEST = -np.finfo(np.float64).max


class Forest(NamedTuple):
    """The nodes of all rows in best-first order.

    `parent` is an index into this order, or ROOT for the root of the row. `depth` is at least 1.
    """

    row: Int32Array
    depth: Int32Array
    rank: Int32Array
    parent: Int32Array
    score: FloatArray

    @property
    def num_nodes(self) -> int:
        return int(self.score.shape[0])

    @property
    def path_probs(self) -> FloatArray:
        return np.exp(self.score)

    def first(self, num_nodes: int) -> Forest:
        """Returns the best nodes alone."""
        row, depth, rank, parent, score = self
        return Forest(
            row[:num_nodes], depth[:num_nodes], rank[:num_nodes], parent[:num_nodes], score[:num_nodes]
        )


class _Offer(NamedTuple):
    """A draft in which the ranks of each depth are sorted from best to worst; a `place` is a position in this
    order.
    """

    scores: FloatArray  # [rows, depths, places]
    ranks: Int64Array | None  # [rows, depths, places] -> rank; None if the ranks were already sorted
    caps: Int64Array | None  # [rows]
    spine_only: BoolArray | None  # [rows]
    budget: int


def build_forest(
    scores: npt.ArrayLike,
    budget: int,
    *,
    row_caps: npt.ArrayLike | None = None,
    max_depths: npt.ArrayLike | None = None,
    chain_only: bool = False,
    spine_only: npt.ArrayLike | None = None,
) -> Forest:
    """Returns the best `budget` nodes of all rows in best-first order.

    scores: [rows, depths, ranks], each <= 0 (-inf: not offered), in any order along ranks. row_caps,
    max_depths: largest number of nodes and largest depth per row. chain_only: uses rank 0 only. spine_only:
    per row, only rank-0 nodes may have children (the guesses of a chain drafter follow rank 0). Raises
    InputError if a score is positive or NaN, or if the shape is not three-dimensional.
    """
    offered = np.asarray(scores, np.float64)
    if offered.ndim != 3 or not (offered <= 0.0).all():
        raise InputError(
            "need [rows, depths, ranks] of log-probabilities, none positive or NaN", field="scores"
        )
    if budget <= 0 or offered.size == 0:
        return _empty()
    caps = None if row_caps is None else np.asarray(row_caps, np.int64)
    limits = None if max_depths is None else np.asarray(max_depths, np.int64)
    if offered.shape[0] == 1:
        if limits is not None and limits[0] < offered.shape[1]:
            offered, limits = offered[:, : max(0, int(limits[0]))], None
        budget = budget if caps is None else min(budget, int(caps[0]))
        if budget <= 0 or offered.size == 0:
            return _empty()
    if chain_only or offered.shape[2] == 1:
        return _chains(offered[:, :, 0], budget, _smaller(caps, limits))
    if limits is not None:
        beyond = np.arange(offered.shape[1]) >= limits[:, None]
        offered = np.where(beyond[:, :, None], -np.inf, offered)
    spine = None if spine_only is None else np.asarray(spine_only, np.bool_)
    offer = _sort_ranks(offered, caps, spine, budget)
    is_free = offer.ranks is None and (spine is None or not spine.any())
    num_rows = offered.shape[0]
    if budget > (_HEAP_MAX_NODES if num_rows <= _FEW_ROWS else _HEAP_MAX_NODES // _MANY_ROWS_DIVISOR):
        return _by_levels(offer)
    return one_tree(-offered[0], budget) if num_rows == 1 and is_free else _by_heap(offer)


def one_tree(costs: FloatArray, budget: int) -> Forest:
    """Returns `build_forest` of one row whose nodes may all branch; a fast path for one request on a device.

    costs: negated scores [depths, ranks]. Precondition, unchecked: none is negative, and they ascend along
    ranks.
    """
    num_ranks, infinity = costs.shape[1], float("inf")
    steps: list[list[float]] = [[0.0], *costs.tolist(), [infinity]]
    firsts = [step[0] for step in steps]
    for step in steps:
        step.append(infinity)
    # Entry: cost, depth, path (its ranks as digits, which order equal depths), rank, parent, parent's cost.
    # A node that does not exist costs infinity.
    entry = (firsts[1], 1, 0, 0, ROOT, 0.0)
    heap: list[tuple[float, int, int, int, int, float]] = []
    push, exchange = heapq.heappush, heapq.heappushpop
    nodes: list[tuple[float, int, int, int, int, float]] = []
    for node in range(budget):
        cost, depth, path, rank, parent, parent_cost = entry
        if cost == infinity:
            break
        nodes.append(entry)
        rank += 1
        push(heap, (parent_cost + steps[depth][rank], depth, path + 1, rank, parent, parent_cost))
        depth += 1
        # With a confident draft the best node is mostly this child, and the heap does not change.
        entry = exchange(heap, (cost + firsts[depth], depth, path * num_ranks, 0, node, cost))
    if not nodes:
        return _empty()
    scores, depths, _, ranks, parents, _ = zip(*nodes, strict=True)
    whole = np.array((depths, ranks, parents), np.int32)
    return Forest(np.zeros(len(nodes), np.int32), whole[0], whole[1], whole[2], -np.array(scores))


def row_trees(forest: Forest, num_nodes: int, token_ids: npt.NDArray[np.integer]) -> list[Tree]:
    """Returns the trees of the first `num_nodes` nodes, one per row of `token_ids` [rows, depths, ranks]."""
    depth, rank, parent = forest.depth[:num_nodes], forest.rank[:num_nodes], forest.parent[:num_nodes]
    num_rows = token_ids.shape[0]
    if num_rows == 1:
        return [Tree(token_ids[0][depth - 1, rank].astype(np.int64, copy=False), parent, depth)]
    row = forest.row[:num_nodes]
    tokens = token_ids[row, depth - 1, rank].astype(np.int64)
    by_row = np.argsort(row, kind="stable")
    starts = np.searchsorted(row[by_row], np.arange(num_rows + 1))
    place = np.empty(row.shape[0], np.int32)
    place[by_row] = np.arange(row.shape[0]) - starts[row[by_row]]
    parents = np.where(parent == ROOT, ROOT, place[parent]).astype(np.int32)[by_row]
    tokens, depths, ends = tokens[by_row], depth[by_row], starts.tolist()
    return [Tree(tokens[a:b], parents[a:b], depths[a:b]) for a, b in pairwise(ends)]


def _empty() -> Forest:
    nothing = np.empty(0, np.int32)
    return Forest(nothing, nothing, nothing, nothing, np.empty(0))


def _smaller(a: Int64Array | None, b: Int64Array | None) -> Int64Array | None:
    if a is None or b is None:
        return b if a is None else a
    return np.minimum(a, b)


def _chains(scores: FloatArray, budget: int, limits: Int64Array | None) -> Forest:
    """Returns chains only: running sums, already in order within a row. `limits` is the longest chain per
    row.
    """
    if scores.shape[0] == 1:
        return _one_chain(scores[0], budget if limits is None else min(budget, int(limits[0])))
    num_depths = scores.shape[1]
    totals = np.cumsum(scores, axis=1)
    offered = totals > -np.inf
    if limits is not None:
        offered &= np.arange(num_depths) < limits[:, None]
    nodes = np.flatnonzero(offered)
    score = totals.ravel()[nodes]
    order = np.argsort(-score, kind="stable")[:budget]
    nodes = nodes[order]
    place = np.empty(totals.size + 1, np.int32)
    place[nodes] = np.arange(nodes.shape[0])
    row, index = np.divmod(nodes, num_depths)
    parent = np.where(index == 0, ROOT, place[nodes - 1]).astype(np.int32)
    return Forest(
        row.astype(np.int32), (index + 1).astype(np.int32), np.zeros_like(parent), parent, score[order]
    )


def _one_chain(scores: FloatArray, limit: int) -> Forest:
    totals = scores.cumsum()[: max(limit, 0)]
    if totals.shape[0] and totals[-1] == -np.inf:
        totals = totals[: int((totals > -np.inf).sum())]
    num_nodes = totals.shape[0]
    zeros = np.zeros(num_nodes, np.int32)
    depth = np.arange(1, num_nodes + 1, dtype=np.int32)
    return Forest(zeros, depth, zeros, np.arange(-1, num_nodes - 1, dtype=np.int32), totals)


def _sort_ranks(
    scores: FloatArray, caps: Int64Array | None, spine_only: BoolArray | None, budget: int
) -> _Offer:
    if (scores[:, :, 1:] <= scores[:, :, :-1]).all():
        return _Offer(scores, None, caps, spine_only, budget)
    ranks = np.argsort(-scores, axis=2, kind="stable")
    return _Offer(np.take_along_axis(scores, ranks, axis=2), ranks, caps, spine_only, budget)


def _by_heap(offer: _Offer) -> Forest:
    """Repeatedly takes the best node and adds its next sibling and its first child. Costs are
    negated scores.
    """
    num_rows, num_depths, num_places = offer.scores.shape
    costs: list[list[list[float]]] = (-offer.scores).tolist()
    ranks: list[list[list[int]]] | None = None if offer.ranks is None else offer.ranks.tolist()
    spine = [False] * num_rows if offer.spine_only is None else offer.spine_only.tolist()
    left = [offer.budget] * num_rows if offer.caps is None else offer.caps.tolist()
    # Entry: cost, row, depth index, path (places as digits, which order equal depths), parent, parent's cost.
    infinity = float("inf")
    heap = [(costs[r][0][0], r, 0, 0, ROOT, 0.0) for r in range(num_rows) if costs[r][0][0] < infinity]
    heapq.heapify(heap)
    push, pop = heapq.heappush, heapq.heappop
    nodes: list[tuple[float, int, int, int, int]] = []
    num_nodes = 0
    while heap and num_nodes < offer.budget:
        cost, row, depth, path, parent, parent_cost = pop(heap)
        if left[row] <= 0:
            continue
        left[row] -= 1
        place = path % num_places
        rank = place if ranks is None else ranks[row][depth][place]
        nodes.append((cost, row, depth + 1, rank, parent))
        if place + 1 < num_places:
            sibling = parent_cost + costs[row][depth][place + 1]
            if sibling < infinity:
                push(heap, (sibling, row, depth, path + 1, parent, parent_cost))
        if depth + 1 < num_depths and not (rank and spine[row]):
            child = cost + costs[row][depth + 1][0]
            if child < infinity:
                push(heap, (child, row, depth + 1, path * num_places, num_nodes, cost))
        num_nodes += 1
    return _from_nodes(nodes)


def _from_nodes(nodes: list[tuple[float, int, int, int, int]]) -> Forest:
    if not nodes:
        return _empty()
    cost, row, depth, rank, parent = zip(*nodes, strict=True)
    whole = np.array((row, depth, rank, parent), np.int32)
    return Forest(whole[0], whole[1], whole[2], whole[3], -np.array(cost))


class _Level(NamedTuple):
    """The remaining nodes of one depth, ordered by row and then by path."""

    row: Int64Array
    place: Int64Array
    parent: Int64Array  # index into the concatenation of all levels
    score: FloatArray


def _by_levels(offer: _Offer) -> Forest:
    """Extends all rows together, one depth at a time, and drops nodes that cannot be among the best."""
    bounds = _bounds(offer)
    num_rows, num_depths, _ = offer.scores.shape
    levels: list[_Level] = []
    row, node, score = np.arange(num_rows), np.full(num_rows, ROOT, np.int64), np.zeros(num_rows)
    offset = 0
    for depth in range(num_depths):
        level = _grow(offer, depth, bounds, _Level(row, node, node, score))
        if level.row.shape[0] == 0:
            break
        levels.append(level)
        row, score = level.row, level.score
        node = np.arange(offset, offset + row.shape[0])
        offset += row.shape[0]
        bounds = _raise_bounds(bounds, levels, offset, offer)
        if offer.spine_only is not None:
            rank = level.place if offer.ranks is None else offer.ranks[row, depth, level.place]
            fertile = (rank == 0) | ~offer.spine_only[row]
            row, node, score = row[fertile], node[fertile], score[fertile]
    return _merge(offer, levels)


def _grow(offer: _Offer, depth: int, bounds: FloatArray, parents: _Level) -> _Level:
    """Returns the children, at depth index `depth`, of the nodes in `parents.place`."""
    scores = parents.score[:, None] + offer.scores[parents.row, depth]
    index, place = np.nonzero(scores >= bounds[parents.row][:, None])
    row, score = parents.row[index], scores[index, place]
    if row.shape[0] > offer.budget:
        keep = np.sort(_best(row, score, offer))
        row, place, index, score = row[keep], place[keep], index[keep], score[keep]
    return _Level(row, place, parents.place[index], score)


def _best(row: Int64Array, score: FloatArray, offer: _Offer) -> Int64Array:
    """Returns the indices of the best nodes within caps and budget, best first; the sort is stable."""
    order = np.argsort(-score, kind="stable")
    if offer.caps is not None:
        rows = row[order]
        by_row = np.argsort(rows, kind="stable")
        grouped = rows[by_row]
        place = np.arange(grouped.shape[0]) - np.searchsorted(grouped, grouped)
        allowed = by_row[place < offer.caps[grouped]]
        order = order[np.sort(allowed)]
    return order[: offer.budget]


def _bounds(offer: _Offer) -> FloatArray:
    """Returns per row a lower bound on the score of every selected node, from nodes next to the best chain.

    These nodes are a subset of all nodes, so the B-th best of them is at most the B-th best of all.
    """
    num_rows = offer.scores.shape[0]
    spine = _spine(offer)
    before = np.zeros_like(spine)
    np.cumsum(spine[:, :-1], axis=1, out=before[:, 1:])
    near = (before[:, :, None] + offer.scores).reshape(num_rows, -1)
    bounds = np.full(num_rows, _LOWEST)
    if offer.caps is not None:
        near = -np.sort(-near, axis=1)
        width = near.shape[1]
        last = np.clip(offer.caps - 1, 0, width - 1)
        bounds = np.where(offer.caps <= width, near[np.arange(num_rows), last], bounds)
        near = near[np.arange(width) < offer.caps[:, None]]
    if near.size > offer.budget:
        cut = near.size - offer.budget
        bounds = np.maximum(bounds, np.partition(near, cut, axis=None)[cut])
    return np.maximum(bounds, _LOWEST)


def _raise_bounds(bounds: FloatArray, levels: list[_Level], num_found: int, offer: _Offer) -> FloatArray:
    """Raises the bounds to the B-th best score found so far, if more nodes than the budget were found."""
    if offer.caps is not None or num_found <= offer.budget:
        return bounds
    found = np.concatenate([level.score for level in levels])
    cut = num_found - offer.budget
    return np.asarray(np.maximum(bounds, np.partition(found, cut)[cut]))


def _spine(offer: _Offer) -> FloatArray:
    """Returns the scores [rows, depths] of the chain that may branch: the best place, or rank 0 of a
    spine-only row.
    """
    if offer.spine_only is None or offer.ranks is None:
        return offer.scores[:, :, 0]
    at_rank_zero = np.take_along_axis(offer.scores, (offer.ranks == 0).argmax(axis=2)[:, :, None], axis=2)
    return np.where(offer.spine_only[:, None], at_rank_zero[:, :, 0], offer.scores[:, :, 0])


def _merge(offer: _Offer, levels: list[_Level]) -> Forest:
    """Sorts all levels into one best-first order and renumbers the parents accordingly."""
    if not levels:
        return _empty()
    row, place, parent, score = (np.concatenate(part) for part in zip(*levels, strict=True))
    depth = np.repeat(np.arange(1, len(levels) + 1), [level.row.shape[0] for level in levels])
    by_row = np.argsort(row, kind="stable")
    order = by_row[_best(row[by_row], score[by_row], offer)]
    position = np.empty(row.shape[0], np.int64)
    position[order] = np.arange(order.shape[0])
    row, depth, place, parent = row[order], depth[order], place[order], parent[order]
    rank = place if offer.ranks is None else offer.ranks[row, depth - 1, place]
    parents = np.where(parent == ROOT, ROOT, position[parent])
    whole = np.array((row, depth, rank, parents), np.int32)
    return Forest(whole[0], whole[1], whole[2], whole[3], score[order])
