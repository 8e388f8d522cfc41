"""The K/V pool and commit: what is written is read back, by slot, however the pages lie."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.errors import CapacityError
from wager.kvcache.commit import commit_path, plan_row_moves
from wager.kvcache.pool import KVPool, PoolSpec, slot_ids, slot_list

SPEC = PoolSpec(num_layers=2, num_pages=12, page_size=4, num_kv_heads=3, head_dim=8)


def poisoned_pool() -> KVPool:
    pool = KVPool(SPEC)
    pool.store.fill_(float("nan"))
    return pool


def random_kv(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = torch.randn(2, count, SPEC.num_kv_heads, SPEC.head_dim).unbind()
    return keys, values


@settings(deadline=None, max_examples=40)
@given(pages=st.permutations(range(12)), length=st.integers(1, 20), cut=st.integers(0, 20))
def test_what_is_written_is_read_back(pages: list[int], length: int, cut: int) -> None:
    pool, pages = poisoned_pool(), pages[:5]
    keys, values = random_kv(length)
    cut = min(cut, length)
    pool.write(1, pool.slots(pages, 0, cut), keys[:cut], values[:cut])
    pool.write(1, pool.slots(pages, cut, length), keys[cut:], values[cut:])
    view = pool.view(1, pages, length)
    assert torch.equal(view.keys, keys) and torch.equal(view.values, values)
    assert torch.isnan(pool.store[0]).all()


def test_a_run_of_pages_is_read_without_a_copy() -> None:
    pool = poisoned_pool()
    view = pool.view(0, [5, 6, 7], 10)
    assert view.keys.shape == (10, 3, 8)
    assert view.keys.untyped_storage().data_ptr() == pool.store.untyped_storage().data_ptr()
    scattered = pool.view(0, [5, 7, 6], 10)
    assert scattered.keys.untyped_storage().data_ptr() != pool.store.untyped_storage().data_ptr()


def test_a_span_may_begin_inside_and_only_its_own_pages_matter() -> None:
    pool = poisoned_pool()
    assert pool.span([9, 2, 3, 0], 5, 12) == slice(9, 16)
    assert isinstance(pool.span([9, 2, 3, 0], 3, 12), torch.Tensor)
    assert pool.span([], 0, 0) == slice(0, 0)


def test_views_stop_at_the_length_asked_for() -> None:
    pool = poisoned_pool()
    keys, values = random_kv(6)
    pool.write(0, pool.slots([2, 3], 0, 6), keys, values)
    assert torch.isfinite(pool.view(0, [2, 3], 6).keys).all()
    assert torch.isnan(pool.view(0, [2, 3], 7).keys).any()


@settings(deadline=None, max_examples=60)
@given(
    pages=st.permutations(range(12)) | st.just(list(range(5, 17))) | st.just([7, 8, 9, 3, 4, 5, 6, 0, 1, 2]),
    start=st.integers(0, 20),
    count=st.integers(0, 20),
)
def test_slots_are_the_places_of_their_pages(pages: list[int], start: int, count: int) -> None:
    stop = start + count
    wanted = [pages[token // 4] * 4 + token % 4 for token in range(start, stop)]
    assert list(slot_list(pages, 4, start, stop)) == slot_ids(pages, 4, start, stop).tolist() == wanted
    assert slot_ids(np.array(pages), 4, start, stop).tolist() == wanted


def test_too_few_pages_are_refused() -> None:
    pool = poisoned_pool()
    asks = [
        lambda: pool.view(0, [1, 2], 9),
        lambda: pool.slots([1, 2], 7, 9),
        lambda: slot_list([1, 2], 4, 7, 9),
        lambda: slot_list([1, 2], 4, 8, 9),
    ]
    for ask in asks:
        with pytest.raises(CapacityError, match="2 pages of 4 do not cover 9"):
            ask()


def test_every_layer_at_once_equals_layer_by_layer() -> None:
    pool, other = poisoned_pool(), poisoned_pool()
    fused = torch.randn(5, 2, 2, 3, 8)
    for slots in (torch.tensor([4, 5, 6, 7, 8]), torch.tensor([40, 3, 11, 30, 2])):
        pool.write_all(slots, fused)
        for layer in range(2):
            other.write(layer, slots, fused[:, layer, 0], fused[:, layer, 1])
        assert torch.equal(pool.store.nan_to_num(-7), other.store.nan_to_num(-7))


def test_sizes() -> None:
    pool = KVPool(SPEC)
    assert pool.page_bytes == 2 * 2 * 4 * 3 * 8 * 4
    assert pool.bytes == 12 * pool.page_bytes == pool.store.nbytes
    assert pool.num_slots == 48


def test_a_pool_that_cannot_fit_is_a_capacity_error() -> None:
    with pytest.raises(CapacityError, match="bytes"):
        KVPool(PoolSpec(64, 1 << 40, 64, 64, 128))


def test_a_pool_made_in_inference_mode_stays_writable() -> None:
    with torch.inference_mode():
        pool = KVPool(SPEC)
    keys, values = random_kv(3)
    pool.write(0, pool.slots([1], 0, 3), keys, values)
    assert torch.equal(pool.view(0, [1], 3).keys, keys)


def test_overlapping_copies_read_before_they_write() -> None:
    pool = KVPool(SPEC)
    before = torch.randn_like(pool.store)
    pool.store.copy_(before)
    pool.copy_slots(torch.tensor([2, 3, 4, 1]), torch.tensor([1, 2, 3, 4]))
    assert torch.equal(pool.store[:, :, :, 1:5], before[:, :, :, [2, 3, 4, 1]])
    assert torch.equal(pool.store[:, :, :, 5:], before[:, :, :, 5:])


@settings(deadline=None, max_examples=40)
@given(
    pages=st.permutations(range(12)),
    rows=st.lists(
        st.tuples(st.integers(0, 9), st.sets(st.integers(0, 9), min_size=1)), min_size=1, max_size=2
    ),
)
def test_commit_makes_the_cache_that_of_the_kept_tokens(
    pages: list[int], rows: list[tuple[int, set[int]]]
) -> None:
    pool = poisoned_pool()
    slots, kept, expected = [], [], []
    for index, (context_len, keep) in enumerate(rows):
        own = pages[6 * index : 6 * index + 6]
        keys, values = random_kv(context_len + 10)
        pool.write(0, pool.slots(own, 0, context_len + 10), keys, values)
        pool.write(1, pool.slots(own, 0, context_len + 10), values, keys)
        slots.append(slot_ids(own, 4, context_len, context_len + 10))
        kept.append(np.array(sorted(keep)))
        order = [*range(context_len), *(context_len + i for i in sorted(keep))]
        expected.append((own, keys[order], values[order]))
    commit_path(pool, slots, kept)
    for own, keys, values in expected:
        assert torch.equal(pool.view(0, own, len(keys)).keys, keys)
        assert torch.equal(pool.view(1, own, len(keys)).keys, values)
        assert torch.equal(pool.view(0, own, len(keys)).values, values)


def test_a_chain_moves_nothing() -> None:
    pool = poisoned_pool()
    assert commit_path(pool, [np.arange(8, 16), np.arange(20, 24)], [[0, 1, 2, 3], [0]]) == 0
    moves = plan_row_moves(np.array([8, 9, 10, 11]), np.array([0, 1, 3]))
    assert moves.src.tolist() == [11] and moves.dst.tolist() == [10]
