"""Builds trees on the device from a draft that the host has not read, and brings them back to the host.

Holds the numbers that the kernel reads (`nn/kernels/tree_build.py`) and the memory in which the host finds
the trees while their pass runs. Made by graphs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from wager.nn.kernels.capture import GraphCache
from wager.nn.kernels.staging import StagingBuffer
from wager.nn.kernels.tables import PassTables
from wager.nn.kernels.tree_build import NODE_FIELDS, REQUEST_FIELDS, TreeBuffers, TreeRequest, build_trees
from wager.target.inputs import BlindRow
from wager.tree import Tree

MAX_TREES = 16
"""Most trees of one pass."""


class TreeBuilder:
    """Memory for the trees of one pass."""

    def __init__(self, max_tokens: int, vocab_size: int, device: torch.device | str) -> None:
        self._device, self._vocab_size, is_cuda = device, vocab_size, torch.device(device).type == "cuda"
        self._requests = StagingBuffer(MAX_TREES, REQUEST_FIELDS, device)
        self._costs = torch.zeros(0, 0, dtype=torch.float32, device=device)
        self._found = torch.zeros(NODE_FIELDS, max_tokens, dtype=torch.int64, device=device)
        self._host = torch.zeros(NODE_FIELDS, max_tokens, dtype=torch.int64, pin_memory=is_cuda)
        self._view = self._host.numpy()
        self._built = torch.cuda.Event() if is_cuda else None
        self._firsts: list[int] = []

    def warm(self, top: Tensor, num_depths: int, into: PassTables, captured: GraphCache) -> None:
        """Capture the building of trees from these candidates, for every number of rows."""
        self._make_room(num_depths * top.shape[2])
        self._requests.host[:] = 0
        self._requests.push()
        for num_rows in range(1, MAX_TREES + 1):
            captured.capture(self._key(num_rows, top), self._build(num_rows, top, into))

    def launch(
        self,
        rows: Sequence[BlindRow],
        starts: Sequence[int],
        top: Tensor,
        into: PassTables,
        captured: GraphCache,
    ) -> None:
        """Build the trees of these rows, which start at these places of a pass, into its tables."""
        num_rows, ranks = len(rows), top.shape[2]
        # Only trees that are built here need room; a chain from the host may be deeper than any draft.
        self._make_room(max([row.num_depths for row in rows if row.tree is None], default=0) * ranks)
        self._firsts = [start + len(row.pending) for start, row in zip(starts, rows, strict=False)]
        self._requests.wait()
        for place, (row, first) in enumerate(zip(rows, self._firsts, strict=True)):
            root = row.context_len + len(row.pending) - 1
            used = 1 if row.is_chain else ranks
            num_built = row.num_nodes if row.tree is None else 0
            request = TreeRequest(row.line, row.num_depths, used, num_built, first, root, row.weights)
            self._requests.host[place] = request.numbers()
        self._requests.push()
        captured.run(self._key(num_rows, top), self._build(num_rows, top, into))
        if self._built is not None:
            self._built.record()

    def _make_room(self, cells: int) -> None:
        if self._costs.shape[1] < cells:
            self._costs = torch.zeros(MAX_TREES, cells, dtype=torch.float32, device=self._device)

    def _key(self, num_rows: int, top: Tensor) -> Hashable:
        return "trees", num_rows, top.data_ptr(), self._costs.data_ptr()

    def _build(self, num_rows: int, top: Tensor, into: PassTables) -> Callable[[], None]:
        def call() -> None:
            buffers = TreeBuffers(self._requests.device, self._costs, self._found)
            build_trees(top, num_rows, buffers, into, self._vocab_size)
            self._host.copy_(self._found, non_blocking=True)

        return call

    def trees(self, rows: Sequence[BlindRow]) -> list[Tree]:
        """The trees of the rows that were launched last; waits until they are built."""
        if self._built is not None:
            self._built.synchronize()
        found = []
        for row, first in zip(rows, self._firsts, strict=True):
            if row.tree is not None:
                found.append(row.tree)
                continue
            depth, _, parent, token = self._view[:, first : first + row.num_nodes]
            found.append(Tree(token.copy(), parent.astype(np.int32), depth.astype(np.int32)))
        return found
