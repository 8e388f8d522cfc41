"""The tables of a pass: work items cover everything once and fit, masks come back, padding is marked."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.nn.kernels.interpreter  # noqa: F401
from wager.nn.kernels.tables import (
    PassTables,
    TableLimits,
    TableRow,
    Tiling,
    choose_tiling,
    mask_words,
    num_splits,
    write_masks,
)
from wager.nn.layers.attention import HeadShape
from wager.tree import Tree, ancestor_mask
from wager.tree.visibility import ancestor_words

ROW = st.tuples(st.integers(1, 40), st.integers(0, 3000))


def table_rows(sizes: list[tuple[int, int]]) -> list[TableRow]:
    starts = np.cumsum([0, *(count for count, _ in sizes)])
    return [
        TableRow(int(start), count, count, context, index)
        for index, (start, (count, context)) in enumerate(zip(starts, sizes, strict=False))
    ]


@settings(deadline=None, max_examples=60)
@given(st.lists(ROW, min_size=1, max_size=12), st.integers(1, 8), st.integers(1, 8), st.integers(1, 300))
def test_items_cover_all_once_and_fit(
    sizes: list[tuple[int, int]], group: int, kv_heads: int, num_programs: int
) -> None:
    heads, rows = HeadShape(group * kv_heads, kv_heads, 64), table_rows(sizes)
    num_tokens = sum(count for count, _ in sizes)
    tiling = choose_tiling(heads, len(rows), num_tokens, num_programs)
    tables = PassTables(TableLimits(num_tokens + 2, len(rows), 1, 1, tiling.max_items), "cpu")
    tables.write_rows(rows, tiling)
    splits, first_items = tables.host.rows[:, 4], tables.host.first_items
    assert tiling.tile_tokens * group <= tiling.tile_rows and splits.max() <= tiling.max_splits
    items = [tuple(map(int, item)) for item in tables.host.items if item[0] >= 0]
    wanted = [
        (*tables.host.rows[index], first, split)
        for index, row in enumerate(rows)
        for first in range(0, row.num_tokens, tiling.tile_tokens)
        for split in range(splits[index])
    ]
    assert items == wanted
    for index, row in enumerate(rows):
        for token in range(row.num_tokens):
            *fields, first, split = items[first_items[row.start + token]]
            assert tuple(fields) == tuple(tables.host.rows[index])
            assert split == 0 and first <= token < first + tiling.tile_tokens
    assert first_items[num_tokens:].tolist() == [-1, -1]


def test_splits_end_together_rather_than_begin_another_round() -> None:
    tiling = Tiling(16, 4, 33, 100, 64)
    assert num_splits(lines([(4, 1024)] * 16), tiling).tolist() == [2] * 16
    assert num_splits(lines([(1, 16_384)]), tiling).tolist() == [33]
    assert num_splits(lines([(1, 1000)] * 40), tiling).tolist() == [1] * 40
    mixed = num_splits(lines([(1, 16_000)] + [(1, 1000)] * 31), tiling)
    assert mixed[0] > 8 and mixed[1:].tolist() == [1] * 31


def lines(sizes: list[tuple[int, int]]) -> np.ndarray:
    return np.array(table_rows(sizes), np.int64)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 90), st.integers(0, 5), st.data())
def test_masks_come_back(num_nodes: int, num_causal: int, data: st.DataObject) -> None:
    size, words = num_causal + num_nodes, 2
    seed = data.draw(st.integers(0, 1000))
    mask = np.random.default_rng(seed).random((size, size)) < 0.5
    packed = mask_words(mask, num_causal, words)
    for node in range(num_nodes):
        bits = packed[:, node // 64] >> (node % 64) & 1
        assert np.array_equal(bits.astype(bool), mask[:, num_causal + node])


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 128), st.integers(0, 1000))
def test_masks_as_numbers_are_those_of_the_tree(num_nodes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    tree = Tree.of(np.zeros(num_nodes), [int(random.integers(-1, node)) for node in range(num_nodes)])
    lines = np.full((num_nodes, 2), -1, np.int64)
    write_masks(ancestor_words(tree), lines)
    assert np.array_equal(lines, mask_words(ancestor_mask(tree)[1:, 1:], 0, 2))


def test_more_nodes_than_bits_are_refused() -> None:
    with pytest.raises(AssertionError):
        mask_words(np.ones((66, 66), np.bool_), 1)


def test_the_device_gets_what_the_host_laid(device: torch.device) -> None:
    heads = HeadShape(8, 2, 64)
    tiling = choose_tiling(heads, 3, 20, num_programs=16)
    tables = PassTables(TableLimits(20, 3, 50, 4, tiling.max_items, mask_words=2), device)
    rows = table_rows([(1, 900), (12, 5)])
    tables.write_rows(rows, tiling)
    tables.host.positions[:13] = np.arange(13)
    tables.host.masks[4] = -1, 5
    tables.host_pages[3, :2] = 7, 8
    tables.push()
    assert tables.items.tolist() == tables.host.items.tolist()
    assert tables.items[0].tolist()[:4] == [0, 1, 1, 900] and tables.items[-1].tolist() == [-1] * 8
    assert tables.first_items[:1].tolist() == [0] and tables.first_items[13:].tolist() == [-1] * 7
    assert tables.rows[:2, [0, 1, 2, 3, 5]].tolist() == [[0, 1, 1, 900, 0], [1, 12, 12, 5, 1]]
    assert not tables.rows[2].any()
    assert tables.positions[:14].tolist() == [*range(13), 0]
    assert bool((tables.slots == -1).all())
    assert tables.masks[4].tolist() == [-1, 5] and tables.pages[3, :2].tolist() == [7, 8]


def test_a_pass_beyond_its_tables_is_refused(device: torch.device) -> None:
    tiling = choose_tiling(HeadShape(4, 1, 64), 1, 4, num_programs=4)
    tables = PassTables(TableLimits(4, 1, 10, 1, tiling.max_items), device)
    with pytest.raises(AssertionError):
        tables.write_rows(table_rows([(1, 3), (1, 3)]), tiling)


@settings(deadline=None, max_examples=40)
@given(st.lists(ROW, min_size=2, max_size=6))
def test_one_row_after_another_is_laid_as_by_itself(sizes: list[tuple[int, int]]) -> None:
    """A pass of one row writes only what has changed since the last: nothing of that may be left."""
    most = max(count for count, _ in sizes)
    tiling = choose_tiling(HeadShape(8, 2, 64), 2, 2 * most, 64)
    limits = TableLimits(2 * most, 2, 1, 1, tiling.max_items)
    used, grown = PassTables(limits, "cpu"), [(count, context + 1) for count, context in sizes]
    for size in [both for pair in zip(sizes, grown, strict=True) for both in pair]:
        (row,), fresh = table_rows([size]), PassTables(limits, "cpu")
        used.write_rows([row], tiling)
        # Beside a row without tokens it takes the general way.
        fresh.write_rows([row, TableRow(row.num_tokens, 0, 0, 0, 0)], tiling)
        assert np.array_equal(used.host.rows[0], fresh.host.rows[0])
        assert np.array_equal(used.host.items, fresh.host.items)
        assert np.array_equal(used.host.first_items, fresh.host.first_items)


@settings(deadline=None, max_examples=40)
@given(st.lists(ROW, min_size=2, max_size=6), st.lists(st.integers(0, 400), min_size=1, max_size=4))
def test_rows_that_grow_are_laid_as_for_the_first_time(
    sizes: list[tuple[int, int]], grown: list[int]
) -> None:
    """A pass like the one before writes only its contexts; one that differs, all of it."""
    num_tokens = sum(count for count, _ in sizes)
    tiling = choose_tiling(HeadShape(8, 2, 64), len(sizes), num_tokens, 64)
    limits = TableLimits(num_tokens, len(sizes), 1, 1, tiling.max_items)
    used = PassTables(limits, "cpu")
    for step, more in enumerate(grown):
        longer = [(count, context + more) for count, context in sizes]
        if step == 2:
            used.write_rows(table_rows(sizes[:1]), tiling)
        for rows in (table_rows(sizes), table_rows(longer), table_rows(longer[:-1])):
            fresh = PassTables(limits, "cpu")
            used.write_rows(np.array(rows), tiling)
            fresh.write_rows(rows, tiling)
            assert np.array_equal(used.host.rows[: len(rows)], fresh.host.rows[: len(rows)])
            assert np.array_equal(used.host.items, fresh.host.items)
            assert np.array_equal(used.host.first_items, fresh.host.first_items)


def test_slots_follow_the_pages_that_are_laid() -> None:
    tables = PassTables(TableLimits(4, 2, 5, 2, 8), "cpu")
    assert (
        tables.write_pages(1, [7, 3, 9])
        and not tables.write_pages(1, [7, 3])
        and tables.write_pages(1, [7, 4])
    )
    slots = tables.slots_at(np.array([1, 1, 1]), np.array([0, 15, 17]), 16)
    assert slots.tolist() == [112, 127, 65]
