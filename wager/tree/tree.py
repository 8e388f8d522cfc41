"""A tree of guesses below the root, which is the last pending token of a row.

A tree is three flat arrays in topological order. A chain is a tree without branches, and the empty tree is
plain decoding. This module knows nothing of probabilities, models or batches. `build.py` creates trees and
`accept.py` judges them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wager.errors import InputError

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

ROOT = -1


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Guesses with parents; `parents[i]` is an earlier node or ROOT, and `depths` start at 1 below the root.

    The constructor does not check its arrays; `Tree.of` does.
    """

    token_ids: Int64Array
    parents: Int32Array
    depths: Int32Array

    @classmethod
    def empty(cls) -> Tree:
        """Returns the tree without guesses, which is plain decoding."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))

    @classmethod
    def chain(cls, token_ids: npt.ArrayLike) -> Tree:
        """Returns a tree in which each token is the only child of the token before it."""
        tokens = np.asarray(token_ids, np.int64).reshape(-1)
        num_nodes = tokens.shape[0]
        parents = np.arange(-1, num_nodes - 1, dtype=np.int32)
        return cls(tokens, parents, np.arange(1, num_nodes + 1, dtype=np.int32))

    @classmethod
    def of(cls, token_ids: npt.ArrayLike, parents: npt.ArrayLike) -> Tree:
        """Returns a checked tree from tokens and parents, and derives the depths."""
        tokens = np.asarray(token_ids, np.int64).reshape(-1)
        links = np.asarray(parents, np.int32).reshape(-1)
        tree = cls(tokens, links, _depths(links))
        tree.validate()
        return tree

    @property
    def num_nodes(self) -> int:
        return len(self.token_ids)

    @property
    def max_depth(self) -> int:
        return int(self.depths.max()) if self.num_nodes else 0

    @property
    def is_chain(self) -> bool:
        # The last node is as deep as there are nodes only if every node is the child of the previous one.
        return not self.num_nodes or bool(self.depths[-1] == self.num_nodes)

    def validate(self) -> None:
        """Raises InputError unless the shapes agree, every parent precedes its child and the depths are
        consistent.
        """
        shape = (self.num_nodes,)
        if self.token_ids.shape != shape or self.parents.shape != shape or self.depths.shape != shape:
            raise InputError("token_ids, parents and depths must be vectors of one length", field="tree")
        _check_parents(self.parents)
        if not np.array_equal(self.depths, _depths(self.parents)):
            raise InputError("a node's depth must be its parent's depth plus one", field="tree")

    def nodes_to(self, node: int) -> list[int]:
        """Returns the node indices from the child of the root to `node`; empty for ROOT."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = int(self.parents[node])
        return nodes[::-1]

    def path_to(self, node: int) -> list[int]:
        """Returns the token ids from the child of the root to `node`; empty for ROOT."""
        return [int(self.token_ids[i]) for i in self.nodes_to(node)]

    def prefix(self, num_nodes: int) -> Tree:
        """Returns the first nodes only; this is a valid tree because parents precede their children."""
        if num_nodes >= self.num_nodes:
            return self
        keep = slice(0, max(num_nodes, 0))
        return Tree(self.token_ids[keep], self.parents[keep], self.depths[keep])

    def only(self, keep: npt.NDArray[np.bool_]) -> Tree:
        """Returns the nodes marked in `keep`, in order. Precondition: the parent of every kept node
        is kept.
        """
        if keep.all():
            return self
        place = np.cumsum(keep, dtype=np.int32) - 1
        parents = self.parents[keep]
        moved = np.where(parents == ROOT, ROOT, place[parents]).astype(np.int32)
        return Tree(self.token_ids[keep], moved, self.depths[keep])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        return np.array_equal(self.token_ids, other.token_ids) and np.array_equal(self.parents, other.parents)

    __hash__ = None  # type: ignore[assignment]


def _check_parents(parents: Int32Array | Sequence[int]) -> None:
    for node, parent in enumerate(parents):
        if not ROOT <= parent < node:
            raise InputError(
                f"node {node} has parent {int(parent)}, which is neither the root nor earlier", field="tree"
            )


def _depths(parents: Int32Array) -> Int32Array:
    _check_parents(parents)
    depths: list[int] = []
    for parent in parents.tolist():
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return np.array(depths, np.int32)
