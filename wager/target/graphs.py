"""The target's pass on a CUDA device: kernels over tables of fixed place, captured as graphs by size.

A pass is padded to the next bucket of tokens. Padding belongs to no row and costs next to nothing, and the
cost model knows the buckets, so that the bet fills what would be padding. Passes that read prompts have
buckets of their own, which score the judged tokens only. Passes beyond the largest bucket run launch by
launch with the same kernels. Graphs are captured at start (`warm`) or while nothing runs, never in
mid-traffic. The interface is `TargetRunner`'s: the engine does not know which runner it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from wager.nn.kernels.accept_path import KEPT_SIZES
from wager.nn.kernels.attention import AttentionPlan, AttentionSpace
from wager.nn.kernels.capture import GraphCache
from wager.nn.kernels.device import DeviceInfo, read_device_info
from wager.nn.kernels.kv_move import move_kept, move_slots
from wager.nn.kernels.passes import KernelStack, PassViews, StackSpec, kernel_linear
from wager.nn.kernels.product_plan import ProductRole
from wager.nn.kernels.qkv import TokenSlots, rotation_table
from wager.nn.kernels.quant_layers import linear_of
from wager.nn.kernels.split_plan import LONG_KEYS, PassSize, plan_pass
from wager.nn.kernels.staging import StagingBuffer
from wager.nn.kernels.tables import AttentionTables, PassTables, TableLimits
from wager.nn.kernels.tree_build import max_tree_nodes
from wager.nn.models.decoder import Decoder
from wager.target.buckets import ALL_SCORED, Buckets, GraphLimits, Size
from wager.target.inputs import BlindRow, PassInputs, RunRow, judged_places
from wager.target.pass_packing import pack_tables
from wager.target.places import moves_of, send_places
from wager.target.runner import Kept, PreparedPass, RunResult, TargetRunner
from wager.target.tree_builder import MAX_TREES, TreeBuilder
from wager.tree import Tree

MASK_WORDS = 2
"""64 nodes each: a row's tree may have 128."""

_FIRST_LAYERS = 3
"""Layers of the first of a pass's two graphs: while they run, the host launches the second graph."""

Progress = Callable[[int, int], None]
"""Called with the number of passes captured so far and the number of all."""


class GraphRunner(TargetRunner):
    """The target as the engine sees it, on a device with kernels."""

    has_kernels = True
    max_blind_rows = MAX_TREES
    max_nodes = 64 * MASK_WORDS

    def __init__(
        self, decoder: Decoder, num_pages: int, page_size: int, limits: GraphLimits, *, capture: bool = True
    ) -> None:
        """Allocates tables and buffers; `warm` captures. Precondition: the decoder keeps its weights."""
        super().__init__(decoder, num_pages, page_size)
        assert decoder.weights is not None
        self.limits = limits
        self._sizes = Buckets(limits, LONG_KEYS)
        self.buckets = self._sizes.tokens
        spec, weights = decoder.spec, decoder.weights
        reach = limits.max_context + 64 * MASK_WORDS + 1
        table = rotation_table(spec.rope, reach, decoder.dtype, decoder.device)
        self._machine = read_device_info(decoder.device)
        frame = StackSpec(spec.heads, spec.eps, spec.windows, table)
        self._stack = KernelStack(weights.layers, weights.norm, frame, self._machine)
        self._head, self._page_size = (
            kernel_linear(linear_of(weights.head), ProductRole.WHOLE, self._machine),
            page_size,
        )
        self._captured = GraphCache(decoder.device, enabled=capture)
        # Tables are sent before every pass, so those of small passes are as small as possible.
        small, large = self._sizes.all(), [self._sizes.beyond]
        for size in self._sizes.all_prefill():
            (small if size.tokens <= self._sizes.most else large).append(size)
        most = max(limits.max_tokens, self._sizes.prefill[-1])
        self._tables = PassTables(self._table_limits(reach, self._sizes.most, small), decoder.device)
        self._large = PassTables(self._table_limits(reach, most, large), decoder.device)
        self._sent = torch.cuda.Event() if self._captured.device.type == "cuda" else None
        self._cuts: dict[Size, AttentionPlan] = {}
        self._space = self._shared_space()
        self._moves = StagingBuffer(2, 1024, decoder.device)
        self._left, self._going_on = (StagingBuffer(1, limits.max_rows, decoder.device) for _ in range(2))
        most = self._sizes.most
        self._kept = StagingBuffer(1, max(most, self._sizes.prefill[-1]), decoder.device)
        self._judged = StagingBuffer(1, max(most, limits.max_rows), decoder.device)
        self._logits = torch.empty(most, spec.vocab_size, dtype=decoder.dtype, device=decoder.device)
        self._features = torch.empty(0)
        self.max_prelaunch_rows = min(most, limits.max_rows)
        self._tree_builder = TreeBuilder(most, spec.vocab_size, decoder.device)

    def _table_limits(self, reach: int, max_tokens: int, sizes: Sequence[Size]) -> TableLimits:
        items, rows = max(self._plan(size).tiling.max_items for size in sizes), self.limits.max_rows
        return TableLimits(max_tokens, rows, -(-reach // self._page_size), rows, items, MASK_WORDS)

    # -- sizes

    def _plan(self, size: Size) -> AttentionPlan:
        """How attention's work is cut in passes of one size; without space."""
        asked = PassSize(size.rows, size.tokens, size.is_long)
        return plan_pass(self.decoder.spec.heads, asked, self.pool.spec, self._machine, "meta")

    def _cut(self, size: Size) -> AttentionPlan:
        cut = self._cuts.get(size)
        if cut is None:
            cut = self._cuts[size] = self._plan(size)._replace(space=self._space)
        return cut

    def _shared_space(self) -> AttentionSpace:
        """Memory for the attention splits of any pass; one suffices, because passes do not overlap."""
        heads = self.decoder.spec.heads
        sizes = [*self._sizes.all(), *self._sizes.all_prefill(), self._sizes.beyond]
        tilings = [self._plan(size).tiling for size in sizes]
        lines = max(tiling.max_items * tiling.tile_rows for tiling in tilings) * heads.num_kv_heads
        items = max(tiling.max_items for tiling in tilings)
        return AttentionSpace(
            torch.empty(lines * heads.head_dim, dtype=torch.float32, device=self.device),
            torch.empty(2 * lines, dtype=torch.float32, device=self.device),
            torch.zeros(items, heads.num_kv_heads, dtype=torch.int32, device=self.device),
        )

    @property
    def device_info(self) -> DeviceInfo:
        return self._machine

    @property
    def attention_tables(self) -> AttentionTables:
        """The device tables of the latest captured pass."""
        return self._tables.attention()

    def plan_of(self, num_tokens: int, num_rows: int, longest: int) -> AttentionPlan:
        """How attention is cut in such a pass."""
        return self._cut(self._sizes.of(num_tokens, num_rows, longest) or self._sizes.beyond)

    # -- passes

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden)

    def warm(self, progress: Progress | None = None) -> int:
        """Capture every size, the largest first; returns how many graphs there are. Nothing may run yet."""
        with self._inference:
            self._room_for_features()
            self._clear_tables()
            sizes = [*self._sizes.all(), *self._sizes.all_prefill()] if self._captured.enabled else []
            sizes.sort(reverse=True)
            for done, size in enumerate(sizes):
                self._captured.capture(size, self._pass(size))
                if progress is not None:
                    progress(done + 1, len(sizes))
            if self._sent is not None:
                self._rehearse()
        return len(self._captured)

    def _rehearse(self) -> None:
        """Run everything once that is launched outside of graphs, so that it is compiled."""
        num = self._sizes.most + 1
        if num <= self.limits.max_tokens:
            width = len(self.feature_layers) * self.hidden_size
            self._layers(
                self._large, num, self._cut(self._sizes.beyond), self._logits.new_empty((num, width))
            )
        move_slots(self.pool.store, self._moves.device, 1)  # a slot to its own place
        for kept in KEPT_SIZES:  # of rows whose lines are apart as those of a draft's places are
            places = torch.full((3, 16, kept), -1, dtype=torch.int64, device=self.device)
            self.commit_behind(places[:, :1])

    def warm_blind(self, top: Tensor, num_depths: int) -> None:
        with self._inference:
            self._tree_builder.warm(top, num_depths, self._tables, self._captured)

    def when_idle(self) -> None:
        """Capture the passes that have run without a graph."""
        if not self._captured.num_uncaptured:
            return
        with self._inference:
            self._clear_tables()
            self._captured.capture_pending()

    def _clear_tables(self) -> None:
        """Make every table one of padding alone, over which any pass may run."""
        for tables in (self._tables, self._large):
            tables.clear()
            tables.push()

    def run(self, rows: Sequence[RunRow]) -> RunResult:
        """One pass. Writes the rows' K/V behind their contexts; the result stands until the next pass."""
        with self._inference:
            self._room_for_features()
            starts, size = self._fill(rows)
            return self._launch(rows, starts, size)

    def prepare(self, rows: Sequence[RunRow]) -> PreparedPass | None:
        with self._inference:
            self._room_for_features()
            starts, size = self._fill(rows)
            return None if size is None else PreparedPass(rows, starts, size)

    def run_prepared(self, prepared: PreparedPass) -> RunResult:
        with self._inference:
            return self._launch(*prepared)

    def run_blind(self, rows: Sequence[BlindRow], top: Tensor) -> RunResult:
        with self._inference:
            self._room_for_features()
            packed = [RunRow(row.pending, row.placeholder, row.context_len, row.pages) for row in rows]
            host_chains = [place for place, row in enumerate(rows) if row.tree is not None]
            starts, size = self._fill(packed, host_chains)
            assert size is not None, "more tokens than the largest bucket"
            self._tree_builder.launch(rows, starts, top, self._tables, self._captured)
            return self._launch(packed, starts, size)

    def can_build_trees(self, rows: Sequence[BlindRow]) -> bool:
        return len(rows) <= self.max_blind_rows and sum([row.num_tokens for row in rows]) <= self._sizes.most

    def max_built_nodes(self, num_depths: int, num_ranks: int) -> int:
        return max_tree_nodes(num_depths, num_ranks)

    def read_trees(self, rows: Sequence[BlindRow]) -> list[Tree]:
        return self._tree_builder.trees(rows)

    def _launch(self, rows: Sequence[RunRow], starts: list[int], size: Size | None) -> RunResult:
        """Run the pass that is in the tables, by its graph where it has a bucket."""
        tables = self._tables_for(starts[-1])
        if size is None:
            return self._run_large(self._inputs(rows, starts, tables), tables)
        if size.num_judged:
            # The pass gathers as many places as it has room for: unused ones must be places that it has.
            judged_here = judged_places(rows, starts)
            send_places(self._judged, judged_here + [0] * (size.num_judged - len(judged_here)))
        self._captured.run(size, self._pass(size))
        inputs = self._inputs(rows, starts, tables)
        num_tokens, judged = inputs.num_tokens, inputs.judged
        features = self._features[:num_tokens] if self.feature_layers else None
        if not judged:
            return RunResult(None, features, inputs)
        logits = self._logits[: len(judged) if size.num_judged else num_tokens]
        if len(judged) < num_tokens and not size.num_judged:
            logits = logits.index_select(0, send_places(self._judged, judged))
        # A draft can follow a pass whose tokens and features are in the memory that it knows.
        return RunResult(logits, features, inputs, tables.token_ids if tables is self._tables else None)

    def _tables_for(self, num_tokens: int) -> PassTables:
        """The tables of a pass of so many tokens, which are those of its bucket too."""
        return self._tables if num_tokens <= self._sizes.most else self._large

    def run_behind(self, rows: Sequence[RunRow], chosen: Tensor, places: Sequence[int]) -> RunResult:
        with self._inference:
            starts, size = self._fill(rows)
            num = len(places)
            tokens = self._tables_for(starts[-1]).token_ids[:num]
            if len(chosen) == num:
                tokens.copy_(chosen)
            elif num:
                torch.index_select(chosen, 0, send_places(self._going_on, places), out=tokens)
            return self._launch(rows, starts, size)

    def only(self, result: RunResult, places: Sequence[int]) -> RunResult:
        inputs, logits = result.inputs, result.logits
        starts, num_tokens = inputs.starts, inputs.num_tokens
        if len(places) == len(starts) - 1:
            return result
        lines = {token: line for line, token in enumerate(inputs.judged)}
        judged = [token for place in places if (token := starts[place + 1] - 1) in lines]
        if logits is not None and judged:
            with self._inference:
                logits = logits.index_select(0, send_places(self._left, [lines[token] for token in judged]))
        kept = inputs._replace(starts=[*[starts[place] for place in places], num_tokens], judged=judged)
        return result._replace(logits=logits if judged else None, inputs=kept)

    def _room_for_features(self) -> None:
        """Allocate the features once the drafter that asks for them, made after the runner, is known."""
        if self.features_at is None and self.feature_layers:
            wanted, most = len(self.feature_layers) * self.hidden_size, self._sizes.most
            self._features = self._logits.new_empty((max(most, self._sizes.prefill[-1]), wanted))
            self.features_at = self._features[:most]

    def _pass(self, size: Size) -> Callable[[], None]:
        """The whole pass of one size over its tables: tokens in, scores and features out."""

        def call() -> None:
            num, tables = size.tokens, self._tables_for(size.tokens)
            features = self._features[:num] if self.feature_layers else None
            hidden = self._layers(tables, num, self._cut(size), features)
            if size.num_judged:
                num = size.num_judged
                hidden = hidden.index_select(0, self._judged.device[0, :num])
            self._head(hidden, self._logits[:num])

        return call

    def _layers(
        self, tables: PassTables, num_tokens: int, cut: AttentionPlan, features: Tensor | None
    ) -> Tensor:
        attention = tables.attention().first(num_tokens, cut.tiling.max_items)
        places = TokenSlots(tables.positions[:num_tokens], tables.slots[:num_tokens])
        x = F.embedding(tables.token_ids[:num_tokens], self.decoder.embedding)
        views = PassViews(places, attention, cut)
        return self._stack.run(x, views, self.pool, self.feature_layers, features, self._before)

    def _before(self, layer: int) -> None:
        if layer == _FIRST_LAYERS:
            self._captured.cut()

    def _run_large(self, inputs: PassInputs, tables: PassTables) -> RunResult:
        """A pass beyond the buckets, launch by launch, with results of its own."""
        num, cut = inputs.num_tokens, self._cut(self._sizes.beyond)
        features = None
        if self.feature_layers:
            features = self._logits.new_empty((num, len(self.feature_layers) * self.hidden_size))
        hidden = self._layers(tables, num, cut, features)
        if not inputs.judged:
            return RunResult(None, features, inputs)
        hidden = hidden.index_select(0, send_places(self._judged, inputs.judged))
        return RunResult(self._head(hidden), features, inputs)

    def with_own_features(self, result: RunResult) -> RunResult:
        if result.features is None or not self._is_overwritten(result.features):
            return result
        with self._inference:
            return result._replace(features=result.features.clone())

    def _is_overwritten(self, features: Tensor) -> bool:
        """Whether the next pass writes its features to the same memory."""
        return features.data_ptr() == self._features.data_ptr()

    def kept_features(self, result: RunResult, kept: Sequence[Sequence[int]]) -> list[Kept]:
        """One copy for all rows where the next pass overwrites the features; those of large passes stay."""
        features, starts = result.features, result.inputs.starts
        if features is None:
            return [Kept(None)] * len(kept)
        with self._inference:
            stops = list(accumulate([len(own) for own in kept]))
            if stops[-1] == len(features):
                whole = features.clone() if self._is_overwritten(features) else features
            else:
                lines = [start + index for start, own in zip(starts, kept, strict=False) for index in own]
                whole = features.index_select(0, send_places(self._kept, lines))
        return [Kept(whole, range(stop - len(own), stop)) for own, stop in zip(kept, stops, strict=True)]

    def _move(self, inputs: PassInputs, kept: Sequence[Sequence[int]]) -> int:
        """Moves without waiting, because a draft may be in flight on the device."""
        src, dst = moves_of(inputs.starts, kept)
        count, numbers = len(src), self._moves
        if count > numbers.host.shape[1]:
            return super()._move(inputs, kept)
        numbers.wait()
        numbers.host[:, :count] = inputs.slots[[src, dst]]
        numbers.push()
        move_slots(self.pool.store, numbers.device, count)
        return count

    def commit_behind(self, kept: Tensor) -> None:
        move_kept(self.pool.store, self._tables.slots, kept)

    # -- tables

    def _fill(
        self, rows: Sequence[RunRow], host_chains: Sequence[int] | None = None
    ) -> tuple[list[int], Size | None]:
        """Write the pass to the host's tables and send them; `host_chains` as in `pack_tables`.

        Returns where its rows start, and its bucket, None where it has none.
        """
        if self._sent is not None:
            self._sent.synchronize()  # the copy of the pass before may still read them
        num_tokens = sum([len(row.pending) + row.tree.num_nodes for row in rows])
        tables = self._tables_for(num_tokens)
        packed = pack_tables(rows, tables, self._page_size, host_chains)
        size = None
        if num_tokens > ALL_SCORED:
            num_judged = sum([1 + row.tree.num_nodes for row in rows if row.judged])
            size = self._sizes.prefill_of(num_tokens, len(rows), packed.longest, num_judged)
        size = size or self._sizes.of(num_tokens, len(rows), packed.longest)
        tables.pad_tokens(num_tokens, (size or self._sizes.beyond).tokens)
        tables.write_rows(packed.lines, self._cut(size or self._sizes.beyond).tiling)
        tables.push(with_pages=packed.has_moved)
        if self._sent is not None:
            self._sent.record()
        return packed.starts, size

    def _inputs(self, rows: Sequence[RunRow], starts: list[int], tables: PassTables) -> PassInputs:
        """The pass in the tables as the engine knows it: nothing that the device waits for."""
        slots = tables.host.slots[: starts[-1]].copy()
        return PassInputs(None, slots, starts, judged_places(rows, starts))
