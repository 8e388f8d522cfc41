"""Norm, rotation and the write to the pool against float64 and against the layers' own path."""

import pytest
import torch

from tests.nn.kernels.interpreter import BOUNDS, DTYPES, error, random
from wager.kvcache.pool import KVPool, PoolSpec
from wager.nn.kernels.device import Launch, prefetch_of
from wager.nn.kernels.qkv import (
    HeadTransform,
    TokenSlots,
    rotation_table,
    write_context,
    write_context_reference,
    write_qkv,
    write_qkv_reference,
)
from wager.nn.layers.attention import HeadShape
from wager.nn.layers.norm import RmsNorm
from wager.nn.rope import RopeSpec, Rotary, rotate

SENTINEL = 9.0
HEADS = [
    HeadShape(1, 1, 32),
    HeadShape(4, 2, 64),
    HeadShape(6, 2, 80),
    HeadShape(7, 1, 48),
    HeadShape(8, 8, 16),
]


def make_turn(
    heads: HeadShape, dtype: torch.dtype, device: torch.device, has_norm: bool = True
) -> HeadTransform:
    table = rotation_table(RopeSpec(heads.head_dim, theta=1e4), 64, dtype, device)
    rows = heads.num_heads + heads.num_kv_heads
    norm = random(rows, heads.head_dim, dtype=dtype, device=device, seed=5) if has_norm else None
    return HeadTransform(heads, norm, 1e-6, table)


def exact(turn: HeadTransform) -> HeadTransform:
    return turn._replace(norm=None if turn.norm is None else turn.norm.double(), table=turn.table.double())


def make_places(tokens: int, slots: int, device: torch.device) -> TokenSlots:
    """Scattered positions and slots, the second token padding."""
    order = torch.randperm(slots, generator=torch.Generator().manual_seed(3))[:tokens]
    if tokens > 1:
        order[1] = -1
    return TokenSlots((torch.arange(tokens) * 7 % 64).to(device), order.to(device))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("has_norm", [True, False])
def test_queries_and_cache_are_float64s(
    device: torch.device, heads: HeadShape, dtype: torch.dtype, has_norm: bool
) -> None:
    tokens, slots = 5, 40
    num_all = heads.num_heads + 2 * heads.num_kv_heads
    fused = random(tokens, num_all * heads.head_dim, dtype=dtype, device=device)
    turn, places = make_turn(heads, dtype, device, has_norm), make_places(tokens, slots, device)
    store = torch.full((2, heads.num_kv_heads, slots, heads.head_dim), SENTINEL, dtype=dtype, device=device)
    want_store = store.double()
    want = write_qkv_reference(fused.double(), exact(turn), places, want_store)
    queries = torch.full((tokens, heads.num_heads, heads.head_dim), torch.nan, dtype=dtype, device=device)
    got = write_qkv(fused, turn, places, store, queries)
    real = places.slots >= 0
    assert error(got[real], want[real]) <= BOUNDS[dtype]
    assert bool(got[~real].isnan().all())
    written = torch.zeros(slots, dtype=torch.bool, device=device)
    written[places.slots[real]] = True
    assert error(store[:, :, written], want_store[:, :, written]) <= BOUNDS[dtype]
    assert bool((store[:, :, ~written] == SENTINEL).all())
    assert torch.equal(store[1][:, written].double(), want_store[1][:, written])  # values are only moved


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_a_drafters_context_goes_to_all_layers(
    device: torch.device, num_layers: int, dtype: torch.dtype
) -> None:
    heads, tokens, slots = HeadShape(4, 2, 32), 4, 20
    fused = random(tokens, num_layers * 2 * 2 * 32, dtype=dtype, device=device)
    norm = random(num_layers * 2, 32, dtype=dtype, device=device, seed=5)
    turn = make_turn(heads, dtype, device)._replace(norm=norm)
    places = make_places(tokens, slots, device)
    store = torch.full((num_layers, 2, 2, slots, 32), SENTINEL, dtype=dtype, device=device)
    want = store.double()
    write_context_reference(fused.double(), exact(turn), places, want)
    write_context(fused, turn, places, store)
    assert error(store, want) <= BOUNDS[dtype]
    assert int((store != SENTINEL).any(dim=(0, 1, 2, 4)).sum()) == tokens - 1


def test_it_agrees_with_the_layers_and_the_pool(device: torch.device) -> None:
    """The same numbers, in float32, as norm, rotation and write of the plain path."""
    heads, tokens = HeadShape(4, 2, 32), 6
    rope = RopeSpec(32, theta=1e4)
    pool = KVPool(PoolSpec(1, 3, 4, 2, 32, torch.float32, device))
    fused = random(tokens, 8 * 32, dtype=torch.float32, device=device)
    norm = random(6, 32, dtype=torch.float32, device=device, seed=5)
    places = TokenSlots(
        torch.arange(tokens, device=device) + 3, torch.tensor([8, 9, 10, 11, 0, 1], device=device)
    )
    pool.store.fill_(SENTINEL)
    turn = HeadTransform(heads, norm, 1e-6, rotation_table(rope, 64, torch.float32, device))
    queries = write_qkv(fused, turn, places, pool.store[0])
    mine = pool.store.clone()
    pool.store.fill_(SENTINEL)
    plain = fused.view(tokens, 8, 32).clone()
    rotation = Rotary(rope, torch.float32, device).compute(places.positions)
    plain[:, :6] = rotate(RmsNorm(norm, 1e-6)(plain[:, :6]), rotation)
    pool.write_packed(0, places.slots, plain[:, 4:].unflatten(1, (2, 2)))
    assert error(queries, plain[:, :4]) <= 1e-6
    assert error(mine, pool.store) <= 1e-6


def test_parts_of_a_split_product_are_summed(device: torch.device) -> None:
    heads, tokens = HeadShape(4, 2, 32), 3
    turn, places = make_turn(heads, torch.bfloat16, device), make_places(tokens, 10, device)
    parts = random(3, tokens, 8 * 32, dtype=torch.float32, device=device)
    stores = torch.zeros(2, 2, 2, 10, 32, dtype=torch.bfloat16, device=device)
    want_store = stores[0].double()
    want = write_qkv_reference(parts.double().sum(dim=0), exact(turn), places, want_store)
    real = places.slots >= 0
    got = write_qkv(parts, turn, places, stores[1])
    assert got.dtype == torch.bfloat16 and error(got[real], want[real]) <= BOUNDS[torch.bfloat16]
    assert error(stores[1], want_store) <= BOUNDS[torch.bfloat16]


def test_fetching_ahead_changes_nothing(device: torch.device) -> None:
    heads = HeadShape(4, 2, 32)
    fused = random(3, 8 * 32, dtype=torch.float32, device=device)
    turn, places = make_turn(heads, torch.float32, device), make_places(3, 20, device)
    stores = [torch.full((2, 2, 20, 32), SENTINEL, device=device) for _ in range(2)]
    queries = [torch.zeros(3, 4, 32, device=device) for _ in range(2)]
    prefetch = prefetch_of(torch.ones(64, 96, device=device), 4096)
    write_qkv(fused, turn, places, stores[0], queries[0])
    write_qkv(fused, turn, places, stores[1], queries[1], Launch(prefetch=prefetch, prefetch_programs=3))
    assert torch.equal(*stores) and torch.equal(*queries)


def test_no_tokens_write_nothing(device: torch.device) -> None:
    heads = HeadShape(2, 1, 16)
    store = torch.full((2, 1, 8, 16), SENTINEL, device=device)
    none = torch.zeros(0, dtype=torch.int64, device=device)
    turn = make_turn(heads, torch.float32, device)
    queries = write_qkv(torch.zeros(0, 64, device=device), turn, TokenSlots(none, none), store)
    assert queries.shape == (0, 2, 16) and bool((store == SENTINEL).all())


def test_a_product_of_the_wrong_width_is_refused(device: torch.device) -> None:
    heads, one = HeadShape(2, 1, 16), torch.zeros(1, dtype=torch.int64, device=device)
    turn = make_turn(heads, torch.float32, device)
    with pytest.raises(AssertionError):
        write_qkv(
            torch.zeros(1, 80, device=device),
            turn,
            TokenSlots(one, one),
            torch.zeros(2, 1, 8, 16, device=device),
        )
