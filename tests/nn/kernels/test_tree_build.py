"""Trees that a device builds are those of `tree/build.py`, and the tables of their pass are the host's."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.nn.kernels import interpreter
from wager.nn.kernels.tables import PassTables, TableLimits
from wager.nn.kernels.tree_build import (
    MAX_TREE_NODES,
    NODE_FIELDS,
    REQUEST_FIELDS,
    TreeBuffers,
    TreeRequest,
    build_trees,
    max_tree_nodes,
)
from wager.policy.calibration import Calibrator
from wager.tree import Tree, one_tree
from wager.tree.visibility import ancestor_words

assert interpreter
DEPTHS, RANKS, VOCAB, MAX_TOKENS, POISON = 15, 8, 1000, 160, -7
FloatArray = npt.NDArray[np.float32]


def candidates(rng: np.random.Generator, num_lines: int, sharpness: float) -> FloatArray:
    """[lines, 2, ranks]: log-probabilities, descending, and tokens that differ within a line."""
    scores = rng.normal(size=(num_lines, RANKS)) * sharpness
    logprobs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True) * 1.05)
    tokens = np.stack([rng.permutation(VOCAB)[:RANKS] for _ in range(num_lines)])
    return np.stack((-np.sort(-logprobs, axis=1), tokens), axis=1).astype(np.float32)


class Planted:
    """Beds planted on a device, over tables that were poisoned before."""

    def __init__(self, device: torch.device, top: FloatArray, beds: list[TreeRequest]) -> None:
        self.tables = PassTables(TableLimits(MAX_TOKENS, 4, 8, 4, 8, mask_words=2), device)
        self.tables.token_ids.fill_(POISON)
        self.tables.positions.fill_(POISON)
        self.tables.masks.fill_(POISON)
        numbers = torch.tensor([bed.numbers() for bed in beds], dtype=torch.int64, device=device)
        assert numbers.shape[1] == REQUEST_FIELDS
        cells = max(1, *(bed.num_depths for bed in beds)) * RANKS
        costs = torch.full((len(beds), cells), torch.nan, device=device)
        found = torch.full((NODE_FIELDS, MAX_TOKENS), POISON, dtype=torch.int64, device=device)
        ground = TreeBuffers(numbers, costs, found)
        build_trees(torch.from_numpy(top).to(device), len(beds), ground, self.tables, VOCAB)
        self.found = found.cpu().numpy()

    def tree(self, bed: TreeRequest) -> Tree:
        depth, _, parent, token = self.found[:, bed.first : bed.first + bed.num_nodes]
        tree = Tree(token, parent.astype(np.int32), depth.astype(np.int32))
        tree.validate()
        return tree

    def ranks(self, bed: TreeRequest) -> npt.NDArray[np.int64]:
        return self.found[1, bed.first : bed.first + bed.num_nodes]

    def check_tables(self, bed: TreeRequest) -> None:
        """What the pass reads of the nodes, and that nothing else was touched."""
        tree, own = self.tree(bed), slice(bed.first, bed.first + bed.num_nodes)
        assert np.array_equal(self.tables.token_ids.cpu().numpy()[own], tree.token_ids)
        assert np.array_equal(self.tables.positions.cpu().numpy()[own], bed.root + tree.depths)
        masks = self.tables.masks.cpu().numpy()[own]
        assert masks[:, 0].view(np.uint64).tolist() == ancestor_words(tree)
        assert not masks[:, 1].any()


def path_costs(tree: Tree, ranks: npt.NDArray[np.int64], costs: npt.NDArray[np.float64]) -> list[float]:
    """The cost of every node by adding up along its path."""
    found: list[float] = []
    for parent, depth, rank in zip(tree.parents, tree.depths, ranks, strict=True):
        found.append((found[parent] if parent >= 0 else 0.0) + float(costs[depth - 1, rank]))
    return found


@pytest.mark.parametrize("num_nodes", [1, 2, 15, 31, 63, 64])
@pytest.mark.parametrize("sharpness", [0.3, 2.0, 6.0])
def test_the_best_nodes_come_first(device: torch.device, num_nodes: int, sharpness: float) -> None:
    rng = np.random.default_rng(num_nodes)
    top = candidates(rng, DEPTHS, sharpness)
    bed = TreeRequest(0, DEPTHS, RANKS, num_nodes, 3, 40)
    planted = Planted(device, top, [bed])
    costs = -np.minimum(top[:, 0].astype(np.float64), 0.0)
    reference = one_tree(costs, num_nodes)
    got = path_costs(planted.tree(bed), planted.ranks(bed), costs)
    assert np.allclose(got, -reference.score, rtol=1e-5, atol=1e-6)  # float32 sums against float64
    tokens = top[planted.tree(bed).depths - 1, 1, planted.ranks(bed)]
    assert np.array_equal(planted.tree(bed).token_ids, tokens.astype(np.int64))
    planted.check_tables(bed)
    untouched = [*range(3), *range(3 + num_nodes, MAX_TOKENS)]
    assert (planted.found[:, untouched] == POISON).all()
    assert (planted.tables.token_ids.cpu().numpy()[untouched] == POISON).all()


@pytest.mark.parametrize("weights", [(0.0, 1.0, 0.0), (-0.7, 0.6, -1.5), (1.2, 1.9, 0.4)])
def test_a_calibration_is_the_policys(device: torch.device, weights: tuple[float, float, float]) -> None:
    top = candidates(np.random.default_rng(5), DEPTHS + 2, 3.0)
    bed = TreeRequest(2, DEPTHS, RANKS, 40, 1, 0, weights)
    planted = Planted(device, top, [bed])
    calibrator = Calibrator()
    calibrator.weights = list(weights)
    costs = calibrator.costs(top[2:, 0])
    got = path_costs(planted.tree(bed), planted.ranks(bed), costs)
    # Log-odds near certainty lose digits in float32: close, and in an order as close.
    assert np.allclose(got, -one_tree(costs, 40).score, rtol=2e-3, atol=1e-3)
    planted.check_tables(bed)


def test_a_chain_is_rank_0_alone(device: torch.device) -> None:
    top = candidates(np.random.default_rng(7), DEPTHS, 1.0)
    bed = TreeRequest(0, DEPTHS, 1, 9, 1, 12)
    planted = Planted(device, top, [bed])
    tree = planted.tree(bed)
    assert tree.is_chain and np.array_equal(tree.token_ids, top[:9, 1, 0].astype(np.int64))
    planted.check_tables(bed)


def test_rows_have_trees_of_their_own_and_one_may_have_none(device: torch.device) -> None:
    top = candidates(np.random.default_rng(9), 3 * DEPTHS, 1.5)
    beds = [
        TreeRequest(DEPTHS, DEPTHS, RANKS, 20, 1, 100),
        TreeRequest(0, 0, RANKS, 0, 22, 7),
        TreeRequest(2 * DEPTHS, 5, RANKS, 33, 23, 55, (0.1, 0.9, 0.0)),
        TreeRequest(0, DEPTHS, RANKS, 64, 57, 9),
    ]
    together = Planted(device, top, beds)
    for bed in beds:
        alone = Planted(device, top, [bed])
        own = slice(bed.first, bed.first + bed.num_nodes)
        assert np.array_equal(together.found[:, own], alone.found[:, own])
        together.check_tables(bed)
    assert together.tree(beds[2]).max_depth <= 5


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_what_is_not_offered_or_no_number_still_gives_a_tree_of_known_tokens(
    device: torch.device, bad: float
) -> None:
    top = candidates(np.random.default_rng(11), DEPTHS, 1.0)
    top[3:, 0], top[3:, 1] = bad, 1e9
    bed = TreeRequest(0, DEPTHS, RANKS, MAX_TREE_NODES, 1, 0, (0.0, 1.0, 0.0))
    planted = Planted(device, top, [bed])
    tokens = planted.tree(bed).token_ids  # validates
    assert tokens.min() >= 0 and tokens.max() < VOCAB
    planted.check_tables(bed)


@pytest.mark.parametrize(
    ("depths", "ranks", "most"), [(0, 8, 0), (1, 8, 8), (15, 1, 15), (3, 2, 14), (2, 8, 64), (15, 8, 64)]
)
def test_how_many_nodes_candidates_can_make(depths: int, ranks: int, most: int) -> None:
    assert max_tree_nodes(depths, ranks) == most
