"""Attention masks of a verify pass: which tokens of a row see which other tokens.

A node sees the whole context, all pending tokens, its ancestors and itself: the text that would precede it if
its path were accepted. The masks cover a row's own tokens; all of these see the cached context. The target's
inputs and the tests of the device kernels use them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wager.errors import InputError
from wager.tree.tree import Tree

BoolArray = npt.NDArray[np.bool_]


def ancestor_mask(tree: Tree) -> BoolArray:
    """Returns [n + 1, n + 1] with the root at 0 and node i at i + 1: each sees the root, its ancestors and
    itself.
    """
    size = tree.num_nodes + 1
    mask = np.zeros((size, size), np.bool_)
    mask[0, 0] = True
    for node, parent in enumerate(tree.parents.tolist()):
        mask[node + 1] = mask[parent + 1]
        mask[node + 1, node + 1] = True
    return mask


def ancestor_words(tree: Tree) -> list[int]:
    """Returns per node an integer whose bit i is set if node i is the node itself or one of its ancestors."""
    words: list[int] = []
    for node, parent in enumerate(tree.parents.tolist()):
        words.append((words[parent] if parent >= 0 else 0) | 1 << node)
    return words


def row_mask(num_pending: int, tree: Tree) -> BoolArray:
    """Returns [q, q] for causal pending tokens followed by nodes, which see all pending tokens and their
    path.
    """
    if num_pending < 1:
        raise InputError("a row needs at least one pending token, its root", field="num_pending")
    size = num_pending + tree.num_nodes
    mask = np.tri(size, num_pending, dtype=np.bool_)
    among_nodes = ancestor_mask(tree)[1:, 1:]
    return np.hstack((mask, np.vstack((np.zeros((num_pending, tree.num_nodes), np.bool_), among_nodes))))
