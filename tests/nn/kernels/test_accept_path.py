"""The walk on the device is the one rule of `tree/accept.py`, and the tables behind it are the host's."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests.nn.kernels import interpreter
from wager.kvcache.pool import slot_ids
from wager.nn.kernels.accept_path import (
    KEPT_SIZES,
    VERIFIED_ROW_FIELDS,
    BlockShape,
    VerifiedPass,
    VerifiedRow,
    accept_paths,
)
from wager.nn.kernels.tables import PassTables, TableLimits, TableRow, choose_tiling
from wager.nn.layers.attention import HeadShape
from wager.records import Verdict
from wager.tree import Tree, accept

assert interpreter
BLOCK = BlockShape(mask_id=7, size=6, page_size=4)
WORDS = 5


def random_tree(num_nodes: int, rng: np.random.Generator) -> Tree:
    """Siblings have different tokens, as in every tree of guesses."""
    parents, depths, tokens = [], [], []
    used: set[tuple[int, int]] = set()
    while len(parents) < num_nodes:
        parent = int(rng.integers(-1, len(parents)))
        token = int(rng.integers(0, WORDS))
        if (parent, token) not in used:
            used.add((parent, token))
            depths.append(1 if parent < 0 else depths[parent] + 1)
            parents.append(parent)
            tokens.append(token)
    return Tree(np.array(tokens, np.int64), np.array(parents, np.int32), np.array(depths, np.int32))


class Case(NamedTuple):
    """A verified row: its tree, what the target chose, and where it stands."""

    tree: Tree
    chosen: list[int]
    num_pending: int
    context_len: int
    pages: list[int]

    @property
    def longest(self) -> int:
        """Tokens in the cache if its deepest path stood."""
        return self.context_len + self.num_pending + self.tree.max_depth

    @property
    def verdict(self) -> Verdict:
        return accept(self.tree, self.chosen)


def random_case(num_nodes: int, num_pending: int, context_len: int, rng: np.random.Generator) -> Case:
    tree = random_tree(num_nodes, rng)
    reach = context_len + num_pending + num_nodes + BLOCK.size
    pages = rng.permutation(40)[: -(-reach // BLOCK.page_size)].tolist()
    return Case(tree, rng.integers(0, WORDS, num_nodes + 1).tolist(), num_pending, context_len, pages)


def walked(cases: list[Case], num_lines: int, device: torch.device) -> tuple[torch.Tensor, PassTables]:
    """Places and tables behind a pass of these rows, before which a row stands that does not draft."""
    tiling = choose_tiling(HeadShape(4, 2, 16), num_lines, num_lines * BLOCK.size, 8)
    limits = TableLimits(num_lines * BLOCK.size, num_lines, 40, num_lines, tiling.max_items)
    tables = PassTables(limits, device)
    lines = [TableRow(i * BLOCK.size, BLOCK.size, 0, case.longest, i) for i, case in enumerate(cases)]
    tables.write_rows(lines, tiling)
    for i, case in enumerate(cases):
        tables.write_pages(i, case.pages)
    tables.push()
    tokens, chosen, parents, headers = [1, 1], [0], list[int](), list[VerifiedRow]()
    for tree, own, num_pending, context_len, _ in cases:
        headers.append(
            VerifiedRow(tree.num_nodes, num_pending, context_len, len(tokens), len(chosen), len(parents))
        )
        tokens += [1] * num_pending + tree.token_ids.tolist()
        chosen += own
        parents += tree.parents.tolist()
    numbers = torch.full((2, 128), -9, dtype=torch.int64)
    numbers[0, : num_lines * VERIFIED_ROW_FIELDS] = 0
    numbers[0, : len(cases) * VERIFIED_ROW_FIELDS] = torch.tensor(headers).flatten()
    numbers[1, : len(parents)] = torch.tensor(parents)
    most = max(case.num_pending + case.tree.max_depth for case in cases)
    kept = next(size for size in KEPT_SIZES if size >= most)
    places = torch.full((3, num_lines, kept), -77, dtype=torch.int64, device=device)
    walk = VerifiedPass(torch.tensor(chosen).to(device), torch.tensor(tokens).to(device), numbers.to(device))
    accept_paths(walk, num_lines, tables, places, BLOCK)
    return places, tables


def check_row(case: Case, first: int, places: torch.Tensor, tables: PassTables, line: int) -> None:
    """`first`: the row's first token in the pass."""
    tree, _, num_pending, context_len, pages = case
    verdict, size = case.verdict, BLOCK.size
    kept = [*range(num_pending), *(num_pending + node for node in verdict.path)]
    after = context_len + len(kept)
    assert places[0, line, : len(kept)].tolist() == list(range(context_len, after))
    slots = slot_ids(pages, BLOCK.page_size, context_len, after).tolist()
    assert places[1, line].tolist() == slots + [-1] * (places.shape[2] - len(kept))
    assert places[2, line, : len(kept)].tolist() == [first + one for one in kept]
    own = slice(line * size, (line + 1) * size)
    assert tables.token_ids[own].tolist() == [verdict.target_token] + [BLOCK.mask_id] * (size - 1)
    assert tables.positions[own].tolist() == list(range(after, after + size))
    assert tables.slots[own].tolist() == slot_ids(pages, BLOCK.page_size, after, after + size).tolist()
    assert int(tables.rows[line, 3]) == after
    of_row = tables.items[:, 5] == line
    assert bool(of_row.any()) and set(tables.items[of_row, 3].tolist()) == {after}
    assert tree.num_nodes or verdict.path == ()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_nodes", [0, 1, 9, 20])
def test_it_walks_as_accept_does(device: torch.device, num_nodes: int, seed: int) -> None:
    case = random_case(num_nodes, 1 + seed % 3, 3 + 5 * seed, np.random.default_rng(seed))
    places, tables = walked([case], 1, device)
    check_row(case, 2, places, tables, 0)
    unused = tables.items[:, 5] < 0
    assert set(tables.items[unused].flatten().tolist()) <= {-1}


@pytest.mark.parametrize("num_rows", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_every_row_walks_its_own_tree(device: torch.device, num_rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cases = [random_case(int(rng.integers(0, 14)), 1 + i % 2, 2 + 9 * i, rng) for i in range(num_rows)]
    places, tables = walked(cases, 4, device)
    first = 2
    for line, case in enumerate(cases):
        check_row(case, first, places, tables, line)
        first += case.num_pending + case.tree.num_nodes
    assert (places[1, num_rows:] == -1).all() and (tables.rows[num_rows:] == 0).all()
    assert (tables.slots[num_rows * BLOCK.size :] == -1).all()
