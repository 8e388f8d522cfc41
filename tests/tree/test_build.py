"""Best-first order against a list of all paths, for every route through the builder."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.errors import InputError
from wager.tree import ROOT, Forest, build, build_forest, one_tree, row_trees

Path = tuple[int, ...]


class Draft(NamedTuple):
    scores: np.ndarray
    budget: int
    row_caps: list[int] | None
    max_depths: list[int] | None
    chain_only: bool
    spine_only: list[bool] | None

    def build(self) -> Forest:
        return build_forest(
            self.scores,
            self.budget,
            row_caps=self.row_caps,
            max_depths=self.max_depths,
            chain_only=self.chain_only,
            spine_only=self.spine_only,
        )


class Node(NamedTuple):
    row: int
    path: Path
    score: float


def every_node(draft: Draft) -> list[Node]:
    """All allowed paths of all rows, in the documented order, by enumeration."""
    num_rows, num_depths, num_ranks = draft.scores.shape
    keyed: list[tuple[tuple[float, int, int, Path], Node]] = []
    for row in range(num_rows):
        limit = num_depths if draft.max_depths is None else min(num_depths, draft.max_depths[row])
        conditional = draft.spine_only is not None and draft.spine_only[row]
        sizes = [
            sorted(range(num_ranks), key=lambda r, d=d: -draft.scores[row, d, r]) for d in range(num_depths)
        ]
        for depth in range(1, limit + 1):
            for path in itertools.product(range(num_ranks), repeat=depth):
                if draft.chain_only and any(path):
                    continue
                if conditional and any(path[:-1]):
                    continue
                score = 0.0
                for d, rank in enumerate(path):
                    score += float(draft.scores[row, d, rank])
                places = tuple(sizes[d].index(rank) for d, rank in enumerate(path))
                if score > -np.inf:
                    keyed.append(((-score, row, depth, places), Node(row, path, score)))
    return [node for _, node in sorted(keyed)]


def reference(draft: Draft) -> list[Node]:
    taken: list[Node] = []
    count = [0] * draft.scores.shape[0]
    for node in every_node(draft):
        cap = draft.budget if draft.row_caps is None else draft.row_caps[node.row]
        if len(taken) < draft.budget and count[node.row] < cap:
            taken.append(node)
            count[node.row] += 1
    return taken


def forest_nodes(forest: Forest) -> list[Node]:
    paths: list[Path] = []
    nodes: list[Node] = []
    for i in range(forest.num_nodes):
        parent = int(forest.parent[i])
        assert parent < i
        assert parent == ROOT or forest.row[parent] == forest.row[i]
        paths.append((() if parent == ROOT else paths[parent]) + (int(forest.rank[i]),))
        assert len(paths[i]) == forest.depth[i]
        nodes.append(Node(int(forest.row[i]), paths[i], float(forest.score[i])))
    assert (np.diff(forest.score) <= 0).all()
    return nodes


# Few distinct values, so that ties, zeros and missing ranks are common.
coarse = st.sampled_from([0.0, -0.0, -0.25, -0.5, -1.0, -2.0, -np.inf])
fine = st.one_of(coarse, st.floats(-6.0, 0.0, width=32))


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    num_rows, num_depths = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    num_ranks = draw(st.integers(0, 4 if num_depths < 4 else 3))
    size = num_rows * num_depths * num_ranks
    values = draw(st.lists(draw(st.sampled_from([coarse, fine])), min_size=size, max_size=size))
    scores = np.array(values, np.float64).reshape(num_rows, num_depths, num_ranks)
    if draw(st.booleans()):
        scores = -np.sort(-scores, axis=2)

    def per_row(element: st.SearchStrategy) -> st.SearchStrategy:
        return st.none() | st.lists(element, min_size=num_rows, max_size=num_rows)

    return Draft(
        scores,
        draw(st.integers(0, 40)),
        draw(per_row(st.integers(0, 12))),
        draw(per_row(st.integers(0, 5))),
        draw(st.integers(0, 4)) == 0,
        draw(per_row(st.booleans())),
    )


@pytest.mark.parametrize("heap_max_nodes", [0, 10**9], ids=["levels", "heap"])
@settings(deadline=None, max_examples=250)
@given(draft=drafts())
def test_order_equals_enumeration(heap_max_nodes: int, draft: Draft) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_HEAP_MAX_NODES", heap_max_nodes)
        assert forest_nodes(draft.build()) == reference(draft)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(0, 200), st.sampled_from([0.3, 1.0, 5.0]))
def test_one_tree_equals_the_levels(seed: int, budget: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    costs = np.round(np.sort(rng.exponential(spread, size=(15, 8)), axis=1), int(rng.integers(1, 8)))
    costs[rng.random(15) < 0.1, 5:] = np.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_HEAP_MAX_NODES", 0)
        wanted = build_forest(-costs[None], budget)
    for got, part in zip(one_tree(costs, budget), wanted, strict=True):
        assert got.dtype == part.dtype and np.array_equal(got, part)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 700), st.booleans(), st.booleans(), st.booleans())
def test_routes_agree_on_large_drafts(
    seed: int, budget: int, capped: bool, spine: bool, in_order: bool
) -> None:
    rng = np.random.default_rng(seed)
    num_rows = int(rng.integers(1, 9))
    scores = np.round(-rng.exponential(1.0, size=(num_rows, 10, 8)), int(rng.integers(0, 4)))
    draft = Draft(
        -np.sort(-scores, axis=2) if in_order else scores,
        budget,
        rng.integers(0, 200, num_rows).tolist() if capped else None,
        None,
        False,
        rng.integers(0, 2, num_rows).astype(bool).tolist() if spine else None,
    )
    answers = []
    for heap_max_nodes in (0, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(build, "_HEAP_MAX_NODES", heap_max_nodes)
            answers.append(draft.build())
    for first, second in zip(*answers, strict=True):
        assert first.dtype == second.dtype
        assert np.array_equal(first, second)


@pytest.mark.parametrize("seed", range(12))
def test_routes_agree_at_every_budget(seed: int) -> None:
    """A prefix of one order is the answer to a smaller budget: a bound off by one shows here."""
    scores = -np.random.default_rng(seed).exponential(1.0, size=(1 + seed % 3, 6, 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_HEAP_MAX_NODES", 10**9)
        whole = build_forest(scores, 200)
        patch.setattr(build, "_HEAP_MAX_NODES", 0)
        for budget in range(1, 200):
            part = build_forest(scores, budget)
            assert all(np.array_equal(a, b[:budget]) for a, b in zip(part, whole, strict=True))


def test_one_row_by_hand() -> None:
    scores = np.log([[[0.6, 0.3], [0.9, 0.1]]])
    forest = build_forest(scores, 4)
    assert forest.depth.tolist() == [1, 2, 1, 2]
    assert forest.rank.tolist() == [0, 0, 1, 0]
    assert forest.parent.tolist() == [ROOT, 0, ROOT, 2]
    assert np.allclose(forest.path_probs, [0.6, 0.54, 0.3, 0.27])


def test_chain_ends_where_nothing_is_offered() -> None:
    scores = np.array([[[-0.1], [-0.2], [-np.inf], [-0.1]]])
    forest = build_forest(scores, 10, chain_only=True)
    assert forest.depth.tolist() == [1, 2]
    assert forest.parent.tolist() == [ROOT, 0]


def test_budget_goes_to_the_surer_row() -> None:
    sure, unsure = np.full((3, 2), -0.01), np.full((3, 2), -3.0)
    forest = build_forest(np.stack([unsure, sure]), 4, max_depths=[3, 3])
    assert forest.row.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 2), (2, 3, 0)])
def test_nothing_offered(shape: tuple[int, int, int]) -> None:
    assert build_forest(np.zeros(shape), 5).num_nodes == 0


@pytest.mark.parametrize("bad", [np.zeros((2, 2)), np.full((1, 1, 1), 0.1), np.full((1, 2, 1), np.nan)])
def test_bad_scores_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(InputError, match="scores"):
        build_forest(bad, 3)


@settings(deadline=None, max_examples=80)
@given(draft=drafts(), num_nodes=st.integers(0, 40))
def test_row_trees_hold_the_first_nodes(draft: Draft, num_nodes: int) -> None:
    forest = draft.build()
    token_ids = np.arange(draft.scores.size).reshape(draft.scores.shape)
    trees = row_trees(forest, num_nodes, token_ids)
    assert len(trees) == draft.scores.shape[0]
    for row, tree in enumerate(trees):
        tree.validate()
        paths = [node.path for node in forest_nodes(forest)[:num_nodes] if node.row == row]
        expected = [[int(token_ids[row, d, rank]) for d, rank in enumerate(path)] for path in paths]
        assert [tree.path_to(i) for i in range(tree.num_nodes)] == expected
