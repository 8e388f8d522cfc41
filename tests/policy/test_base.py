"""The records and the two builders that every policy shares."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policy.situations import assert_closed, nodes_of
from wager.policy.base import (
    PLAIN,
    UNLIMITED,
    Draft,
    Offer,
    Row,
    fixed_forest,
    limits_of,
    raw_increments,
    stack_scores,
)


def tree_draft(*depths: list[float], spine_only: bool = False) -> Draft:
    return Draft("draft", len(depths), np.log(np.array(depths)), spine_only=spine_only)


def test_plain_is_the_offer_of_nothing() -> None:
    assert Offer(None, 0) == PLAIN
    assert Row("r").drafters == ("draft",)


def test_raw_increments_are_the_drafters_own_word() -> None:
    assert raw_increments(0, Draft("lookup", 3)).tolist() == [[0.0], [0.0], [0.0]]
    above = Draft("draft", 1, np.array([[1e-7, -1.0]], np.float32))
    assert raw_increments(0, above).tolist() == [[0.0, -1.0]]


def test_scores_are_padded_with_what_cannot_be_chosen() -> None:
    scores = stack_scores([tree_draft([0.5, 0.25], [0.5, 0.25]), None, Draft("lookup", 3)])
    assert scores.shape == (3, 3, 2)
    assert np.isneginf(scores[1]).all()
    assert np.isneginf(scores[0, 2]).all()
    assert scores[2].tolist() == [[0.0, -np.inf]] * 3
    assert scores[0, :2] == pytest.approx(np.log([[0.5, 0.25]] * 2))


def test_a_single_row_and_the_same_row_among_others_have_equal_scores() -> None:
    draft = tree_draft([0.6, 0.3], [0.5, 0.1])
    assert np.array_equal(stack_scores([draft])[0], stack_scores([draft, None])[0])
    assert stack_scores([None]).shape == (1, 0, 0)


def test_increments_are_asked_for_each_row_by_its_place() -> None:
    drafts = [None, tree_draft([0.5]), tree_draft([0.5])]
    scores = stack_scores(drafts, lambda row, _draft: np.full((1, 1), -float(row)))
    assert scores[1:, 0, 0].tolist() == [-1.0, -2.0]


def test_only_limits_that_bite_are_handed_on() -> None:
    drafts = [Draft("draft", 4), None]
    free = limits_of([Row("a"), Row("b")], drafts)
    assert (free.row_caps, free.max_depths, free.spine_only) == (None, None, None)
    assert limits_of([Row("a", max_depth=4), Row("b")], drafts).max_depths is None
    tight = limits_of([Row("a", max_depth=3), Row("b", max_nodes=2)], drafts, cap=5)
    assert tight.row_caps is not None and tight.row_caps.tolist() == [5, 2]
    assert tight.max_depths is not None and tight.max_depths.tolist() == [3, UNLIMITED]
    spine = limits_of([Row("a"), Row("b")], [None, tree_draft([0.5], spine_only=True)]).spine_only
    assert spine is not None and spine.tolist() == [False, True]


def test_a_fixed_chain_follows_rank_0_whatever_the_scores() -> None:
    drafts = [tree_draft([0.1, 0.9], [0.1, 0.9], [0.1, 0.9]), None, Draft("lookup", 2)]
    forest = fixed_forest([Row("a"), Row("b"), Row("c")], drafts, 3, chain=True)
    assert sorted(nodes_of(forest)) == [(0, 1, 0), (0, 2, 0), (0, 3, 0), (2, 1, 0), (2, 2, 0)]


def test_a_fixed_tree_takes_the_best_paths() -> None:
    # Path probabilities: 0.6, 0.3 at depth 1; 0.48, 0.06 below the first, 0.24, 0.03 below the second.
    forest = fixed_forest([Row("a")], [tree_draft([0.6, 0.3], [0.8, 0.1])], 4, chain=False)
    assert np.exp(forest.score) == pytest.approx([0.6, 0.48, 0.3, 0.24])
    assert nodes_of(forest) == [(0, 1, 0), (0, 2, 0), (0, 1, 1), (0, 2, 0)]


def test_a_spine_draft_has_no_children_off_its_spine() -> None:
    forest = fixed_forest([Row("a")], [tree_draft([0.6, 0.4], [0.9, 0.1], spine_only=True)], 9, chain=False)
    assert nodes_of(forest) == [(0, 1, 0), (0, 2, 0), (0, 1, 1), (0, 2, 1)]
    assert forest.parent.tolist() == [-1, 0, -1, 0]


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=4),
    st.integers(0, 6),
    st.booleans(),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_fixed_forests_keep_every_limit(
    limits: list[tuple[int, int, int]], nodes: int, chain: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows = [Row(i, max_nodes=most, max_depth=deep) for i, (most, deep, _) in enumerate(limits)]
    drafts = [
        Draft("draft", d, np.log(random.dirichlet(np.ones(4), d)[:, :3])) if d else None for *_, d in limits
    ]
    forest = fixed_forest(rows, drafts, nodes, chain=chain)
    assert_closed(forest)
    for i, (most, deep, offered) in enumerate(limits):
        own = forest.depth[forest.row == i]
        assert len(own) <= min(most, nodes)
        assert max(own, default=0) <= min(deep, offered)
        if chain:
            assert len(own) == min(most, deep, offered, nodes)
