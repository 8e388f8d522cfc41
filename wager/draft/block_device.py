"""A block drafter's passes on a CUDA device: context in, candidates out, by captured graphs.

The same as `block.py` does with plain torch, over tables of fixed place: features are turned into context by
one graph per number of tokens, blocks into the best candidates of every depth by one graph per number of
rows, scaling, noise and ranking included. `launch` returns at once and `result` waits, so that a draft can be
under way while tokens are handed out. Blocks have their whole length: on such a device fewer masks are not
cheaper. Made by `block.py`; does not know which guesses are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.draft.base import DraftRow, TargetFace
from wager.draft.scores import HostTop
from wager.kvcache.pool import KVPool, slot_ids
from wager.nn.kernels.attention import AttentionPlan, plan_attention
from wager.nn.kernels.capture import Captured
from wager.nn.kernels.norm import Norm
from wager.nn.kernels.numbers import Numbers, signed
from wager.nn.kernels.passes import ContextEntry, Frame, KernelStack, Matrix, PassViews
from wager.nn.kernels.qkv import Places, Turn, rotation_table
from wager.nn.kernels.tables import PassTables, TableLimits, TableRow, Tiling, choose_tiling
from wager.nn.kernels.top import Heat, top_logprobs
from wager.nn.layers.decoder_layer import Linear
from wager.nn.models.dflash import DFlash, context_projection, key_norms

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
MAX_ROWS = ROW_BUCKETS[-1]
"""Rows of one pass; more are drafted in several."""
INGEST_BUCKETS = (1, 2, 4, 8, 16, 32, 64)


DeviceJob: TypeAlias = tuple[DraftRow, int]
"""A row that asks for guesses, and how many of its tokens are in the cache."""


class BlockDevice:
    """The device's part of a block drafter."""

    def __init__(
        self,
        net: DFlash,
        target: TargetFace,
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
        table = rotation_table(spec.rope, reach, net.dtype, device)
        self._stack = KernelStack(
            weights.layers, weights.norm, Frame(spec.heads, spec.eps, spec.windows, table)
        )
        norms = key_norms(spec, weights.layers).flatten(0, 1).contiguous()
        self._entry = ContextEntry(
            Matrix(Linear(weights.fc)),
            Norm(weights.hidden_norm, spec.eps),
            Matrix(context_projection(spec, weights.layers)),
            Turn(spec.heads, norms, spec.eps, table),
        )
        self._captured = Captured(device, enabled=capture)
        self._is_cuda = device.type == "cuda"
        self._cuts = {rows: self._cut(rows) for rows in ROW_BUCKETS}
        items = max(tiling.max_items for tiling, _ in self._cuts.values())
        size, pages = MAX_ROWS * spec.block_size, -(-reach // pool.spec.page_size)
        words = -(-spec.block_size // 64)
        self._tables = PassTables(TableLimits(size, MAX_ROWS, pages, MAX_ROWS, items, words), device)
        self._tables.host.masks[:] = _ones(spec.block_size, words)
        self._heat = Numbers(2, size, device)
        self._places = Numbers(2, INGEST_BUCKETS[-1], device)
        self._features = torch.zeros(INGEST_BUCKETS[-1], spec.feature_size, dtype=net.dtype, device=device)
        self._top = torch.zeros(size, 2, ranks, dtype=torch.float32, device=device)
        self._host_top = torch.zeros(size, 2, ranks, dtype=torch.float32, pin_memory=self._is_cuda)
        self._count = 0
        self._done = torch.cuda.Event() if self._is_cuda else None

    def _cut(self, rows: int) -> tuple[Tiling, AttentionPlan]:
        spec = self.net.spec
        programs = 8
        if self._is_cuda:
            programs = 2 * int(torch.cuda.get_device_properties(self.net.device).multi_processor_count)
        tiling = choose_tiling(spec.heads, rows, rows * spec.block_size, programs)
        return tiling, plan_attention(spec.heads, tiling, self.pool.spec.page_size, self.net.device)

    @torch.inference_mode()
    def warm(self) -> int:
        """Capture every size; returns how many graphs there are."""
        if self._captured.enabled:
            self._tables.clear()
            self._tables.push()
            self._places.host[1] = -1
            self._places.push()
            for rows in reversed(ROW_BUCKETS):
                self._captured.capture(("draft", rows), self._draft_pass(rows))
            for tokens in reversed(INGEST_BUCKETS):
                self._captured.capture(("ingest", tokens), self._ingest_pass(tokens))
        return len(self._captured)

    # -- context

    def ingest(
        self, chunks: Sequence[Tensor], positions: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]
    ) -> None:
        """Features of tokens, at their positions and slots, all in one go."""
        count = len(positions)
        if count > INGEST_BUCKETS[-1]:
            places = torch.from_numpy(np.stack((positions, slots))).to(self.net.device)
            features = chunks[0] if len(chunks) == 1 else torch.cat(list(chunks))
            self._entry.run(features.to(self.net.dtype), Places(places[0], places[1]), self.pool)
            return
        self._places.wait()
        host = self._places.host
        host[0, :count], host[1, :count] = positions, slots
        host[1, count:] = -1
        self._places.push()
        start = 0
        for chunk in chunks:
            self._features[start : start + len(chunk)].copy_(chunk)
            start += len(chunk)
        size = next(bucket for bucket in INGEST_BUCKETS if bucket >= count)
        self._captured.run(("ingest", size), self._ingest_pass(size))

    def _ingest_pass(self, count: int) -> Callable[[], None]:
        def call() -> None:
            places = self._places.device
            self._entry.run(self._features[:count], Places(places[0, :count], places[1, :count]), self.pool)

        return call

    # -- guesses

    def fits(self, jobs: Sequence[DeviceJob]) -> bool:
        """Whether every block has room behind its context, and all go into one pass."""
        size, length = self.pool.spec.page_size, self.net.spec.block_size
        return len(jobs) <= MAX_ROWS and all(
            len(row.pages) * size >= context_len + length for row, context_len in jobs
        )

    def launch(self, jobs: Sequence[DeviceJob]) -> None:
        """Begin a draft. Precondition: `fits`, and the contexts are ingested."""
        if self._done is not None:
            self._done.synchronize()  # tables and results of the draft before are read until then
        rows = next(bucket for bucket in ROW_BUCKETS if bucket >= len(jobs))
        self._fill(jobs, rows)
        self._captured.run(("draft", rows), self._draft_pass(rows))
        self._count = count = len(jobs) * self.net.spec.block_size
        self._host_top[:count].copy_(self._top[:count], non_blocking=True)
        if self._done is not None:
            self._done.record()

    def result(self) -> HostTop:
        """The candidates behind every token of the latest draft, block after block."""
        if self._done is not None:
            self._done.synchronize()
        both = self._host_top[: self._count].numpy()
        return HostTop(both[:, 0].copy(), both[:, 1].astype(np.int64))

    def _draft_pass(self, rows: int) -> Callable[[], None]:
        def call() -> None:
            tables, (tiling, plan) = self._tables, self._cuts[rows]
            num = rows * self.net.spec.block_size
            positions = tables.positions[:num]
            attention = tables.attention().first(num, tiling.max_items)
            x = self.target.embed(tables.token_ids[:num]).to(self.net.dtype)
            views = PassViews(Places(positions, tables.slots[:num]), attention, plan)
            logits = self.target.logits(self._stack.run(x, views, self.pool))
            heat = Heat(self._heat.floats(1, num), self._heat.device[0, :num], positions)
            top = top_logprobs(logits, self.ranks, heat)
            self._top[:num, 0].copy_(top.logprobs)
            self._top[:num, 1].copy_(top.token_ids)

        return call

    def _fill(self, jobs: Sequence[DeviceJob], rows: int) -> None:
        length, size = self.net.spec.block_size, self.pool.spec.page_size
        tables, heat = self._tables, self._heat.host
        host, num = tables.host, len(jobs) * length
        host.token_ids[:num] = self.net.spec.mask_token_id
        table_rows, moved = [], False
        warmth = self._heat.host_floats(1)
        for index, (row, context_len) in enumerate(jobs):
            own = slice(index * length, (index + 1) * length)
            host.token_ids[own.start : own.start + row.num_pending] = row.tokens[context_len:]
            host.positions[own] = np.arange(context_len, context_len + length)
            host.slots[own] = slot_ids(row.pages, size, context_len, context_len + length)
            heat[0, own], warmth[own] = signed(row.seed), row.temperature
            table_rows.append(TableRow(own.start, length, 0, context_len, index))
            moved = self._lay_pages(index, row, context_len + length) or moved
        host.slots[num : rows * length] = -1
        tables.lay_rows(table_rows, self._cuts[rows][0])
        tables.push(with_pages=moved)
        self._heat.push()

    def _lay_pages(self, index: int, row: DraftRow, num_tokens: int) -> bool:
        num = -(-num_tokens // self.pool.spec.page_size)
        pages, line = np.asarray(row.pages[:num], np.int32), self._tables.host_pages[index, :num]
        if np.array_equal(line, pages):
            return False
        line[:] = pages
        return True


def _ones(block_size: int, words: int) -> npt.NDArray[np.int64]:
    """The mask of a block whose tokens all see each other."""
    raw = ((1 << block_size) - 1).to_bytes(8 * words, "little")
    return np.frombuffer(raw, "<i8").astype(np.int64)
