"""Places by marginal value, with a floor per row."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policy.situations import assert_closed, nodes_of, same_forest
from wager.policy.allocation import allocate, evened, take
from wager.tree import Forest, build_forest


def forest_of(seed: int, rows: int, budget: int) -> Forest:
    """Rows of very different quality, so that the best nodes crowd into a few of them."""
    random = np.random.default_rng(seed)
    quality = random.uniform(0.05, 8.0, (rows, 1, 1))
    return build_forest(-quality * random.exponential(size=(rows, 4, 3)), budget)


FORESTS = st.builds(forest_of, st.integers(0, 999), st.integers(1, 5), st.integers(0, 40))


@given(FORESTS, st.integers(-1, 45), st.integers(0, 4))
@settings(deadline=None, max_examples=150)
def test_budget_floor_and_parents(forest: Forest, num_nodes: int, floor: int) -> None:
    chosen = allocate(forest, num_nodes, floor)
    assert chosen.num_nodes == min(max(num_nodes, 0), forest.num_nodes)
    assert_closed(chosen)
    assert (np.diff(chosen.score) <= 0.0).all()
    offered = np.bincount(forest.row, minlength=5)
    held = floor
    while held and np.minimum(offered, held).sum() > num_nodes:
        held -= 1
    assert (np.bincount(chosen.row, minlength=5) >= np.minimum(offered, held)).all()


@given(FORESTS, st.integers(0, 45), st.integers(0, 4))
@settings(deadline=None, max_examples=100)
def test_a_row_gets_its_own_best_nodes(forest: Forest, num_nodes: int, floor: int) -> None:
    chosen = allocate(forest, num_nodes, floor)
    for row in range(5):
        mine, offered = chosen.row == row, forest.row == row
        assert chosen.score[mine].tolist() == forest.score[offered][: mine.sum()].tolist()
        assert chosen.rank[mine].tolist() == forest.rank[offered][: mine.sum()].tolist()


@given(FORESTS, st.integers(0, 45))
@settings(deadline=None, max_examples=60)
def test_without_a_floor_it_is_the_best_prefix(forest: Forest, num_nodes: int) -> None:
    chosen = allocate(forest, num_nodes)
    assert same_forest(chosen, Forest(*(field[:num_nodes] for field in forest)))


def test_the_floor_takes_a_place_from_the_worst_of_the_rest() -> None:
    strong, weak = np.full((3, 1), -0.1), np.full((3, 1), -3.0)
    forest = build_forest(np.stack([strong, weak]), 6)
    assert nodes_of(allocate(forest, 3)) == [(0, 1, 0), (0, 2, 0), (0, 3, 0)]
    floored = allocate(forest, 3, floor=1)
    assert nodes_of(floored) == [(0, 1, 0), (0, 2, 0), (1, 1, 0)]
    assert floored.parent.tolist() == [-1, 0, -1]


def test_a_floor_that_does_not_fit_is_lowered() -> None:
    strong, weak = np.full((3, 1), -0.1), np.full((3, 1), -3.0)
    forest = build_forest(np.stack([strong, weak]), 6)
    assert nodes_of(allocate(forest, 2, floor=3)) == [(0, 1, 0), (1, 1, 0)]
    assert nodes_of(allocate(forest, 1, floor=3)) == [(0, 1, 0)]


def test_taken_nodes_are_renumbered() -> None:
    forest = build_forest(np.stack([np.full((2, 1), -0.1), np.full((2, 1), -0.15)]), 4)
    assert nodes_of(forest) == [(0, 1, 0), (1, 1, 0), (0, 2, 0), (1, 2, 0)]
    assert take(forest, np.array([1, 3])).parent.tolist() == [-1, 0]


@given(FORESTS)
@settings(deadline=None, max_examples=100)
def test_evened_rows_keep_their_own_order(forest: Forest) -> None:
    order, amounts = evened(forest)
    assert order.num_nodes == forest.num_nodes == len(amounts)
    assert (np.diff(amounts) <= 1e-12).all()
    for count in range(forest.num_nodes + 1):
        assert_closed(Forest(*(field[:count] for field in order)))
    for row in range(5):
        assert order.score[order.row == row].tolist() == forest.score[forest.row == row].tolist()


@given(st.integers(0, 999), st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_no_other_share_makes_the_rows_speeds_higher(seed: int, num_nodes: int) -> None:
    """Of all ways to give three rows so many nodes, each its own best, none has a larger sum of logs."""
    forest = forest_of(seed, 3, 27)
    order, amounts = evened(forest)
    own = [np.cumsum(forest.path_probs[forest.row == row]) for row in range(3)]

    def speeds(counts: tuple[int, ...]) -> float:
        return sum(float(np.log1p(worth[n - 1])) for worth, n in zip(own, counts, strict=True) if n)

    ways = product(*(range(len(worth) + 1) for worth in own))
    best = max(speeds(counts) for counts in ways if sum(counts) == min(num_nodes, forest.num_nodes))
    assert amounts[:num_nodes].sum() == pytest.approx(best)
    assert speeds(tuple(np.bincount(order.row[:num_nodes], minlength=3).tolist())) == pytest.approx(best)
