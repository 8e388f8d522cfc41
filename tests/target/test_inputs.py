"""What goes into a pass: any rows, packed again and again by one packer, lie where the definition says."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.errors import CapacityError
from wager.kvcache.pool import slot_ids
from wager.nn.batch import PassBatch
from wager.target.inputs import Packer, PassInputs, RunRow
from wager.target.runner import RunResult
from wager.tree import Tree, row_mask

SIZE = 4


@st.composite
def rows_of_a_pass(draw: st.DrawFn) -> list[RunRow]:
    """One to three rows on pages of their own: prompt chunks, plain rows, chains and trees."""
    rows, pages = [], draw(st.permutations(range(60)))
    for number in range(draw(st.integers(1, 3))):
        pending = draw(st.lists(st.integers(0, 99), min_size=1, max_size=6))
        parents: list[int] = []
        for node in range(draw(st.sampled_from([0, 0, 1, 3, 5]))):
            parents.append(draw(st.integers(-1, node - 1)))
        tree = Tree.of(draw(st.permutations(range(len(parents)))), parents)
        own = pages[20 * number : 20 * number + 20]
        rows.append(RunRow(pending, tree, draw(st.integers(0, 40)), own, draw(st.booleans())))
    return rows


@settings(deadline=None, max_examples=60)
@given(st.lists(rows_of_a_pass(), min_size=1, max_size=4))
def test_every_pass_is_laid_out_by_its_own_rows(passes: list[list[RunRow]]) -> None:
    packer = Packer(SIZE, "cpu")
    for rows in passes:
        check_layout(rows, packer.pack(rows))


def check_layout(rows: list[RunRow], inputs: PassInputs) -> None:
    batch, judged = inputs.batch, []
    assert inputs.num_tokens == batch.num_tokens == sum(len(r.pending) + r.tree.num_nodes for r in rows)
    for row, place, slots, start in zip(rows, batch.rows, inputs.row_slots, inputs.starts[:-1], strict=True):
        num_pending, stop = len(row.pending), start + len(row.pending) + row.tree.num_nodes
        root = row.context_len + num_pending - 1
        assert (place.start, place.stop, place.context_len) == (start, stop, row.context_len)
        assert list(place.pages) == list(row.pages)
        assert batch.token_ids[start:stop].tolist() == [*row.pending, *row.tree.token_ids]
        positions = [*range(row.context_len, root + 1), *(root + row.tree.depths)]
        assert batch.positions[start:stop].tolist() == positions
        expected = slot_ids(row.pages, SIZE, row.context_len, row.context_len + stop - start)
        assert batch.slots[start:stop].tolist() == slots.tolist() == expected.tolist()
        check_mask(row, place.mask)
        if row.judged:
            judged += range(start + num_pending - 1, stop)
    assert inputs.judged == judged


def check_mask(row: RunRow, mask: torch.Tensor | None) -> None:
    seen = row_mask(len(row.pending), row.tree)
    if mask is None:
        assert np.array_equal(seen, np.tril(np.ones_like(seen)))
    else:
        assert np.array_equal(mask.numpy(), seen)


def test_passes_of_one_length_share_their_memory_and_long_ones_do_not() -> None:
    packer = Packer(SIZE, "cpu")
    first = packer.pack([RunRow([1], Tree.empty(), 0, [0])])
    second = packer.pack([RunRow([2], Tree.empty(), 1, [0])])
    assert first.batch.token_ids.data_ptr() == second.batch.token_ids.data_ptr()
    chunk = RunRow(list(range(300)), Tree.empty(), 0, list(range(75)))
    long, longer = packer.pack([chunk]), packer.pack([chunk._replace(pending=list(range(300, 600)))])
    assert (long.batch.token_ids[0], longer.batch.token_ids[0]) == (0, 300)


def test_pages_that_do_not_cover_a_row_are_refused() -> None:
    with pytest.raises(CapacityError, match="2 pages of 4 do not cover 9"):
        Packer(SIZE, "cpu").pack([RunRow([7], Tree.empty(), 8, [3, 5])])


@pytest.mark.parametrize("kept", [range(2), range(1), [0, 2], [0, 1, 3]])
def test_features_are_those_of_the_kept_tokens(kept: list[int]) -> None:
    features = torch.arange(12.0).view(6, 2)
    ids = torch.zeros(6, dtype=torch.int64)
    inputs = PassInputs(PassBatch(ids, ids, ids, []), ids.numpy(), [0, 2, 6], [])
    result = RunResult(None, features, inputs)
    found = result.row_features(1, kept)
    assert found is not None and torch.equal(found, features[[2 + index for index in kept]])
    assert RunResult(None, None, inputs).row_features(1, kept) is None
