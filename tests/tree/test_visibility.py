"""A node sees exactly its ancestors, the root, the pending tokens and itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tree.strategies import trees
from wager.errors import InputError
from wager.tree import Tree, ancestor_mask, row_mask
from wager.tree.visibility import ancestor_words


@settings(deadline=None, max_examples=80)
@given(trees())
def test_ancestor_mask_is_the_path(tree: Tree) -> None:
    mask = ancestor_mask(tree)
    assert np.flatnonzero(mask[0]).tolist() == [0]
    for node in range(tree.num_nodes):
        assert np.flatnonzero(mask[node + 1]).tolist() == [0, *(i + 1 for i in tree.nodes_to(node))]


@settings(deadline=None, max_examples=80)
@given(trees())
def test_words_are_the_mask_among_nodes(tree: Tree) -> None:
    rows = [[bool(word >> node & 1) for node in range(tree.num_nodes)] for word in ancestor_words(tree)]
    assert rows == ancestor_mask(tree)[1:, 1:].tolist()


@settings(deadline=None, max_examples=80)
@given(trees(), st.integers(1, 5))
def test_row_mask_is_causal_pending_then_paths(tree: Tree, num_pending: int) -> None:
    mask = row_mask(num_pending, tree)
    assert mask.shape == (num_pending + tree.num_nodes,) * 2
    for i in range(num_pending):
        assert np.flatnonzero(mask[i]).tolist() == list(range(i + 1))
    for node in range(tree.num_nodes):
        own_path = [num_pending + i for i in tree.nodes_to(node)]
        assert np.flatnonzero(mask[num_pending + node]).tolist() == [*range(num_pending), *own_path]


def test_a_chain_is_plainly_causal() -> None:
    assert np.array_equal(row_mask(3, Tree.chain([1, 2])), np.tri(5, dtype=bool))
    assert np.array_equal(ancestor_mask(Tree.chain([1, 2])), np.tri(3, dtype=bool))


def test_a_row_without_pending_has_no_root() -> None:
    with pytest.raises(InputError, match="num_pending"):
        row_mask(0, Tree.empty())
