"""A block drafter's passes on a CUDA device: context in, candidates out, by captured graphs.

They compute what block.py computes with plain torch, over tensors at fixed addresses. One graph per number of
tokens turns features into context; one graph per number of rows turns blocks into the best candidates of
every depth, with scaling, noise and ranking. `launch` returns at once and `result` waits, so a draft can be
in flight while the host does other work. Blocks always have their whole length, because fewer masks take no
less time on a device. Made by block.py; does not know which guesses are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.draft.base import InFlightPass, TargetInterface
from wager.draft.block_jobs import DeviceJob
from wager.draft.feature_pieces import Piece, gather, split_pieces, token_table
from wager.draft.scores import HostTop
from wager.kvcache.pool import KVPool
from wager.nn.kernels.accept_path import (
    KEPT_SIZES,
    MAX_KEPT,
    MAX_NODES,
    VERIFIED_ROW_FIELDS,
    BlockShape,
    VerifiedPass,
    VerifiedRow,
    accept_paths,
)
from wager.nn.kernels.attention import AttentionPlan
from wager.nn.kernels.capture import GraphCache
from wager.nn.kernels.device import DeviceInfo, read_device_info
from wager.nn.kernels.norm import Norm
from wager.nn.kernels.passes import ContextIngest, KernelStack, PassViews, StackSpec, kernel_linear
from wager.nn.kernels.product_plan import ProductRole
from wager.nn.kernels.qkv import HeadTransform, TokenSlots, rotation_table
from wager.nn.kernels.quant_layers import linear_of
from wager.nn.kernels.split_plan import PassSize, plan_pass
from wager.nn.kernels.staging import StagingBuffer, signed_seed
from wager.nn.kernels.tables import PassTables, TableLimits
from wager.nn.kernels.top_logprobs import RowSampling, top_logprobs
from wager.nn.models.dflash import DFlash, kernel_context, key_norms

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of rows for which a draft is captured."""
MAX_ROWS = ROW_BUCKETS[-1]
"""The most rows of one draft."""
INGEST_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Numbers of tokens for which reading features in is captured."""
GATHER_BUCKETS = tuple(bucket for bucket in INGEST_BUCKETS if bucket >= KEPT_SIZES[0])
"""Numbers of tokens for which reading in the target's latest features is captured."""
WAITING_BYTES = 1 << 30
"""Bytes of features that may wait for their requests to draft, without a GPU."""
WAITING_SHARE = 0.02
"""The share of a GPU's memory that waiting features may take."""
MAX_IN_FLIGHT_NODES = 1024
"""The most nodes, in all rows together, of a verify pass that a draft follows on the device."""


class BlockKernels:
    """The passes of one block drafter."""

    max_rows = MAX_ROWS

    def __init__(
        self,
        net: DFlash,
        target: TargetInterface,
        pool: KVPool,
        ranks: int,
        max_context: int,
        *,
        capture: bool = True,
    ) -> None:
        assert net.weights is not None
        self.net, self.target, self.pool, self.ranks = net, target, pool, ranks
        spec, weights, device = net.spec, net.weights, torch.device(net.device)
        reach = max_context + 2 * spec.block_size
        table, device_info = rotation_table(spec.rope, reach, net.dtype, device), read_device_info(device)
        self._stack = KernelStack(
            weights.layers, weights.norm, StackSpec(spec.heads, spec.eps, spec.windows, table), device_info
        )
        norms = key_norms(spec, weights.layers).flatten(0, 1).contiguous()
        self._entry = ContextIngest(
            kernel_linear(linear_of(weights.fc), ProductRole.SUMMED, device_info),
            Norm(weights.hidden_norm, spec.eps),
            kernel_linear(kernel_context(spec, weights), ProductRole.SUMMED, device_info),
            HeadTransform(spec.heads, norms, spec.eps, table),
            device_info.launch,
        )
        self.graphs = GraphCache(device, enabled=capture)
        self._is_cuda = device.type == "cuda"
        self._cuts = {rows: self._cut(rows, device_info) for rows in ROW_BUCKETS}
        items = max(plan.tiling.max_items for plan in self._cuts.values())
        size, pages = MAX_ROWS * spec.block_size, -(-reach // pool.spec.page_size)
        words = -(-spec.block_size // 64)
        self._tables = PassTables(TableLimits(size, MAX_ROWS, pages, MAX_ROWS, items, words), device)
        self._tables.host.masks[:] = _ones(spec.block_size, words)
        self._sampling = StagingBuffer(2, size, device)
        """The seed and the temperature of every token."""
        self._sampling_sent: list[tuple[int, float]] = []
        """The seed and the temperature of each row that are on the device now."""
        self._steps = np.arange(spec.block_size)
        self._places = StagingBuffer(3, INGEST_BUCKETS[-1], device)
        self.max_waiting = _room_for_waiting(device) // (spec.feature_size * net.dtype.itemsize)
        """The number of tokens whose features may wait, of all requests together."""
        self._in_flight = StagingBuffer(2, MAX_IN_FLIGHT_NODES, device)
        """The rows and trees of a verify pass in flight."""
        self.target_features: Tensor | None = None
        """Where the target's passes leave their features; set before `warm`."""
        self._features = torch.zeros(INGEST_BUCKETS[-1], spec.feature_size, dtype=net.dtype, device=device)
        self.top = torch.zeros(size, 2, ranks, dtype=torch.float32, device=device)
        """Log-probabilities and tokens of the candidates behind every token of the latest draft."""
        self._host_top = torch.zeros(size, 2, ranks, dtype=torch.float32, pin_memory=self._is_cuda)
        self._host_view = self._host_top.numpy()
        self._count = 0
        self._done = torch.cuda.Event() if self._is_cuda else None

    def _cut(self, rows: int, device_info: DeviceInfo) -> AttentionPlan:
        spec, size = self.net.spec, PassSize(rows, rows * self.net.spec.block_size)
        return plan_pass(spec.heads, size, self.pool.spec, device_info, self.net.device)

    @torch.inference_mode()
    def warm(self) -> int:
        """Captures and compiles every pass; returns the number of graphs."""
        if self.graphs.enabled:
            self._tables.clear()
            self._tables.push()
            self._places.host[1] = -1
            self._places.push()
            for rows in reversed(ROW_BUCKETS):
                self.graphs.capture(("draft", rows), self._draft_pass(rows))
            for tokens in reversed(INGEST_BUCKETS):
                self.graphs.capture(("ingest", tokens), self._ingest_pass(tokens))
            if self.target_features is not None:
                for tokens in reversed(GATHER_BUCKETS):
                    self.graphs.capture(("gather", tokens), self._gather_pass(self.target_features, tokens))
        if self._is_cuda:
            for kept in KEPT_SIZES:  # compiles it
                self._advance(1, kept, torch.zeros_like(self._in_flight.device[0]), self._tables.token_ids)
        return len(self.graphs)

    # -- context

    def ingest(self, pieces: Sequence[Piece]) -> None:
        """Turns features into context at their slots, as many tokens at once as a graph takes."""
        # Pieces of one tensor come together, so that one call gathers them.
        ordered = sorted(pieces, key=lambda piece: id(piece.features))
        for portion in split_pieces(ordered, INGEST_BUCKETS[-1]):
            table = token_table(portion)
            count = table.shape[1]
            self._places.wait()
            host = self._places.host
            host[:, :count] = table
            host[1, count:] = -1
            self._places.push()
            gather(portion, self._places.device[2], self._features)
            size = next(bucket for bucket in INGEST_BUCKETS if bucket >= count)
            self.graphs.run(("ingest", size), self._ingest_pass(size))

    def _ingest_pass(self, count: int) -> Callable[[], None]:
        def call() -> None:
            places = self._places.device
            self._entry.run(
                self._features[:count], TokenSlots(places[0, :count], places[1, :count]), self.pool
            )

        return call

    # -- guesses

    def fits(self, jobs: Sequence[DeviceJob]) -> bool:
        """Returns whether every block has room behind its context and one pass can take all rows."""
        size, length = self.pool.spec.page_size, self.net.spec.block_size
        return len(jobs) <= MAX_ROWS and all(
            len(row.pages) * size >= context_len + length for row, context_len, _ in jobs
        )

    def launch(self, jobs: Sequence[DeviceJob]) -> None:
        """Launches a draft. Precondition: `fits`, and the contexts are read in."""
        if self._done is not None:
            self._done.synchronize()  # until then the previous draft uses the tables and the results
        rows = next(bucket for bucket in ROW_BUCKETS if bucket >= len(jobs))
        self._fill(jobs, rows)
        self._run_draft(rows, len(jobs))

    def _run_draft(self, rows: int, num_jobs: int) -> None:
        self.graphs.run(("draft", rows), self._draft_pass(rows))
        self._count = count = num_jobs * self.net.spec.block_size
        self._host_top[:count].copy_(self.top[:count], non_blocking=True)
        if self._done is not None:
            self._done.record()

    def follow(self, verified: InFlightPass) -> Tensor | None:
        """Launches a draft behind a verify pass in flight; returns None if it is too large.

        Reads in the features of the accepted tokens of each row, drafts behind them, and returns which tokens
        these are, on the device. Precondition: all features before the pass are read in.
        """
        asked, source = verified.rows, self.target_features
        most = max([row.num_pending + max_depth for row, _, max_depth, _, _ in asked])
        if source is None or most > MAX_KEPT or len(asked) > MAX_ROWS:
            return None
        rows = next(bucket for bucket in ROW_BUCKETS if bucket >= len(asked))
        kept = next(size for size in KEPT_SIZES if size >= most)
        sizes = [len(row.parents) for row in asked]
        jobs = [DeviceJob(own.row, own.context_len + own.row.num_pending + own.max_depth) for own in asked]
        if max(sizes) > MAX_NODES or sum(sizes) > MAX_IN_FLIGHT_NODES or rows * kept > INGEST_BUCKETS[-1]:
            return None
        if not self.fits(jobs):
            return None
        if self._done is not None:
            self._done.synchronize()
        self._fill(jobs, rows)
        self._send_trees(verified, rows)
        self._advance(rows, kept, verified.chosen, verified.token_ids)
        self.graphs.run(("gather", rows * kept), self._gather_pass(source, rows * kept))
        self._run_draft(rows, len(asked))
        return self._kept_places(rows, kept)[:, : len(asked)]

    def _send_trees(self, verified: InFlightPass, rows: int) -> None:
        """Sends the rows and trees of a pass; the headers behind its rows are zero."""
        headers, parents = list[VerifiedRow](), list[int]()
        for own in verified.rows:
            num_nodes, num_pending = len(own.parents), own.row.num_pending
            headers.append(
                VerifiedRow(
                    num_nodes, num_pending, own.context_len, own.first_token, own.first_choice, len(parents)
                )
            )
            parents += own.parents
        host = self._in_flight.host
        host[0, : len(headers) * VERIFIED_ROW_FIELDS] = np.array(headers, np.int64).ravel()
        host[0, len(headers) * VERIFIED_ROW_FIELDS : rows * VERIFIED_ROW_FIELDS] = 0
        host[1, : len(parents)] = parents
        self._in_flight.push()

    def _advance(self, rows: int, kept: int, chosen: Tensor, token_ids: Tensor) -> None:
        """Finds the accepted path of each row by the target's choices in a pass of these tokens."""
        spec = self.net.spec
        block = BlockShape(spec.mask_token_id, spec.block_size, self.pool.spec.page_size)
        verified = VerifiedPass(chosen, token_ids, self._in_flight.device)
        accept_paths(verified, rows, self._tables, self._kept_places(rows, kept), block)

    def _kept_places(self, rows: int, kept: int) -> Tensor:
        """Returns the part of the places [3, rows, kept] to which `_advance` writes the accepted tokens."""
        return self._places.device[:, : rows * kept].view(3, rows, kept)

    def _gather_pass(self, source: Tensor, count: int) -> Callable[[], None]:
        """Returns the pass that reads in the target's features of the accepted tokens."""

        def call() -> None:
            places = self._places.device[:, :count]
            features = source.index_select(0, places[2])
            self._entry.run(features, TokenSlots(places[0], places[1]), self.pool)

        return call

    def result(self) -> HostTop:
        """Waits for the latest draft; returns the candidates behind every token, block after block."""
        if self._done is not None:
            self._done.synchronize()
        both = self._host_view[: self._count]
        return HostTop(both[:, 0].copy(), both[:, 1].astype(np.int64))

    def _draft_pass(self, rows: int) -> Callable[[], None]:
        def call() -> None:
            tables, plan = self._tables, self._cuts[rows]
            num = rows * self.net.spec.block_size
            positions = tables.positions[:num]
            attention = tables.attention().first(num, plan.tiling.max_items)
            x = self.target.embed(tables.token_ids[:num]).to(self.net.dtype)
            views = PassViews(TokenSlots(positions, tables.slots[:num]), attention, plan)
            logits = self.target.logits(self._stack.run(x, views, self.pool))
            sampling = RowSampling(self._sampling.floats(1, num), self._sampling.device[0, :num], positions)
            top = top_logprobs(logits, self.ranks, sampling)
            self.top[:num, 0].copy_(top.logprobs)
            self.top[:num, 1].copy_(top.token_ids)

        return call

    def _fill(self, jobs: Sequence[DeviceJob], rows: int) -> None:
        """Fills the tables of a draft and sends them."""
        length, size = self.net.spec.block_size, self.pool.spec.page_size
        tables, count, moved = self._tables, len(jobs), False
        host, num, width = tables.host, count * length, tables.limits.max_pages
        for index, (row, _, _) in enumerate(jobs):
            pages = row.pages
            own = pages if isinstance(pages, list) and len(pages) <= width else list(pages[:width])
            moved = tables.write_pages(index, own) or moved
        lines = np.empty((count, 5), np.int64)
        lines[:, 0], lines[:, 4] = range(0, num, length), range(count)
        lines[:, 1], lines[:, 2], lines[:, 3] = length, 0, [job.context_len for job in jobs]
        positions = lines[:, 3, None] + self._steps
        host.positions[:num] = positions.ravel()
        host.slots[:num] = tables.slots_at(lines[:, 4, None], positions, size).ravel()
        host.slots[num : rows * length] = -1
        host.token_ids[:num] = self.net.spec.mask_token_id
        for index, (_, _, pending) in enumerate(jobs):
            host.token_ids[index * length : index * length + len(pending)] = pending
        tables.write_rows(lines, self._cuts[rows].tiling)
        tables.push(with_pages=moved)
        self._send_sampling(jobs)

    def _send_sampling(self, jobs: Sequence[DeviceJob]) -> None:
        """Sends seed and temperature of every token unless the device has them already."""
        asked = [(job.row.seed, job.row.temperature) for job in jobs]
        if asked == self._sampling_sent:
            return
        length, self._sampling_sent = self.net.spec.block_size, asked
        self._sampling.wait()
        num, seeds = len(jobs) * length, [signed_seed(seed) for seed, _ in asked]
        self._sampling.host[0, :num] = np.repeat(np.array(seeds, np.int64), length)
        temperatures = np.array([temperature for _, temperature in asked], np.float32)
        self._sampling.host_floats(1)[:num] = np.repeat(temperatures, length)
        self._sampling.push()


def _room_for_waiting(device: torch.device) -> int:
    if device.type != "cuda":
        return WAITING_BYTES
    return int(WAITING_SHARE * torch.cuda.get_device_properties(device).total_memory)


def _ones(block_size: int, words: int) -> npt.NDArray[np.int64]:
    """Returns the mask of a block whose tokens all see each other."""
    raw = ((1 << block_size) - 1).to_bytes(8 * words, "little")
    return np.frombuffer(raw, "<i8").astype(np.int64)
