"""Who sees whom in the target's pass, and at which position each token stands.

A node sees the whole context, all pending tokens, its ancestors and itself: exactly the text before it,
if its path were the truth. Masks here cover a row's own tokens; all of them see the cached context before.
Called by `pack.py` and by tests of the device kernels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wager.errors import InputError
from wager.tree.tree import Int64Array, Tree

BoolArray = npt.NDArray[np.bool_]


def ancestor_mask(tree: Tree) -> BoolArray:
    """[n + 1, n + 1], root at 0 and node i at i + 1: each sees itself, its ancestors and the root."""
    size = tree.num_nodes + 1
    mask = np.zeros((size, size), np.bool_)
    mask[0, 0] = True
    for node, parent in enumerate(tree.parents.tolist()):
        mask[node + 1] = mask[parent + 1]
        mask[node + 1, node + 1] = True
    return mask


def ancestor_words(tree: Tree) -> list[int]:
    """Per node its own bit and those of its ancestors, bit i standing for node i: the mask as numbers."""
    words: list[int] = []
    for node, parent in enumerate(tree.parents.tolist()):
        words.append((words[parent] if parent >= 0 else 0) | 1 << node)
    return words


def positions(tree: Tree, root_position: int) -> Int64Array:
    """[n + 1]: the root's absolute position, then root position + depth of each node."""
    absolute = np.full(tree.num_nodes + 1, root_position, np.int64)
    absolute[1:] += tree.depths
    return absolute


def row_mask(num_pending: int, tree: Tree) -> BoolArray:
    """[q, q] for a row of pending tokens, causal, then nodes, each seeing all pending and its own path."""
    if num_pending < 1:
        raise InputError("a row needs at least one pending token, its root", field="num_pending")
    size = num_pending + tree.num_nodes
    mask = np.tri(size, num_pending, dtype=np.bool_)
    return np.hstack(
        (mask, np.vstack((np.zeros((num_pending, tree.num_nodes), np.bool_), _among_nodes(tree))))
    )


def _among_nodes(tree: Tree) -> BoolArray:
    return ancestor_mask(tree)[1:, 1:]
