"""Trees that a device builds of a draft nobody has seen, and the way they come back to the host.

Holds the numbers that the kernel reads (`nn/kernels/plant.py`), and the memory in which the host finds the
trees while the pass over them runs. Made by graphs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from wager.nn.kernels.capture import Captured
from wager.nn.kernels.numbers import Numbers
from wager.nn.kernels.plant import FIELDS, TREE_FIELDS, Bed, Ground, plant
from wager.nn.kernels.tables import PassTables
from wager.target.inputs import UnseenRow
from wager.tree import Tree

MAX_PLANTS = 16
"""Trees of one pass."""


class Planting:
    """Room for the trees of one pass."""

    def __init__(self, max_tokens: int, vocab_size: int, device: torch.device | str) -> None:
        self._device, self._vocab_size, is_cuda = device, vocab_size, torch.device(device).type == "cuda"
        self._beds = Numbers(MAX_PLANTS, FIELDS, device)
        self._costs = torch.zeros(0, 0, dtype=torch.float32, device=device)
        self._found = torch.zeros(TREE_FIELDS, max_tokens, dtype=torch.int64, device=device)
        self._host = torch.zeros(TREE_FIELDS, max_tokens, dtype=torch.int64, pin_memory=is_cuda)
        self._view = self._host.numpy()
        self._grown = torch.cuda.Event() if is_cuda else None
        self._firsts: list[int] = []

    def warm(self, top: Tensor, num_depths: int, into: PassTables, captured: Captured) -> None:
        """Capture the building of trees out of these candidates."""
        self._make_room(num_depths * top.shape[2])
        self._beds.host[:] = 0
        self._beds.push()
        for num_rows in range(1, MAX_PLANTS + 1):
            captured.capture(self._key(num_rows, top), self._build(num_rows, top, into))

    def begin(
        self,
        rows: Sequence[UnseenRow],
        starts: Sequence[int],
        top: Tensor,
        into: PassTables,
        captured: Captured,
    ) -> None:
        """Build the trees of these rows, which start at these places of a pass, into its tables."""
        num_rows, ranks = len(rows), top.shape[2]
        self._make_room(max([row.num_depths for row in rows]) * ranks)
        self._firsts = [start + len(row.pending) for start, row in zip(starts, rows, strict=False)]
        self._beds.wait()
        for place, (row, first) in enumerate(zip(rows, self._firsts, strict=True)):
            root = row.context_len + len(row.pending) - 1
            used = 1 if row.is_chain else ranks
            planted = row.num_nodes if row.tree is None else 0
            bed = Bed(row.line, row.num_depths, used, planted, first, root, row.weights)
            self._beds.host[place] = bed.numbers()
        self._beds.push()
        captured.run(self._key(num_rows, top), self._build(num_rows, top, into))
        if self._grown is not None:
            self._grown.record()

    def _make_room(self, cells: int) -> None:
        if self._costs.shape[1] < cells:
            self._costs = torch.zeros(MAX_PLANTS, cells, dtype=torch.float32, device=self._device)

    def _key(self, num_rows: int, top: Tensor) -> Hashable:
        return "plant", num_rows, top.data_ptr(), self._costs.data_ptr()

    def _build(self, num_rows: int, top: Tensor, into: PassTables) -> Callable[[], None]:
        def call() -> None:
            ground = Ground(self._beds.device, self._costs, self._found)
            plant(top, num_rows, ground, into, self._vocab_size)
            self._host.copy_(self._found, non_blocking=True)

        return call

    def trees(self, rows: Sequence[UnseenRow]) -> list[Tree]:
        """The trees of the rows that were begun last; waits until they are there."""
        if self._grown is not None:
            self._grown.synchronize()
        found = []
        for row, first in zip(rows, self._firsts, strict=True):
            if row.tree is not None:
                found.append(row.tree)
                continue
            depth, _, parent, token = self._view[:, first : first + row.num_nodes]
            found.append(Tree(token.copy(), parent.astype(np.int32), depth.astype(np.int32)))
        return found
