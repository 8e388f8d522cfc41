"""The target's pass on a CUDA device: kernels over tables of fixed place, captured as graphs by size.

A pass is padded to the next bucket of tokens; padding belongs to no row and costs next to nothing, and the
buckets are known to the cost model, so that the bet fills what would be padding. Passes beyond the largest
bucket, prompt chunks, run launch by launch with the same kernels. Graphs are made at start (`warm`) or in
idle moments, never in mid-traffic. The face is `TargetRunner`'s: the engine does not know which it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wager.nn.kernels.attention import AttentionPlan, AttentionSpace, plan_attention
from wager.nn.kernels.capture import Captured
from wager.nn.kernels.passes import Frame, KernelStack, PassViews
from wager.nn.kernels.qkv import Places, rotation_table
from wager.nn.kernels.tables import (
    PassTables,
    TableLimits,
    TableRow,
    Tiling,
    choose_tiling,
)
from wager.nn.models.decoder import Decoder
from wager.target.inputs import Laid, PassInputs, RunRow, lay_out
from wager.target.runner import RunResult, TargetRunner
from wager.tree.visibility import ancestor_words

TOKEN_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512)
ROW_BUCKETS = (1, 4, 16, 64, 256)
MASK_WORDS = 2
"""64 nodes each: a row's tree may have 128."""

Progress = Callable[[int, int], None]
"""Called with how many passes are captured, and how many there will be."""


@dataclass(frozen=True)
class GraphLimits:
    """The largest pass: rows, tokens in all, tokens of one row's text."""

    max_rows: int
    max_tokens: int
    max_context: int


class Size(NamedTuple):
    """The bucket of a pass."""

    tokens: int
    rows: int


class _Cut(NamedTuple):
    """How attention's work is cut in passes of one size."""

    tiling: Tiling
    plan: AttentionPlan


class GraphRunner(TargetRunner):
    """The target as the engine sees it, on a device with kernels."""

    has_kernels = True
    max_nodes = 64 * MASK_WORDS

    def __init__(
        self, decoder: Decoder, num_pages: int, page_size: int, limits: GraphLimits, *, capture: bool = True
    ) -> None:
        """Builds tables and space; `warm` captures. Precondition: the decoder keeps its weights."""
        super().__init__(decoder, num_pages, page_size)
        assert decoder.weights is not None
        self.limits = limits
        self.buckets = tuple(size for size in TOKEN_BUCKETS if size <= limits.max_tokens)
        spec, weights = decoder.spec, decoder.weights
        reach = limits.max_context + 64 * MASK_WORDS + 1
        table = rotation_table(spec.rope, reach, decoder.dtype, decoder.device)
        self._stack = KernelStack(
            weights.layers, weights.norm, Frame(spec.heads, spec.eps, spec.windows, table)
        )
        self._head, self._page_size = weights.head, page_size
        self._captured = Captured(decoder.device, enabled=capture)
        self._tables = PassTables(self._table_limits(reach), decoder.device)
        self._sent = torch.cuda.Event() if self._captured.device.type == "cuda" else None
        self._cuts: dict[Size, _Cut] = {}
        self._space = self._shared_space()
        most = self.buckets[-1]
        self._logits = torch.empty(most, spec.vocab_size, dtype=decoder.dtype, device=decoder.device)
        self._features = torch.empty(0)

    def _table_limits(self, reach: int) -> TableLimits:
        limits = self.limits
        items = max(self._tiling(size).max_items for size in self._all_sizes())
        pages = -(-reach // self._page_size)
        return TableLimits(limits.max_tokens, limits.max_rows, pages, limits.max_rows, items, MASK_WORDS)

    # -- sizes

    def _sizes(self) -> list[Size]:
        """Every bucket a pass of decoding rows can fall into, the smallest first."""
        rows = [count for count in ROW_BUCKETS if count < self.limits.max_rows]
        rows.append(self.limits.max_rows)
        sizes, fewest = [], 1
        for count in rows:
            sizes += [Size(tokens, count) for tokens in self.buckets if tokens >= fewest]
            fewest = count + 1
        return sizes

    def _size_of(self, num_tokens: int, num_rows: int) -> Size | None:
        """The bucket of a pass; None where it is beyond all."""
        if num_tokens > self.buckets[-1]:
            return None
        tokens = next(size for size in self.buckets if size >= num_tokens)
        rows = next((count for count in ROW_BUCKETS if count >= num_rows), self.limits.max_rows)
        return Size(tokens, min(rows, self.limits.max_rows))

    def _all_sizes(self) -> list[Size]:
        """The buckets, and what is beyond them."""
        return [*self._sizes(), self._beyond]

    @property
    def _beyond(self) -> Size:
        return Size(self.limits.max_tokens, self.limits.max_rows)

    def _tiling(self, size: Size) -> Tiling:
        return choose_tiling(self.decoder.spec.heads, size.rows, size.tokens, self._programs)

    @property
    def _programs(self) -> int:
        if torch.device(self.device).type != "cuda":
            return 8
        return 2 * int(torch.cuda.get_device_properties(self.device).multi_processor_count)

    def _cut(self, size: Size) -> _Cut:
        cut = self._cuts.get(size)
        if cut is None:
            tiling = self._tiling(size)
            plan = plan_attention(self.decoder.spec.heads, tiling, self._page_size, "meta")
            cut = self._cuts[size] = _Cut(tiling, plan._replace(space=self._space))
        return cut

    def _shared_space(self) -> AttentionSpace:
        """Room for the splits of any pass: only one runs at a time."""
        heads, tilings = self.decoder.spec.heads, [self._tiling(size) for size in self._all_sizes()]
        lines = max(tiling.max_items * tiling.tile_rows for tiling in tilings) * heads.num_kv_heads
        items = max(tiling.max_items for tiling in tilings)
        return AttentionSpace(
            torch.empty(lines * heads.head_dim, dtype=torch.float32, device=self.device),
            torch.empty(2 * lines, dtype=torch.float32, device=self.device),
            torch.zeros(items, heads.num_kv_heads, dtype=torch.int32, device=self.device),
        )

    # -- passes

    def warm(self, progress: Progress | None = None) -> int:
        """Capture every size, the largest first; returns how many graphs there are."""
        with self._inference:
            self._room_for_features()
            self._tables.clear()
            self._tables.push()
            sizes = sorted(self._sizes(), reverse=True) if self._captured.enabled else []
            for done, size in enumerate(sizes):
                self._captured.capture(size, self._pass(size))
                if progress is not None:
                    progress(done + 1, len(sizes))
        return len(self._captured)

    def when_idle(self) -> None:
        """Capture what has run without a graph."""
        if not self._captured.num_wanted:
            return
        with self._inference:
            self._tables.clear()
            self._tables.push()
            self._captured.capture_wanted()

    def run(self, rows: Sequence[RunRow]) -> RunResult:
        """One pass. Writes the rows' K/V behind their contexts; the result stands until the next pass."""
        with self._inference:
            self._room_for_features()
            laid = lay_out(rows, self._page_size)
            num_tokens = laid.starts[-1]
            size = self._size_of(num_tokens, len(rows))
            self._fill(rows, laid, self._cut(size or self._beyond))
            inputs = PassInputs(None, np.array(laid.slots, np.int64), laid.starts, laid.judged)
            if size is None:
                return self._run_large(inputs)
            self._captured.run(size, self._pass(size))
            features = self._features[:num_tokens] if self.feature_layers else None
            if not laid.judged:
                return RunResult(None, features, inputs)
            logits = self._logits[:num_tokens]
            if len(laid.judged) < num_tokens:
                logits = logits[self._on_device(laid.judged)]
            return RunResult(logits, features, inputs)

    def _room_for_features(self) -> None:
        """The drafter that asks for features is known only after the runner: make room when it has asked."""
        wanted = len(self.feature_layers) * self.hidden_size
        if self._features.numel() == 0 and wanted:
            self._features = self._logits.new_empty((self.buckets[-1], wanted))

    def _pass(self, size: Size) -> Callable[[], None]:
        """The whole pass of one size over the tables: tokens in, scores and features out."""

        def call() -> None:
            num = size.tokens
            features = self._features[:num] if self.feature_layers else None
            hidden = self._layers(num, self._cut(size), features)
            torch.mm(hidden, self._head.t(), out=self._logits[:num])

        return call

    def _layers(self, num_tokens: int, cut: _Cut, features: Tensor | None) -> Tensor:
        tables = self._tables
        attention = tables.attention().first(num_tokens, cut.tiling.max_items)
        places = Places(tables.positions[:num_tokens], tables.slots[:num_tokens])
        x = F.embedding(tables.token_ids[:num_tokens], self.decoder.embedding)
        views = PassViews(places, attention, cut.plan)
        return self._stack.run(x, views, self.pool, self.feature_layers, features)

    def _run_large(self, inputs: PassInputs) -> RunResult:
        """A pass beyond the buckets, launch by launch, with results of its own."""
        num, cut = inputs.num_tokens, self._cut(self._beyond)
        features = None
        if self.feature_layers:
            features = self._logits.new_empty((num, len(self.feature_layers) * self.hidden_size))
        hidden = self._layers(num, cut, features)
        if not inputs.judged:
            return RunResult(None, features, inputs)
        return RunResult(F.linear(hidden[self._on_device(inputs.judged)], self._head), features, inputs)

    def _on_device(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, device=self.device)

    # -- tables

    def _fill(self, rows: Sequence[RunRow], laid: Laid, cut: _Cut) -> None:
        """Write the pass to the host's tables and send them."""
        if self._sent is not None:
            self._sent.synchronize()  # the copy of the pass before may still read them
        tables, num = self._tables, laid.starts[-1]
        host = tables.host
        host.token_ids[:num], host.positions[:num] = laid.token_ids, laid.positions
        host.slots[:num] = laid.slots
        host.token_ids[num:], host.positions[num:], host.slots[num:] = 0, 0, -1
        table_rows, moved = [], False
        for index, row in enumerate(rows):
            start, stop = laid.starts[index], laid.starts[index + 1]
            num_causal = stop - start
            if row.tree.num_nodes > 1 and not row.tree.is_chain:
                num_causal = len(row.pending)
                host.masks[start : start + num_causal] = 0
                host.masks[start + num_causal : stop] = words_of(ancestor_words(row.tree))
            table_rows.append(TableRow(start, stop - start, num_causal, row.context_len, index))
            moved = self._lay_pages(index, row, stop - start) or moved
        tables.lay_rows(table_rows, cut.tiling)
        tables.push(with_pages=moved)
        if self._sent is not None:
            self._sent.record()

    def _lay_pages(self, index: int, row: RunRow, num_tokens: int) -> bool:
        """A row's pages to its line of the page table; whether that changed anything."""
        num = -(-(row.context_len + num_tokens) // self._page_size)
        pages, line = np.asarray(row.pages[:num], np.int32), self._tables.host_pages[index, :num]
        if np.array_equal(line, pages):
            return False
        line[:] = pages
        return True


def words_of(masks: Sequence[int]) -> np.ndarray:
    """Masks as numbers -> [masks, MASK_WORDS] int64, the lowest bits first."""
    raw = b"".join([mask.to_bytes(8 * MASK_WORDS, "little") for mask in masks])
    return np.frombuffer(raw, "<i8").reshape(len(masks), MASK_WORDS)
