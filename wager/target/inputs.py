"""Turn the rows of a step into the tensors of one pass.

A row is its pending tokens followed by its tree's nodes; positions go by depth, slots by pass order. Knows
pages and devices, not requests or policies. Called by runner.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from wager.kvcache.pool import PageIds, slot_ids
from wager.nn.batch import PassBatch, PassRow
from wager.tree import Tree, row_mask


class RunRow(NamedTuple):
    """One row of a pass."""

    pending: Sequence[int]
    tree: Tree
    context_len: int
    pages: PageIds
    judged: bool = True
    """Whether the target's choices behind the last pending token and the nodes are wanted."""


class PassInputs(NamedTuple):
    """The pass, and where each row's tokens and judged positions lie in it."""

    batch: PassBatch
    slots: list[npt.NDArray[np.int64]]
    """Per row, the slots of its tokens in pass order."""
    starts: list[int]
    """Packed index of each row's first token, and the total at the end."""
    judged: list[int]
    """Packed indices of the judged positions, row after row: the last pending token, then the nodes."""


def build_inputs(rows: Sequence[RunRow], page_size: int, device: torch.device | str) -> PassInputs:
    """Pack the rows. Precondition: each row's pages cover its context, pending tokens and nodes."""
    tokens: list[int] = []
    positions: list[int] = []
    slots, pass_rows, starts = [], [], [0]
    judged: list[int] = []
    for row in rows:
        start, root = len(tokens), row.context_len + len(row.pending) - 1
        tokens += row.pending
        positions += range(row.context_len, root + 1)
        if row.tree.num_nodes:
            tokens += row.tree.token_ids.tolist()
            positions += (root + row.tree.depths).tolist()
        stop = len(tokens)
        slots.append(slot_ids(row.pages, page_size, row.context_len, row.context_len + stop - start))
        pass_rows.append(PassRow(start, stop, row.context_len, row.pages, _mask(row, device)))
        starts.append(stop)
        if row.judged:
            judged += range(start + len(row.pending) - 1, stop)
    batch = PassBatch(
        torch.from_numpy(np.array(tokens, np.int64)).to(device),
        torch.from_numpy(np.array(positions, np.int64)).to(device),
        torch.from_numpy(slots[0] if len(slots) == 1 else np.concatenate(slots)).to(device),
        pass_rows,
    )
    return PassInputs(batch, slots, starts, judged)


def _mask(row: RunRow, device: torch.device | str) -> torch.Tensor | None:
    """Who sees whom among the row's own tokens; None where that is causal: no tree, or a chain."""
    if row.tree.num_nodes < 2 or row.tree.is_chain:
        return None
    return torch.from_numpy(row_mask(len(row.pending), row.tree)).to(device)
