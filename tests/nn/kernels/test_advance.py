"""The walk on the device is the one rule of `tree/accept.py`, and the tables behind it are the host's."""

import numpy as np
import pytest
import torch

from tests.nn.kernels import ways
from wager.kvcache.pool import slot_ids
from wager.nn.kernels.advance import HEADER, MAX_KEPT, Block, Walk, advance
from wager.nn.kernels.tables import PassTables, TableLimits, TableRow, choose_tiling
from wager.nn.layers.attention import HeadShape
from wager.tree import Tree, accept

assert ways
BLOCK = Block(mask_id=7, size=6, page_size=4)
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


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_nodes", [0, 1, 9, 20])
def test_it_walks_as_accept_does(device: torch.device, num_nodes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree, num_pending, context_len = random_tree(num_nodes, rng), 1 + seed % 3, 3 + 5 * seed
    chosen = rng.integers(0, WORDS, num_nodes + 1)
    verdict = accept(tree, chosen.tolist())
    kept = [*range(num_pending), *(num_pending + node for node in verdict.path)]
    longest = context_len + num_pending + num_nodes + BLOCK.size
    pages = rng.permutation(40)[: -(-longest // BLOCK.page_size)].tolist()
    tiling = choose_tiling(HeadShape(4, 2, 16), 1, BLOCK.size, 8)
    tables = PassTables(TableLimits(BLOCK.size, 1, 40, 1, tiling.max_items), device)
    tables.lay_rows([TableRow(0, BLOCK.size, 0, longest - BLOCK.size, 0)], tiling)
    tables.lay_pages(0, pages)
    tables.push()
    num_items = int((tables.host.items[:, 0] >= 0).sum())
    numbers = torch.full((2, 32), -9, dtype=torch.int64)
    numbers[0, :HEADER] = torch.tensor([num_nodes, num_pending, context_len, num_items])
    numbers[1, :num_nodes] = torch.from_numpy(tree.parents.astype(np.int64))
    tokens = torch.cat((torch.full((num_pending,), 1), torch.from_numpy(tree.token_ids)))
    places = torch.full((3, MAX_KEPT), -77, dtype=torch.int64, device=device)
    walk = Walk(torch.from_numpy(chosen).to(device), tokens.to(device), numbers.to(device))
    advance(walk, tables, places, BLOCK)

    after = context_len + len(kept)
    assert places[0, : len(kept)].tolist() == list(range(context_len, after))
    slots = slot_ids(pages, BLOCK.page_size, context_len, after).tolist()
    assert places[1].tolist() == slots + [-1] * (MAX_KEPT - len(kept))
    assert places[2, : len(kept)].tolist() == kept
    assert tables.token_ids.tolist() == [verdict.target_token] + [BLOCK.mask_id] * (BLOCK.size - 1)
    assert tables.positions.tolist() == list(range(after, after + BLOCK.size))
    assert tables.slots.tolist() == slot_ids(pages, BLOCK.page_size, after, after + BLOCK.size).tolist()
    assert int(tables.rows[0, 3]) == after
    contexts = tables.items[:, 3].tolist()
    assert contexts == [after] * num_items + [-1] * (len(contexts) - num_items)
