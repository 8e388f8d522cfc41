"""Slots copied to others against plain torch, exactly: what is moved and what is left alone."""

import numpy as np
import pytest
import torch

from tests.nn.kernels.interpreter import DTYPES, random
from wager.nn.kernels.kv_move import move_kept, move_slots, move_slots_reference


def paths(num_rows: int, num_nodes: int, seed: int) -> torch.Tensor:
    """[2, moves]: from where to where the nodes of accepted paths go, rows on slots of their own."""
    rng = np.random.default_rng(seed)
    slots = rng.permutation(num_rows * num_nodes).reshape(num_rows, num_nodes)
    moves = []
    for own in slots:
        kept = np.sort(rng.choice(num_nodes, rng.integers(1, num_nodes + 1), replace=False))
        moves += [(own[index], own[place]) for place, index in enumerate(kept) if index != place]
    return torch.tensor(np.array(moves, np.int64).reshape(-1, 2).T.copy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "num_nodes"), [(1, 1), (1, 9), (1, 70), (5, 40)])
@pytest.mark.parametrize("head_dim", [16, 24])
def test_paths_move_as_if_all_were_read_first(
    device: torch.device, num_rows: int, num_nodes: int, head_dim: int, dtype: torch.dtype
) -> None:
    for seed in range(4):
        moves = paths(num_rows, num_nodes, seed).to(device)
        count = moves.shape[1]
        # Room behind the moves, whose numbers are of another step.
        places = torch.cat((moves, torch.zeros(2, 7, dtype=torch.int64, device=device)), dim=1)
        store = random(2, 2, 3, num_rows * num_nodes, head_dim, dtype=dtype, device=device)
        want = store.clone()
        move_slots(store, places, count)
        move_slots_reference(want, places, count)
        assert torch.equal(store, want)


def test_nothing_moves_where_there_is_nothing(device: torch.device) -> None:
    store = random(1, 2, 1, 4, 16, dtype=torch.float32, device=device)
    want = store.clone()
    move_slots(store, torch.ones(2, 3, dtype=torch.int64, device=device), 0)
    assert torch.equal(store, want)


@pytest.mark.parametrize("num_kept", [8, 16, 32])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_kept_tokens_move_to_where_they_stand(device: torch.device, num_rows: int, num_kept: int) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        num_nodes = 2 * num_kept
        slots = torch.from_numpy(rng.permutation(200)[: num_rows * (num_nodes + 1)]).to(device)
        kept = torch.full((3, num_rows, num_kept), -1, dtype=torch.int64, device=device)
        kept[2] = 0  # what lies behind the last is of no meaning
        store = random(2, 2, 3, 200, 24, dtype=torch.float32, device=device)
        want = store.clone()
        for row in range(num_rows):
            first, count = row * (num_nodes + 1), int(rng.integers(1, num_kept + 1))
            chosen = np.sort(rng.choice(num_nodes, count - 1, replace=False)) + 1
            kept[2, row, :count] = first + torch.tensor([0, *chosen], device=device)
            kept[1, row, :count] = slots[first : first + count]
            moved = torch.stack((slots[kept[2, row, :count]], slots[first : first + count]))
            move_slots_reference(want, moved, count)
        move_kept(store, slots, kept)
        assert torch.equal(store, want)
