"""Whose guesses get the places: one budget over the rows of a batch, by marginal value, with a floor per row.

A builder's forest is in best-first order over all rows, so the best n nodes are its first n. Several rows are
evened first: what counts is the logarithm of each one's speed, to which the next guess adds the less the more
tokens are expected already. The floor moves each row's best nodes to the front, so that a row with a poor
draft still gets its turn. It knows no costs: how many places there are is the policy's decision.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wager.policy.base import FloatArray, IntArray
from wager.tree import Forest


def evened(forest: Forest) -> tuple[Forest, FloatArray]:
    """The same nodes in the order of what each adds to the logarithm of its row's speed, and those amounts.

    A node of probability p behind others of its row that are worth G tokens adds log(1 + p / (1 + G)). Within
    a row that falls from node to node, so the order of its own nodes stays, and every prefix is closed.
    """
    by_row = np.argsort(forest.row, kind="stable")
    probs, rows = forest.path_probs[by_row], forest.row[by_row]
    before = probs.cumsum() - probs
    before -= before[np.searchsorted(rows, rows)]
    amounts = np.log1p(probs / (1.0 + before))
    order = np.argsort(-amounts, kind="stable")
    return take(forest, by_row[order]), amounts[order]


def allocate(forest: Forest, num_nodes: int, floor: int = 0) -> Forest:
    """The best `num_nodes` nodes, each row having at least `floor` of its own best where it offers that many.

    A floor that does not fit into the places is lowered until it does.
    """
    if num_nodes >= forest.num_nodes:
        return forest
    if floor <= 0 or num_nodes <= 0:
        # Parents stand before their children, so a prefix is closed and keeps its numbers.
        count = max(num_nodes, 0)
        row, depth, rank, parent, score = forest
        return Forest(row[:count], depth[:count], rank[:count], parent[:count], score[:count])
    standing = _place_in_row(forest)
    while floor > 0 and int((standing < floor).sum()) > num_nodes:
        floor -= 1
    # Reserved nodes first, then by the forest's own order; a reserved node's parent is reserved too.
    chosen = np.argsort(standing >= floor, kind="stable")[:num_nodes]
    return take(forest, np.sort(chosen))


def firsts(forest: Forest, nodes: Sequence[int]) -> Forest:
    """The same with the best so many nodes of each row in front."""
    behind = _place_in_row(forest) >= np.asarray(nodes)[forest.row]
    return take(forest, np.argsort(behind, kind="stable"))


def take(forest: Forest, chosen: IntArray) -> Forest:
    """The sub-forest of these nodes (parents first, closed under parents), in this order."""
    place = np.full(forest.num_nodes + 1, -1, np.int32)
    place[chosen] = np.arange(len(chosen))
    parent = place[forest.parent[chosen]]
    return Forest(forest.row[chosen], forest.depth[chosen], forest.rank[chosen], parent, forest.score[chosen])


def _place_in_row(forest: Forest) -> IntArray:
    """Each node's place in its own row's best-first order."""
    order = np.argsort(forest.row, kind="stable")
    rows = forest.row[order]
    starts = np.searchsorted(rows, rows)
    places = np.empty(forest.num_nodes, np.int64)
    places[order] = np.arange(forest.num_nodes) - starts
    return places
