"""The target's pass on a CUDA device: kernels over tables of fixed place, captured as graphs by size.

A pass is padded to the next bucket of tokens; padding belongs to no row and costs next to nothing, and the
buckets are known to the cost model, so that the bet fills what would be padding. Passes beyond the largest
bucket, prompt chunks, run launch by launch with the same kernels. Graphs are made at start (`warm`) or in
idle moments, never in mid-traffic. The face is `TargetRunner`'s: the engine does not know which it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from wager.nn.kernels.advance import KEPT_SIZES
from wager.nn.kernels.attention import AttentionPlan, AttentionSpace
from wager.nn.kernels.capture import Captured
from wager.nn.kernels.cuts import LONG_KEYS, PassSize, plan_pass
from wager.nn.kernels.device import Machine, machine_of
from wager.nn.kernels.move import move_kept, move_slots
from wager.nn.kernels.narrow_layers import linear_of
from wager.nn.kernels.numbers import Numbers
from wager.nn.kernels.passes import Frame, KernelStack, PassViews, matrix
from wager.nn.kernels.plant import most_nodes
from wager.nn.kernels.qkv import Places, rotation_table
from wager.nn.kernels.tables import AttentionTables, PassTables, TableLimits
from wager.nn.kernels.ways import Role
from wager.nn.models.decoder import Decoder
from wager.target.buckets import Buckets, GraphLimits, Size
from wager.target.inputs import PassInputs, RunRow, UnseenRow, judged_places
from wager.target.lay import lay_pass
from wager.target.planting import MAX_PLANTS, Planting
from wager.target.runner import Kept, Laid, RunResult, TargetRunner
from wager.tree import Tree

MASK_WORDS = 2
"""64 nodes each: a row's tree may have 128."""

_FIRST_LAYERS = 3  # are a graph of their own: while they run, the host launches the others

Progress = Callable[[int, int], None]
"""Called with how many passes are captured, and how many there will be."""


class GraphRunner(TargetRunner):
    """The target as the engine sees it, on a device with kernels."""

    has_kernels = True
    max_unseen = MAX_PLANTS
    max_nodes = 64 * MASK_WORDS

    def __init__(
        self, decoder: Decoder, num_pages: int, page_size: int, limits: GraphLimits, *, capture: bool = True
    ) -> None:
        """Builds tables and space; `warm` captures. Precondition: the decoder keeps its weights."""
        super().__init__(decoder, num_pages, page_size)
        assert decoder.weights is not None
        self.limits = limits
        self._sizes = Buckets(limits, LONG_KEYS)
        self.buckets = self._sizes.tokens
        spec, weights = decoder.spec, decoder.weights
        reach = limits.max_context + 64 * MASK_WORDS + 1
        table = rotation_table(spec.rope, reach, decoder.dtype, decoder.device)
        self._machine = machine_of(decoder.device)
        frame = Frame(spec.heads, spec.eps, spec.windows, table)
        self._stack = KernelStack(weights.layers, weights.norm, frame, self._machine)
        self._head, self._page_size = matrix(linear_of(weights.head), Role.WHOLE, self._machine), page_size
        self._captured = Captured(decoder.device, enabled=capture)
        # Sent before every pass, so those of captured ones are no larger than they must be.
        self._tables = PassTables(
            self._table_limits(reach, self._sizes.most, self._sizes.all()), decoder.device
        )
        self._large = PassTables(
            self._table_limits(reach, limits.max_tokens, [self._sizes.beyond]), decoder.device
        )
        self._sent = torch.cuda.Event() if self._captured.device.type == "cuda" else None
        self._cuts: dict[Size, AttentionPlan] = {}
        self._space = self._shared_space()
        self._moves = Numbers(2, 1024, decoder.device)
        self._left, self._going_on = (Numbers(1, limits.max_rows, decoder.device) for _ in range(2))
        most = self._sizes.most
        self._kept = Numbers(1, most, decoder.device)
        self._logits = torch.empty(most, spec.vocab_size, dtype=decoder.dtype, device=decoder.device)
        self._features = torch.empty(0)
        self.max_behind = min(most, limits.max_rows)
        self._planting = Planting(most, spec.vocab_size, decoder.device)

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
        """Room for the splits of any pass: only one runs at a time."""
        heads, sizes = self.decoder.spec.heads, [*self._sizes.all(), self._sizes.beyond]
        tilings = [self._plan(size).tiling for size in sizes]
        lines = max(tiling.max_items * tiling.tile_rows for tiling in tilings) * heads.num_kv_heads
        items = max(tiling.max_items for tiling in tilings)
        return AttentionSpace(
            torch.empty(lines * heads.head_dim, dtype=torch.float32, device=self.device),
            torch.empty(2 * lines, dtype=torch.float32, device=self.device),
            torch.zeros(items, heads.num_kv_heads, dtype=torch.int32, device=self.device),
        )

    @property
    def machine(self) -> Machine:
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

    def rough_logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden)

    def warm(self, progress: Progress | None = None) -> int:
        """Capture every size, the largest first; returns how many graphs there are. Nothing may run yet."""
        with self._inference:
            self._room_for_features()
            self._tables.clear()
            self._tables.push()
            sizes = sorted(self._sizes.all(), reverse=True) if self._captured.enabled else []
            for done, size in enumerate(sizes):
                self._captured.capture(size, self._pass(size))
                if progress is not None:
                    progress(done + 1, len(sizes))
            if self._sent is not None:
                self._rehearse()
        return len(self._captured)

    def _rehearse(self) -> None:
        """Have everything compiled that is launched outside of graphs, on nobody's tokens."""
        num = self._sizes.most + 1
        if num <= self.limits.max_tokens:
            self._large.clear()
            self._large.push()
            width = len(self.feature_layers) * self.hidden_size
            self._layers(
                self._large, num, self._cut(self._sizes.beyond), self._logits.new_empty((num, width))
            )
        move_slots(self.pool.store, self._moves.device, 1)  # a slot to its own place
        for kept in KEPT_SIZES:  # of rows whose lines are apart as those of a draft's places are
            places = torch.full((3, 16, kept), -1, dtype=torch.int64, device=self.device)
            self.commit_behind(places[:, :1])

    def warm_unseen(self, top: Tensor, num_depths: int) -> None:
        with self._inference:
            self._planting.warm(top, num_depths, self._tables, self._captured)

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
            starts, size = self._fill(rows)
            if size is None:
                return self._run_large(self._inputs(rows, starts, self._large))
            return self._launch(rows, starts, size)

    def lay(self, rows: Sequence[RunRow]) -> Laid | None:
        with self._inference:
            self._room_for_features()
            starts, size = self._fill(rows)
            return None if size is None else Laid(rows, starts, size)

    def run_laid(self, laid: Laid) -> RunResult:
        with self._inference:
            return self._launch(*laid)

    def run_unseen(self, rows: Sequence[UnseenRow], top: Tensor) -> RunResult:
        with self._inference:
            self._room_for_features()
            laid = [RunRow(row.pending, row.stand_in, row.context_len, row.pages) for row in rows]
            known = [place for place, row in enumerate(rows) if row.tree is not None]
            starts, size = self._fill(laid, known)
            assert size is not None, "more tokens than the largest bucket"
            self._planting.begin(rows, starts, top, self._tables, self._captured)
            return self._launch(laid, starts, size)

    def can_build(self, rows: Sequence[UnseenRow]) -> bool:
        return len(rows) <= self.max_unseen and sum([row.num_tokens for row in rows]) <= self._sizes.most

    def unseen_nodes(self, num_depths: int, num_ranks: int) -> int:
        return most_nodes(num_depths, num_ranks)

    def unseen_trees(self, rows: Sequence[UnseenRow]) -> list[Tree]:
        return self._planting.trees(rows)

    def _launch(self, rows: Sequence[RunRow], starts: list[int], size: Size) -> RunResult:
        """The pass that lies in the tables."""
        self._captured.run(size, self._pass(size))
        inputs = self._inputs(rows, starts, self._tables)
        num_tokens, judged = inputs.num_tokens, inputs.judged
        features = self._features[:num_tokens] if self.feature_layers else None
        if not judged:
            return RunResult(None, features, inputs)
        logits = self._logits[:num_tokens]
        if len(judged) < num_tokens:
            logits = logits[self._on_device(judged)]
        return RunResult(logits, features, inputs, self._tables.token_ids)

    def run_behind(self, rows: Sequence[RunRow], chosen: Tensor, places: Sequence[int]) -> RunResult:
        with self._inference:
            starts, size = self._fill(rows)
            assert size is not None, "more rows than `max_behind`"
            num = len(rows)
            tokens = self._tables.token_ids[:num]
            if len(chosen) == num:
                tokens.copy_(chosen)
            else:
                torch.index_select(chosen, 0, _sent_places(self._going_on, places), out=tokens)
            self._captured.run(size, self._pass(size))
            features = self._features[:num] if self.feature_layers else None
            inputs = self._inputs(rows, starts, self._tables)
            return RunResult(self._logits[:num], features, inputs, self._tables.token_ids)

    def only(self, result: RunResult, places: Sequence[int]) -> RunResult:
        inputs, logits = result.inputs, result.logits
        if len(places) == inputs.num_tokens:
            return result
        assert logits is not None
        with self._inference:
            logits = logits.index_select(0, _sent_places(self._left, places))
        starts = [*places, inputs.num_tokens]
        return result._replace(logits=logits, inputs=inputs._replace(starts=starts, judged=list(places)))

    def _room_for_features(self) -> None:
        """The drafter that asks for features is known only after the runner: make room when it has asked."""
        if self.features_at is None and self.feature_layers:
            wanted = len(self.feature_layers) * self.hidden_size
            self._features = self.features_at = self._logits.new_empty((self._sizes.most, wanted))

    def _pass(self, size: Size) -> Callable[[], None]:
        """The whole pass of one size over the tables: tokens in, scores and features out."""

        def call() -> None:
            num = size.tokens
            features = self._features[:num] if self.feature_layers else None
            hidden = self._layers(self._tables, num, self._cut(size), features)
            self._head(hidden, self._logits[:num])

        return call

    def _layers(
        self, tables: PassTables, num_tokens: int, cut: AttentionPlan, features: Tensor | None
    ) -> Tensor:
        attention = tables.attention().first(num_tokens, cut.tiling.max_items)
        places = Places(tables.positions[:num_tokens], tables.slots[:num_tokens])
        x = F.embedding(tables.token_ids[:num_tokens], self.decoder.embedding)
        views = PassViews(places, attention, cut)
        return self._stack.run(x, views, self.pool, self.feature_layers, features, self._before)

    def _before(self, layer: int) -> None:
        if layer == _FIRST_LAYERS:
            self._captured.cut()

    def _run_large(self, inputs: PassInputs) -> RunResult:
        """A pass beyond the buckets, launch by launch, with results of its own."""
        num, cut = inputs.num_tokens, self._cut(self._sizes.beyond)
        features = None
        if self.feature_layers:
            features = self._logits.new_empty((num, len(self.feature_layers) * self.hidden_size))
        hidden = self._layers(self._large, num, cut, features)
        if not inputs.judged:
            return RunResult(None, features, inputs)
        return RunResult(self._head(hidden[self._on_device(inputs.judged)]), features, inputs)

    def _on_device(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, device=self.device)

    def with_own_features(self, result: RunResult) -> RunResult:
        if result.features is None or not self._is_overwritten(result.features):
            return result
        with self._inference:
            return result._replace(features=result.features.clone())

    def _is_overwritten(self, features: Tensor) -> bool:
        """Whether these lie where the next pass leaves its own."""
        return features.data_ptr() == self._features.data_ptr()

    def kept_features(self, result: RunResult, kept: Sequence[Sequence[int]]) -> list[Kept]:
        """One copy for all rows where the next pass overwrites them: those of large passes stay."""
        features, starts = result.features, result.inputs.starts
        if features is None:
            return [Kept(None)] * len(kept)
        with self._inference:
            stops = list(accumulate([len(own) for own in kept]))
            if stops[-1] == len(features):
                whole = features.clone() if self._is_overwritten(features) else features
            else:
                lines = [start + index for start, own in zip(starts, kept, strict=False) for index in own]
                whole = features.index_select(0, self._lines(lines))
        return [Kept(whole, range(stop - len(own), stop)) for own, stop in zip(kept, stops, strict=True)]

    def _lines(self, lines: Sequence[int]) -> Tensor:
        """Lines of a pass on the device, without waiting where there is room to send them from."""
        if len(lines) > self._kept.host.shape[1]:
            return self._on_device(lines)
        return _sent_places(self._kept, lines)

    def _move(self, inputs: PassInputs, kept: Sequence[Sequence[int]]) -> int:
        """Without waiting: a draft may be under way on the device."""
        src: list[int] = []
        dst: list[int] = []
        for start, own in zip(inputs.starts, kept, strict=False):
            if own[-1] >= len(own):
                for place, index in enumerate(own):
                    if index != place:
                        src.append(start + index)
                        dst.append(start + place)
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
        self, rows: Sequence[RunRow], known: Sequence[int] | None = None
    ) -> tuple[list[int], Size | None]:
        """Write the pass to the host's tables and send them; `known` as in `lay_pass`.

        Returns where its rows start, and its bucket, None where it has none.
        """
        if self._sent is not None:
            self._sent.synchronize()  # the copy of the pass before may still read them
        num_tokens = sum([len(row.pending) + row.tree.num_nodes for row in rows])
        tables = self._tables if num_tokens <= self._sizes.most else self._large
        laid = lay_pass(rows, tables, self._page_size, known)
        size = self._sizes.of(num_tokens, len(rows), laid.longest)
        tables.pad_tokens(num_tokens, (size or self._sizes.beyond).tokens)
        tables.lay_rows(laid.lines, self._cut(size or self._sizes.beyond).tiling)
        tables.push(with_pages=laid.has_moved)
        if self._sent is not None:
            self._sent.record()
        return laid.starts, size

    def _inputs(self, rows: Sequence[RunRow], starts: list[int], tables: PassTables) -> PassInputs:
        """The pass in the tables as the engine knows it: nothing that the device waits for."""
        slots = tables.host.slots[: starts[-1]].copy()
        return PassInputs(None, slots, starts, judged_places(rows, starts))


def _sent_places(numbers: Numbers, places: Sequence[int]) -> Tensor:
    """Places in a pass, sent without waiting for what is under way."""
    numbers.wait()
    numbers.host[0, : len(places)] = places
    numbers.push()
    return numbers.device[0, : len(places)]
