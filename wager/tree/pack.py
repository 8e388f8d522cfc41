"""Lay the rows of one step end to end for a single target pass.

A row is its pending tokens followed by the nodes of its tree; prompt chunks, plain decoding and speculation
differ only in the numbers. It knows nothing of pages, devices or padding. The engine packs, the target reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wager.errors import InputError
from wager.tree.tree import Int64Array, Tree
from wager.tree.visibility import row_mask


class RowInput(NamedTuple):
    """One row of a step: `context_len` tokens are cached, `pending` known but not cached, `tree` guessed."""

    pending: Sequence[int]
    tree: Tree
    context_len: int


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """All rows of a step in flat arrays; row r owns the tokens row_starts[r] .. row_starts[r + 1]."""

    token_ids: Int64Array  # [N]
    positions: Int64Array  # [N] absolute
    rows: Int64Array  # [N] the row of each token
    row_starts: Int64Array  # [rows + 1]
    num_pending: Int64Array  # [rows]
    root_index: Int64Array  # [rows] packed index of the last pending token
    trees: tuple[Tree, ...]

    @property
    def num_rows(self) -> int:
        return len(self.trees)

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.shape[0])

    def judged(self, row: int) -> slice:
        """The row's root and nodes: where the target's choices stand, in the order `accept` expects."""
        return slice(int(self.root_index[row]), int(self.row_starts[row + 1]))

    def mask(self, row: int) -> npt.NDArray[np.bool_]:
        """Who sees whom among the row's own tokens."""
        return row_mask(int(self.num_pending[row]), self.trees[row])


def pack(rows: Sequence[RowInput]) -> Packed:
    """Pack rows in the order given. Raises InputError on a row without pending or with negative context."""
    for index, row in enumerate(rows):
        if len(row.pending) == 0 or row.context_len < 0:
            raise InputError("needs a pending token and a context_len of at least 0", field=f"row {index}")
    num_pending = np.array([len(row.pending) for row in rows], np.int64)
    lens = num_pending + np.array([row.tree.num_nodes for row in rows], np.int64)
    row_starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lens, out=row_starts[1:])
    return Packed(
        token_ids=_join([part for row in rows for part in (row.pending, row.tree.token_ids)]),
        positions=_join([part for row in rows for part in _row_positions(row)]),
        rows=np.repeat(np.arange(len(rows)), lens),
        row_starts=row_starts,
        num_pending=num_pending,
        root_index=row_starts[:-1] + num_pending - 1,
        trees=tuple(row.tree for row in rows),
    )


def _row_positions(row: RowInput) -> tuple[Int64Array, Int64Array]:
    end = row.context_len + len(row.pending)
    return np.arange(row.context_len, end), end - 1 + row.tree.depths.astype(np.int64)


def _join(parts: Sequence[npt.ArrayLike]) -> Int64Array:
    whole = [np.asarray(part, np.int64) for part in parts]
    return np.concatenate(whole) if whole else np.empty(0, np.int64)
