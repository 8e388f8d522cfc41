"""A tree of guesses hanging on the root, the last pending token of a row.

Three flat arrays in topological order; a chain is a tree without branches, the empty tree plain decoding.
It knows nothing of probabilities, models or batches. `build.py` makes trees, `pack.py` lays them out for one
target pass, `accept.py` judges them.
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
    """Guesses with parents. `parents[i]` is an earlier node or ROOT; `depths` count from 1 below the root.

    The constructor trusts its arrays; `Tree.of` builds from anything and checks it.
    """

    token_ids: Int64Array
    parents: Int32Array
    depths: Int32Array

    @classmethod
    def empty(cls) -> Tree:
        """The tree without guesses: plain decoding."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))

    @classmethod
    def chain(cls, token_ids: npt.ArrayLike) -> Tree:
        """Each token is the only child of the one before."""
        tokens = np.asarray(token_ids, np.int64).reshape(-1)
        num_nodes = tokens.shape[0]
        parents = np.arange(-1, num_nodes - 1, dtype=np.int32)
        return cls(tokens, parents, np.arange(1, num_nodes + 1, dtype=np.int32))

    @classmethod
    def of(cls, token_ids: npt.ArrayLike, parents: npt.ArrayLike) -> Tree:
        """A checked tree from tokens and parents; depths follow from the parents."""
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
        # Only where every node is the child of the one before is the last one as deep as there are nodes.
        return not self.num_nodes or bool(self.depths[-1] == self.num_nodes)

    def validate(self) -> None:
        """Raise InputError unless shapes agree, parents come first and depths follow from them."""
        shape = (self.num_nodes,)
        if self.token_ids.shape != shape or self.parents.shape != shape or self.depths.shape != shape:
            raise InputError("token_ids, parents and depths must be vectors of one length", field="tree")
        _check_parents(self.parents)
        if not np.array_equal(self.depths, _depths(self.parents)):
            raise InputError("a node's depth must be its parent's depth plus one", field="tree")

    def children_of(self, node: int) -> list[int]:
        """Child indices in order; `ROOT` asks for the root's children."""
        return [int(child) for child in np.flatnonzero(self.parents == node)]

    def nodes_to(self, node: int) -> list[int]:
        """Node indices from the root's child down to `node`; empty for ROOT."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = int(self.parents[node])
        return nodes[::-1]

    def path_to(self, node: int) -> list[int]:
        """Token ids from the root's child down to `node`; empty for ROOT."""
        return [int(self.token_ids[i]) for i in self.nodes_to(node)]

    def prefix(self, num_nodes: int) -> Tree:
        """The first nodes alone: a tree again, because parents come first."""
        if num_nodes >= self.num_nodes:
            return self
        keep = slice(0, max(num_nodes, 0))
        return Tree(self.token_ids[keep], self.parents[keep], self.depths[keep])

    def clip_depth(self, max_depth: int) -> Tree:
        """Without the nodes deeper than `max_depth`."""
        # A kept node's parent is shallower, so it is kept too.
        return self.only(self.depths <= max_depth)

    def only(self, keep: npt.NDArray[np.bool_]) -> Tree:
        """The nodes marked in `keep`, in their order. Precondition: with a node its parent is kept."""
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
