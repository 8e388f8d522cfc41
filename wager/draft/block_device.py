"""A block drafter's passes on a CUDA device: context in, candidates out, by captured graphs.

The same as `block.py` does with plain torch, over tables of fixed place: features are turned into context by
one graph per number of tokens, blocks into the best candidates of every depth by one graph per number of
rows, scaling, noise and ranking included. `launch` returns at once and `result` waits, so that a draft can be
under way while tokens are handed out. Blocks have their whole length: on such a device fewer masks are not
cheaper. Made by `block.py`; does not know which guesses are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.draft.base import TargetFace, Verified
from wager.draft.block import DeviceJob
from wager.draft.intake import Piece, gather, laid_out, portions_of
from wager.draft.scores import HostTop
from wager.kvcache.pool import KVPool
from wager.nn.kernels.advance import HEADER, KEPT_SIZES, MAX_KEPT, MAX_NODES, Block, Header, Walk, advance
from wager.nn.kernels.attention import AttentionPlan
from wager.nn.kernels.capture import Captured
from wager.nn.kernels.cuts import PassSize, plan_pass
from wager.nn.kernels.device import Machine, machine_of
from wager.nn.kernels.narrow_layers import linear_of
from wager.nn.kernels.norm import Norm
from wager.nn.kernels.numbers import Numbers, signed
from wager.nn.kernels.passes import ContextEntry, Frame, KernelStack, PassViews, matrix
from wager.nn.kernels.qkv import Places, Turn, rotation_table
from wager.nn.kernels.tables import PassTables, TableLimits
from wager.nn.kernels.top import Heat, top_logprobs
from wager.nn.kernels.ways import Role
from wager.nn.models.dflash import DFlash, kernel_context, key_norms

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
MAX_ROWS = ROW_BUCKETS[-1]
"""Rows of one pass; more are drafted in several."""
INGEST_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
GATHER_BUCKETS = tuple(bucket for bucket in INGEST_BUCKETS if bucket >= KEPT_SIZES[0])
WAITING_BYTES = 1 << 30
WAITING_SHARE = 0.02
"""Features that may wait for their requests to draft: bytes, and on a GPU the part of its memory."""
MAX_WALKED = 1024
"""Nodes of all rows whose verdicts a draft can follow on the device."""


class BlockDevice:
    """The device's part of a block drafter."""

    max_rows = MAX_ROWS

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
        table, machine = rotation_table(spec.rope, reach, net.dtype, device), machine_of(device)
        self._stack = KernelStack(
            weights.layers, weights.norm, Frame(spec.heads, spec.eps, spec.windows, table), machine
        )
        norms = key_norms(spec, weights.layers).flatten(0, 1).contiguous()
        self._entry = ContextEntry(
            matrix(linear_of(weights.fc), Role.SUMMED, machine),
            Norm(weights.hidden_norm, spec.eps),
            matrix(kernel_context(spec, weights), Role.SUMMED, machine),
            Turn(spec.heads, norms, spec.eps, table),
            machine.launch,
        )
        self._captured = Captured(device, enabled=capture)
        self._is_cuda = device.type == "cuda"
        self._cuts = {rows: self._cut(rows, machine) for rows in ROW_BUCKETS}
        items = max(plan.tiling.max_items for plan in self._cuts.values())
        size, pages = MAX_ROWS * spec.block_size, -(-reach // pool.spec.page_size)
        words = -(-spec.block_size // 64)
        self._tables = PassTables(TableLimits(size, MAX_ROWS, pages, MAX_ROWS, items, words), device)
        self._tables.host.masks[:] = _ones(spec.block_size, words)
        self._heat = Numbers(2, size, device)
        self._heated: list[tuple[int, float]] = []
        """Seed and temperature of each row, as they lie on the device."""
        self._steps = np.arange(spec.block_size)
        self._places = Numbers(3, INGEST_BUCKETS[-1], device)
        self.max_waiting = _room_for_waiting(device) // (spec.feature_size * net.dtype.itemsize)
        """Tokens whose features may wait, of all requests together."""
        self._walk = Numbers(2, MAX_WALKED, device)
        self.source: Tensor | None = None
        """Where the target's passes leave their features: set by whoever makes both ready."""
        self._features = torch.zeros(INGEST_BUCKETS[-1], spec.feature_size, dtype=net.dtype, device=device)
        self.top = torch.zeros(size, 2, ranks, dtype=torch.float32, device=device)
        """Log-probabilities and tokens of the candidates behind every token of the latest draft."""
        self._host_top = torch.zeros(size, 2, ranks, dtype=torch.float32, pin_memory=self._is_cuda)
        self._host_view = self._host_top.numpy()
        self._count = 0
        self._done = torch.cuda.Event() if self._is_cuda else None

    def _cut(self, rows: int, machine: Machine) -> AttentionPlan:
        spec, size = self.net.spec, PassSize(rows, rows * self.net.spec.block_size)
        return plan_pass(spec.heads, size, self.pool.spec, machine, self.net.device)

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
            if self.source is not None:
                for tokens in reversed(GATHER_BUCKETS):
                    self._captured.capture(("gather", tokens), self._gather_pass(self.source, tokens))
        if self._is_cuda:
            for kept in KEPT_SIZES:  # to compile it
                self._advance(1, kept, torch.zeros_like(self._walk.device[0]), self._tables.token_ids)
        return len(self._captured)

    # -- context

    def ingest(self, pieces: Sequence[Piece]) -> None:
        """Features of tokens to their slots, as many at once as a graph takes."""
        # Those of one tensor side by side: they are gathered in one go.
        ordered = sorted(pieces, key=lambda piece: id(piece.features))
        for portion in portions_of(ordered, INGEST_BUCKETS[-1]):
            laid = laid_out(portion)
            count = laid.shape[1]
            self._places.wait()
            host = self._places.host
            host[:, :count] = laid
            host[1, count:] = -1
            self._places.push()
            gather(portion, self._places.device[2], self._features)
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
            len(row.pages) * size >= context_len + length for row, context_len, _ in jobs
        )

    def launch(self, jobs: Sequence[DeviceJob]) -> None:
        """Begin a draft. Precondition: `fits`, and the contexts are ingested."""
        if self._done is not None:
            self._done.synchronize()  # tables and results of the draft before are read until then
        rows = next(bucket for bucket in ROW_BUCKETS if bucket >= len(jobs))
        self._fill(jobs, rows)
        self._run_draft(rows, len(jobs))

    def _run_draft(self, rows: int, num_jobs: int) -> None:
        self._captured.run(("draft", rows), self._draft_pass(rows))
        self._count = count = num_jobs * self.net.spec.block_size
        self._host_top[:count].copy_(self.top[:count], non_blocking=True)
        if self._done is not None:
            self._done.record()

    def follow(self, verified: Verified) -> Tensor | None:
        """Begin a draft behind a pass whose verdict is not known yet; None where there is no room for it.

        Ingests what the verdict keeps of each row and drafts behind it; returns what that is, on the device.
        Precondition: everything before is ingested.
        """
        asked, source = verified.rows, self.source
        most = max([row.num_pending + max_depth for row, _, max_depth, _, _ in asked])
        if source is None or most > MAX_KEPT or len(asked) > MAX_ROWS:
            return None
        rows = next(bucket for bucket in ROW_BUCKETS if bucket >= len(asked))
        kept = next(size for size in KEPT_SIZES if size >= most)
        sizes = [len(row.parents) for row in asked]
        jobs = [DeviceJob(own.row, own.context_len + own.row.num_pending + own.max_depth) for own in asked]
        if max(sizes) > MAX_NODES or sum(sizes) > MAX_WALKED or rows * kept > INGEST_BUCKETS[-1]:
            return None
        if not self.fits(jobs):
            return None
        if self._done is not None:
            self._done.synchronize()
        self._fill(jobs, rows)
        self._lay_walk(verified, rows)
        self._advance(rows, kept, verified.chosen, verified.token_ids)
        self._captured.run(("gather", rows * kept), self._gather_pass(source, rows * kept))
        self._run_draft(rows, len(asked))
        return self._kept_places(rows, kept)[:, : len(asked)]

    def _lay_walk(self, verified: Verified, rows: int) -> None:
        """Send the trees of a pass; nobody is at the places behind its rows."""
        headers, parents = list[Header](), list[int]()
        for own in verified.rows:
            num_nodes, num_pending = len(own.parents), own.row.num_pending
            headers.append(
                Header(
                    num_nodes, num_pending, own.context_len, own.first_token, own.first_choice, len(parents)
                )
            )
            parents += own.parents
        host = self._walk.host
        host[0, : len(headers) * HEADER] = np.array(headers, np.int64).ravel()
        host[0, len(headers) * HEADER : rows * HEADER] = 0
        host[1, : len(parents)] = parents
        self._walk.push()

    def _advance(self, rows: int, kept: int, chosen: Tensor, token_ids: Tensor) -> None:
        """Along the trees in `_walk`, by the target's choices in a pass of these tokens."""
        spec = self.net.spec
        block = Block(spec.mask_token_id, spec.block_size, self.pool.spec.page_size)
        walk = Walk(chosen, token_ids, self._walk.device)
        advance(walk, rows, self._tables, self._kept_places(rows, kept), block)

    def _kept_places(self, rows: int, kept: int) -> Tensor:
        """[3, rows, kept], where `advance` writes what stands."""
        return self._places.device[:, : rows * kept].view(3, rows, kept)

    def _gather_pass(self, source: Tensor, count: int) -> Callable[[], None]:
        """Context from the target's own features, at the places that `advance` has written."""

        def call() -> None:
            places = self._places.device[:, :count]
            features = source.index_select(0, places[2])
            self._entry.run(features, Places(places[0], places[1]), self.pool)

        return call

    def result(self) -> HostTop:
        """The candidates behind every token of the latest draft, block after block."""
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
            views = PassViews(Places(positions, tables.slots[:num]), attention, plan)
            logits = self.target.logits(self._stack.run(x, views, self.pool))
            heat = Heat(self._heat.floats(1, num), self._heat.device[0, :num], positions)
            top = top_logprobs(logits, self.ranks, heat)
            self.top[:num, 0].copy_(top.logprobs)
            self.top[:num, 1].copy_(top.token_ids)

        return call

    def _fill(self, jobs: Sequence[DeviceJob], rows: int) -> None:
        """Write and send the tables of a draft."""
        length, size = self.net.spec.block_size, self.pool.spec.page_size
        tables, count, moved = self._tables, len(jobs), False
        host, num, width = tables.host, count * length, tables.limits.max_pages
        for index, (row, _, _) in enumerate(jobs):
            pages = row.pages
            own = pages if isinstance(pages, list) and len(pages) <= width else list(pages[:width])
            moved = tables.lay_pages(index, own) or moved
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
        tables.lay_rows(lines, self._cuts[rows].tiling)
        tables.push(with_pages=moved)
        self._warm_up(jobs)

    def _warm_up(self, jobs: Sequence[DeviceJob]) -> None:
        """Seed and temperature of every token, sent where they are not there already."""
        asked = [(job.row.seed, job.row.temperature) for job in jobs]
        if asked == self._heated:
            return
        length, self._heated = self.net.spec.block_size, asked
        self._heat.wait()
        num, seeds = len(jobs) * length, [signed(seed) for seed, _ in asked]
        self._heat.host[0, :num] = np.repeat(np.array(seeds, np.int64), length)
        warmth = np.array([temperature for _, temperature in asked], np.float32)
        self._heat.host_floats(1)[:num] = np.repeat(warmth, length)
        self._heat.push()


def _room_for_waiting(device: torch.device) -> int:
    if device.type != "cuda":
        return WAITING_BYTES
    return int(WAITING_SHARE * torch.cuda.get_device_properties(device).total_memory)


def _ones(block_size: int, words: int) -> npt.NDArray[np.int64]:
    """The mask of a block whose tokens all see each other."""
    raw = ((1 << block_size) - 1).to_bytes(8 * words, "little")
    return np.frombuffer(raw, "<i8").astype(np.int64)
