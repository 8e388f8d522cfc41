"""Packing: every row's tokens, positions and root are found again where the record says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tree.strategies import trees
from wager.errors import InputError
from wager.tree import ROOT, RowInput, Tree, pack, positions, row_mask

rows_of = st.builds(
    RowInput, st.lists(st.integers(0, 99), min_size=1, max_size=5), trees(max_nodes=6), st.integers(0, 50)
)


@settings(deadline=None, max_examples=80)
@given(st.lists(rows_of, max_size=5))
def test_rows_are_found_again(rows: list[RowInput]) -> None:
    packed = pack(rows)
    assert packed.num_rows == len(rows)
    assert packed.num_tokens == sum(len(row.pending) + row.tree.num_nodes for row in rows)
    for index, row in enumerate(rows):
        own = slice(packed.row_starts[index], packed.row_starts[index + 1])
        last = row.context_len + len(row.pending) - 1
        assert packed.token_ids[own].tolist() == [*row.pending, *row.tree.token_ids]
        assert packed.positions[own].tolist() == [
            *range(row.context_len, last),
            *positions(row.tree, last),
        ]
        assert set(packed.rows[own].tolist()) == {index}
        assert packed.token_ids[packed.root_index[index]] == row.pending[-1]
        assert packed.positions[packed.judged(index)].tolist() == positions(row.tree, last).tolist()
        assert np.array_equal(packed.mask(index), row_mask(len(row.pending), row.tree))


def test_three_kinds_of_row_by_hand() -> None:
    branches = Tree.of([7, 8, 9], [ROOT, ROOT, 0])
    packed = pack(
        [RowInput([1, 2, 3], Tree.empty(), 0), RowInput([4], Tree.empty(), 10), RowInput([5], branches, 20)]
    )
    assert packed.token_ids.tolist() == [1, 2, 3, 4, 5, 7, 8, 9]
    assert packed.positions.tolist() == [0, 1, 2, 10, 20, 21, 21, 22]
    assert packed.rows.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert packed.row_starts.tolist() == [0, 3, 4, 8]
    assert packed.root_index.tolist() == [2, 3, 4]
    assert packed.num_pending.tolist() == [3, 1, 1]


@pytest.mark.parametrize("row", [RowInput([], Tree.empty(), 3), RowInput([1], Tree.empty(), -1)])
def test_impossible_rows_are_refused(row: RowInput) -> None:
    with pytest.raises(InputError, match="row 1"):
        pack([RowInput([1], Tree.empty(), 0), row])


def test_packed_columns_are_int64() -> None:
    packed = pack([RowInput([1], Tree.chain([2]), 0)])
    columns = (packed.token_ids, packed.positions, packed.rows, packed.row_starts, packed.root_index)
    assert {column.dtype for column in columns} == {np.dtype(np.int64)}
