"""Turn the rows of a step into the tensors of one pass.

A row is its pending tokens followed by its tree's nodes; positions go by depth, slots by pass order. Passes
of one length share their host memory and the tensors over it: making tensors costs more than filling them.
Knows pages and devices, not requests or policies. Called by runner.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.kvcache.pool import PageIds, slot_list
from wager.nn.batch import PassBatch, PassRow
from wager.tree import Tree, row_mask

_SHORT = 64
"""Longest pass, in tokens, whose host memory is kept for the next pass of its length."""


class RunRow(NamedTuple):
    """One row of a pass."""

    pending: Sequence[int]
    tree: Tree
    context_len: int
    pages: PageIds
    judged: bool = True
    """Whether the target's choices behind the last pending token and the nodes are wanted."""
    wants_features: bool = True
    """Whether a drafter will read the features of its tokens. A pass in which no row wants any collects none,
    unless it was captured."""


class BlindRow(NamedTuple):
    """One row of a pass whose trees the device builds from a draft that the host has not read."""

    pending: Sequence[int]
    context_len: int
    pages: PageIds
    num_nodes: int
    line: int
    """The line of its first candidates in the draft."""
    num_depths: int
    """Number of depths for which the draft has candidates."""
    weights: tuple[float, float, float] | None = None
    """The calibration weights for its candidates (`Blind`)."""
    is_chain: bool = False
    tree: Tree | None = None
    """A chain that the host knows already; None where the device builds the tree."""

    @property
    def num_tokens(self) -> int:
        return len(self.pending) + self.num_nodes

    @property
    def placeholder(self) -> Tree:
        """Its tree if that is known, else a tree with as many nodes."""
        return _placeholder(self.num_nodes, self.is_chain) if self.tree is None else self.tree


@lru_cache(maxsize=512)
def _placeholder(num_nodes: int, is_chain: bool) -> Tree:
    nodes = np.zeros(num_nodes, np.int32)
    tree = Tree(nodes.astype(np.int64), nodes - 1, nodes + 1)
    if is_chain:
        tree = Tree.chain(tree.token_ids)
    for shared in (tree.token_ids, tree.parents, tree.depths):
        shared.setflags(write=False)
    return tree


class PassInputs(NamedTuple):
    """The pass, and where each row's tokens and judged positions lie in it. Valid until the next pack.

    `batch` is None where the pass has its tokens from tables on the device.
    """

    batch: PassBatch | None
    slots: npt.NDArray[np.int64]
    """The slots of all tokens in pass order."""
    starts: list[int]
    """Packed index of each row's first token, and the total at the end."""
    judged: list[int]
    """Packed indices of the judged positions, row after row: the last pending token, then the nodes."""

    @property
    def num_tokens(self) -> int:
        return self.starts[-1]

    @property
    def row_slots(self) -> list[npt.NDArray[np.int64]]:
        """Per row, the slots of its tokens in pass order."""
        return np.split(self.slots, self.starts[1:-1])


def row_starts(rows: Sequence[RunRow]) -> list[int]:
    """Packed index of each row's first token, and the total at the end."""
    starts, stop = [0], 0
    for row in rows:
        stop += len(row.pending) + row.tree.num_nodes
        starts.append(stop)
    return starts


def judged_places(rows: Sequence[RunRow], starts: Sequence[int]) -> list[int]:
    """Packed indices of the last pending token and the nodes of every judged row."""
    if starts[-1] == len(rows):
        return [index for index, row in enumerate(rows) if row.judged]
    judged: list[int] = []
    for row, stop in zip(rows, starts[1:], strict=True):
        if row.judged:
            judged += range(stop - row.tree.num_nodes - 1, stop)
    return judged


class PackedNumbers(NamedTuple):
    """The tokens of all rows, one row behind the other, as plain numbers."""

    token_ids: list[int]
    positions: list[int]
    slots: list[int]


def pack_numbers(rows: Sequence[RunRow], page_size: int) -> PackedNumbers:
    """Precondition: each row's pages cover its context, pending tokens and nodes."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for pending, tree, context_len, pages, _, _ in rows:
        root = context_len + len(pending)
        tokens += pending
        positions += range(context_len, root)
        num_nodes = tree.num_nodes
        if num_nodes:
            tokens += tree.token_ids.tolist()
            positions += (root - 1 + tree.depths).tolist()
        slots += slot_list(pages, page_size, context_len, root + num_nodes)
    return PackedNumbers(tokens, positions, slots)


class _Space(NamedTuple):
    """Host memory for a pass of one length, and the batch that reads it."""

    host: npt.NDArray[np.int64]
    """[3, tokens]: token ids, positions, slots."""
    slots: npt.NDArray[np.int64]
    rows: list[PassRow]
    batch: PassBatch


class Packer:
    """Packs rows for a pool's page size and a device."""

    def __init__(self, page_size: int, device: torch.device | str) -> None:
        self.page_size, self.device = page_size, torch.device(device)
        self._is_host = self.device.type == "cpu"
        self._spaces: dict[int, _Space] = {}
        self._latest = self._space(1)

    def pack(self, rows: Sequence[RunRow]) -> PassInputs:
        """Pack the rows. Precondition: each row's pages cover its context, pending tokens and nodes."""
        numbers, starts = pack_numbers(rows, self.page_size), row_starts(rows)
        pass_rows = [
            PassRow(start, stop, row.context_len, row.pages, self._mask(row))
            for row, start, stop in zip(rows, starts, starts[1:], strict=False)
        ]
        space = self._space(starts[-1])
        space.host[:] = numbers
        self._latest.rows.clear()  # else the memory of a rare length would keep rows that ended long ago
        space.rows[:] = pass_rows
        self._latest = space
        return PassInputs(self._on_device(space.batch), space.slots, starts, judged_places(rows, starts))

    def _space(self, num_tokens: int) -> _Space:
        space = self._spaces.get(num_tokens)
        if space is None:
            host, rows = np.empty((3, num_tokens), np.int64), list[PassRow]()
            token_ids, positions, slots = (torch.from_numpy(line) for line in host)
            space = _Space(host, host[2], rows, PassBatch(token_ids, positions, slots, rows))
            if num_tokens <= _SHORT:
                self._spaces[num_tokens] = space
        return space

    def _on_device(self, batch: PassBatch) -> PassBatch:
        if self._is_host:
            return batch
        token_ids, positions, slots = batch.token_ids, batch.positions, batch.slots
        device = self.device
        return PassBatch(token_ids.to(device), positions.to(device), slots.to(device), batch.rows)

    def _mask(self, row: RunRow) -> Tensor | None:
        """Who sees whom among the row's own tokens; None where that is causal: a chain."""
        if row.tree.num_nodes < 2 or row.tree.is_chain:
            return None
        return torch.from_numpy(row_mask(len(row.pending), row.tree)).to(self.device)
