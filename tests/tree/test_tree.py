"""The tree record: construction, checks, prefixes and subsets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tree.strategies import trees
from wager.errors import InputError
from wager.tree import ROOT, Tree


def test_chain_is_a_tree_without_branches() -> None:
    chain = Tree.chain([5, 6, 7])
    chain.validate()
    assert chain == Tree.of([5, 6, 7], [ROOT, 0, 1])
    assert chain.depths.tolist() == [1, 2, 3]
    assert chain.is_chain and chain.max_depth == 3
    assert (chain.token_ids.dtype, chain.parents.dtype, chain.depths.dtype) == (np.int64, np.int32, np.int32)


def test_empty_tree() -> None:
    empty = Tree.empty()
    empty.validate()
    assert (empty.num_nodes, empty.max_depth) == (0, 0)
    assert empty == Tree.chain([]) and empty.is_chain


def test_paths() -> None:
    tree = Tree.of([10, 11, 12, 13, 14], [ROOT, 0, ROOT, 0, 3])
    assert tree.path_to(4) == [10, 13, 14]
    assert tree.nodes_to(4) == [0, 3, 4]
    assert tree.path_to(ROOT) == []
    assert not tree.is_chain


@pytest.mark.parametrize("parents", [[0], [ROOT, 1], [ROOT, 2, 0], [-2], [ROOT, 0, 5]])
def test_parents_must_come_first(parents: list[int]) -> None:
    with pytest.raises(InputError, match="parent"):
        Tree.of(list(range(len(parents))), parents)


def test_wrong_depth_and_wrong_length_are_refused() -> None:
    good = Tree.chain([1, 2])
    with pytest.raises(InputError, match="depth"):
        Tree(good.token_ids, good.parents, np.array([1, 1], np.int32)).validate()
    with pytest.raises(InputError, match="one length"):
        Tree(good.token_ids, good.parents[:1], good.depths).validate()


def test_equality_looks_at_tokens_and_parents() -> None:
    assert Tree.of([1, 2], [ROOT, 0]) != Tree.of([1, 2], [ROOT, ROOT])
    assert Tree.chain([1, 2]) != Tree.chain([1, 3])
    assert Tree.chain([1]) != "a tree"


@settings(deadline=None, max_examples=60)
@given(trees(), st.integers(-1, 14))
def test_prefix_keeps_paths(tree: Tree, num_nodes: int) -> None:
    prefix = tree.prefix(num_nodes)
    prefix.validate()
    assert prefix.num_nodes == max(0, min(num_nodes, tree.num_nodes))
    assert [prefix.path_to(i) for i in range(prefix.num_nodes)] == [
        tree.path_to(i) for i in range(prefix.num_nodes)
    ]


@settings(deadline=None, max_examples=60)
@given(trees(), st.integers(0, 6))
def test_only_keeps_exactly_the_marked_nodes_and_their_paths(tree: Tree, max_depth: int) -> None:
    clipped = tree.only(tree.depths <= max_depth)
    clipped.validate()
    kept = [tree.path_to(i) for i in range(tree.num_nodes) if tree.depths[i] <= max_depth]
    assert [clipped.path_to(i) for i in range(clipped.num_nodes)] == kept
