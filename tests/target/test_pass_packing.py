"""All rows of a pass packed at once are packed as one by one: tokens, positions, slots, masks and lines."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.nn.kernels.interpreter  # noqa: F401
from wager.errors import CapacityError
from wager.nn.kernels.tables import PassTables, TableLimits, mask_words
from wager.target.inputs import RunRow, pack_numbers, row_starts
from wager.target.pass_packing import pack_tables
from wager.tree import Tree, row_mask

SIZE = 4  # tokens of a page
LIMITS = TableLimits(600, 5, 60, 5, 64, mask_words=2)


def make_row(rng: np.random.Generator, pending: int, nodes: int, context: int, chain: bool) -> RunRow:
    parents = [node - 1 if chain else int(rng.integers(-1, node)) for node in range(nodes)]
    tree = Tree.of(rng.integers(0, 99, nodes), parents)
    pages = rng.permutation(400)[: -(-(context + pending + nodes) // SIZE) + 1].tolist()
    return RunRow(rng.integers(0, 99, pending).tolist(), tree, context, pages)


KIND = st.tuples(st.integers(1, 3), st.sampled_from([0, 0, 1, 5, 70]), st.integers(0, 60), st.booleans())


@settings(deadline=None, max_examples=80)
@given(st.lists(KIND, min_size=1, max_size=5), st.booleans(), st.integers(0, 99))
def test_rows_are_packed_as_one_by_one(
    kinds: list[tuple[int, int, int, bool]], plain: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    kinds = [(1, 0, context, chain) for _, _, context, chain in kinds] if plain else kinds
    rows, tables = [make_row(rng, *kind) for kind in kinds], PassTables(LIMITS, "cpu")
    tables.host.masks[:] = -1
    packed, wanted, starts = pack_tables(rows, tables, SIZE), pack_numbers(rows, SIZE), row_starts(rows)
    num, host = starts[-1], tables.host
    assert packed.starts == starts and packed.longest == max(row.context_len for row in rows)
    assert host.token_ids[:num].tolist() == wanted.token_ids
    assert host.positions[:num].tolist() == wanted.positions
    assert host.slots[:num].tolist() == wanted.slots
    for index, (row, line) in enumerate(zip(rows, np.array(packed.lines), strict=True)):
        start, count, causal, context, page_row = line.tolist()
        pending = len(row.pending)
        assert (start, start + count) == (starts[index], starts[index + 1])
        assert (causal, context) == (count if row.tree.is_chain else pending, row.context_len)
        assert tables.host_pages[page_row, : len(row.pages)].tolist() == row.pages
        if causal < count:
            masks = mask_words(row_mask(pending, row.tree), pending, 2)
            assert np.array_equal(host.masks[start : start + count], masks)


def test_pages_are_sent_only_when_they_change() -> None:
    rows, tables = [RunRow([1], Tree.empty(), 3, [5, 6]) for _ in range(2)], PassTables(LIMITS, "cpu")
    assert pack_tables(rows, tables, SIZE).has_moved
    rows = [row._replace(context_len=4) for row in rows]
    assert not pack_tables(rows, tables, SIZE).has_moved
    assert pack_tables([rows[0], rows[1]._replace(pages=[5, 7])], tables, SIZE).has_moved


@pytest.mark.parametrize("num_rows", [1, 2])
def test_too_few_pages_are_refused(num_rows: int) -> None:
    with pytest.raises(CapacityError):
        pack_tables([RunRow([1], Tree.empty(), 8, [5, 6])] * num_rows, PassTables(LIMITS, "cpu"), SIZE)
