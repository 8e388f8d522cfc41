"""The DFlash drafter: a whole block of guesses in one pass, from the target's own hidden features.

Per request it keeps how far its context reaches and the features that wait behind that; they are turned into
keys and values when the request drafts again, all rows in one call. A block is [pending tokens, MASK ...]
right behind the context; guesses are read behind the last pending token, and each depth is a marginal. The
whole block is drafted even where fewer guesses are asked for, because drafting fewer masks than trained
changes the guesses. Embedding and head are the target's; does not know what is verified.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.draft.base import DraftRow, KeptTokens, PoolShape, Proposal, TargetFace, Unseen, Verified
from wager.draft.context import FeatureContext
from wager.draft.intake import Portion, pieces_of
from wager.draft.scores import HostTop, Span, best, noised, to_host
from wager.errors import ConfigError
from wager.kvcache.pool import KVPool, PageIds, slot_ids
from wager.nn import kernels
from wager.nn.batch import BlockBatch, BlockRow
from wager.nn.models.dflash import DFlash, check_pair
from wager.nn.noise import NoiseSource

if TYPE_CHECKING:
    from wager.draft.block_device import BlockDevice

MOST_AT_ONCE = 512
"""Tokens whose waiting features are read in at once on a device, unless one request has more."""
Int64Array = npt.NDArray[np.int64]
StartKey: TypeAlias = tuple[Hashable, int, tuple[int, ...]]
"""A request, how much of it is cached, and its pending tokens."""


@dataclass(frozen=True)
class BlockOptions:
    """How a block drafter is used.

    `known_tokens`: the most pending tokens it was trained with. `block_lengths`: shorter blocks it was
    trained with, used where they suffice. `max_waiting`: features of so many tokens may wait per request;
    past that they are ingested at once. That bounds their memory, and a prompt's features come in with the
    prompt instead of with the first draft, whose price would silence a request before it has won anything.
    On a device, where reading them in takes little time, more may wait.
    """

    known_tokens: int = 1
    block_lengths: tuple[int, ...] = ()
    ranks: int = 8
    max_waiting: int = 32
    kernels: str = "auto"
    """How passes run on a CUDA device: as the config field of that name says."""


class Job(NamedTuple):
    """One row of a draft: its place among the rows, the length of its block, the guesses read from it."""

    place: int
    row: DraftRow
    context_len: int
    pending: tuple[int, ...]
    length: int
    depth: int


class DeviceJob(NamedTuple):
    """A row that asks for guesses, how many of its tokens are in the cache, and those behind them."""

    row: DraftRow
    context_len: int
    pending: tuple[int, ...] = ()
    """Empty where only the device knows them."""


class BlockDrafter:
    """A loaded DFlash network with its context pool."""

    name = "block"
    uses_noise = True
    is_instant = False

    def __init__(
        self, net: DFlash, target: TargetFace, shape: PoolShape, options: BlockOptions | None = None
    ) -> None:
        """Raises ModelError naming what does not fit the target, ConfigError naming a bad option."""
        self.options = options or BlockOptions()
        check_pair(net.spec, target.hidden_size, target.num_layers, target.vocab_size)
        _check_options(self.options, net.spec.block_size)
        self.net, self.target, self.spec = net, target, net.spec
        self.feature_layers = net.spec.target_layer_ids
        self.pool = KVPool(net.pool_spec(shape.num_pages, shape.page_size))
        self._contexts: dict[Hashable, FeatureContext] = {}
        self.device = _make_device(net, target, self.pool, shape, self.options)
        self._started: dict[StartKey, int] = {}
        """The blocks of the latest draft on the device, by what they are for."""
        self._followed: dict[Hashable, int] = {}
        """The blocks of the latest draft that has followed a pass, by their requests."""
        whole = net.spec.block_size
        self._lengths = [whole] if self.device else sorted({*self.options.block_lengths, whole})

    def can_draft(self, row: DraftRow) -> bool:
        """Whether the pending tokens are as few as it was trained with and its context is whole."""
        context, pending = self._contexts.get(row.request_id), row.num_pending
        if not 1 <= pending <= self.options.known_tokens or pending >= self.spec.block_size:
            return False
        return (context.num_known if context else 0) == len(row.tokens) - pending

    def grade(self, row: DraftRow) -> str:
        return ""

    @torch.inference_mode()
    def draft(self, rows: Sequence[DraftRow], noise: NoiseSource) -> list[Proposal | None]:
        """First what waits for these rows, in one call; then one pass over all blocks."""
        jobs = self._jobs(rows)
        proposals: list[Proposal | None] = [None] * len(rows)
        if jobs and self.device is not None and self.device.fits(_asked(jobs)):
            blocks = self._launch(jobs, self.device)
            top, length = self.device.result(), self.spec.block_size
            for job, block in zip(jobs, blocks, strict=True):
                first = block * length + job.row.num_pending
                cut = slice(first, first + job.depth)
                proposals[job.place] = Proposal(top.token_ids[cut], top.logprobs[cut])
        elif jobs:
            self._ingest_for(jobs)
            top = self._guess(jobs, noise)
            start = 0
            for job in jobs:
                cut = slice(start, start + job.depth)
                proposals[job.place] = Proposal(top.token_ids[cut], top.logprobs[cut])
                start += job.depth
        return proposals

    def goes_on(self, row: DraftRow, num_stood: int) -> Sequence[int] | None:
        return None

    @torch.inference_mode()
    def start(self, rows: Sequence[DraftRow]) -> None:
        """On a device with kernels the pass is launched; nothing waits for it."""
        if self.device is not None:
            jobs = self._jobs(rows)
            if jobs and self.device.fits(_asked(jobs)):
                self._launch(jobs, self.device)

    def unseen(self, rows: Sequence[DraftRow]) -> Unseen | None:
        """On a device with kernels, where the draft has a block for every row."""
        jobs = self._jobs(rows) if self.device is not None else []
        if self.device is None or len(jobs) < len(rows) or not self.device.fits(_asked(jobs)):
            return None
        blocks, length = self._launch(jobs, self.device), self.spec.block_size
        lines = [block * length + job.row.num_pending for job, block in zip(jobs, blocks, strict=True)]
        return Unseen(self.device.top, lines, [job.depth for job in jobs])

    @torch.inference_mode()
    def follow(self, verified: Verified) -> Tensor | None:
        """On a device with kernels, where nothing waits to be ingested before this pass."""
        if self.device is None or not all(self._is_up_to_date(row) for row, *_ in verified.rows):
            return None
        self._started = {}
        self._followed = {row.request_id: block for block, (row, *_) in enumerate(verified.rows)}
        return self.device.follow(verified)

    def _is_up_to_date(self, row: DraftRow) -> bool:
        context = self._contexts.get(row.request_id)
        return context is not None and not context.num_waiting and self.can_draft(row)

    def confirm(self, request_id: Hashable, context_len: int, pending: int) -> None:
        self._context(request_id).watermark = context_len
        self._started[request_id, context_len, (pending,)] = self._followed[request_id]

    def _launch(self, jobs: Sequence[Job], device: BlockDevice) -> list[int]:
        """A draft for these jobs, unless the one under way holds them all; returns their blocks in it."""
        keys = [_key(job) for job in jobs]
        blocks = [self._started.get(key, -1) for key in keys]
        if min(blocks) >= 0:
            return blocks
        self._started = {}
        with torch.inference_mode():
            self._ingest_for(jobs)
            device.launch(_asked(jobs))
        self._started = {key: index for index, key in enumerate(keys)}
        return list(range(len(jobs)))

    def _ingest_for(self, jobs: Sequence[Job]) -> None:
        self._ingest([Portion(self._context(j.row.request_id), j.row.pages, j.context_len) for j in jobs])

    def keep(self, kept: Sequence[KeptTokens]) -> None:
        """Store features for later; a request with too many of them is brought up to date."""
        for item in kept:
            if item.features is None:
                continue
            context = self._context(item.request_id)
            if item.lines is not None:
                context.add_lines(item.start, item.features, item.lines)
            else:
                context.add(item.start, item.features)
        full = self._full(kept)
        if full:
            self._ingest(full)

    def _full(self, kept: Sequence[KeptTokens]) -> list[Portion]:
        """The requests among these of which too much waits.

        On a device that is asked of all together, but for those whose pages are shared next: as long as
        nobody drafts, reading features in is work for nothing. Then those of which most waits are brought up
        to date, as many as one pass takes.
        """
        known = [(item, self._context(item.request_id)) for item in kept]
        if self.device is None:
            most = self.options.max_waiting
            return [Portion(own, item.pages, own.num_known) for item, own in known if own.num_waiting > most]
        portions = [Portion(context, item.pages, context.num_known) for item, context in known]
        shared = [p for p, item in zip(portions, kept, strict=True) if item.to_be_shared]
        waiting = sum([context.num_waiting for context in self._contexts.values()])
        if shared or waiting <= self.device.max_waiting:
            return shared
        longest = sorted(portions, key=lambda portion: -portion.context.num_waiting)
        sums = accumulate(portion.context.num_waiting for portion in longest)
        return [p for p, total in zip(longest, sums, strict=True) if total <= MOST_AT_ONCE] or longest[:1]

    def settle(self, request_id: Hashable, pages: PageIds, num_tokens: int) -> bool:
        context = self._context(request_id)
        self._ingest([Portion(context, pages, min(num_tokens, context.num_known))])
        return context.watermark >= num_tokens

    def adopt(self, request_id: Hashable, num_tokens: int) -> None:
        self._drop_started(request_id)
        self._contexts[request_id] = FeatureContext(num_tokens)

    def relocate(self, source: PageIds, target: PageIds) -> None:
        self.pool.copy_pages(source, target)

    def forget(self, request_id: Hashable) -> None:
        self._drop_started(request_id)
        self._contexts.pop(request_id, None)

    def _drop_started(self, request_id: Hashable) -> None:
        """What was begun for this request is not what another of its name asks for."""
        for key in [key for key in self._started if key[0] == request_id]:
            del self._started[key]

    def describe(self) -> dict[str, object]:
        spec = self.spec
        return {
            "drafter": self.name,
            "block_size": spec.block_size,
            "block_lengths": list(self._lengths),
            "known_tokens": self.options.known_tokens,
            "ranks": self.options.ranks,
            "layers": spec.num_layers,
            "windows": list(spec.windows),
            "block_causal_in_sliding": spec.block_causal_in_sliding,
            "target_layer_ids": list(spec.target_layer_ids),
            "target_layer_ids_derived": spec.layer_ids_derived,
            "mask_token_id": spec.mask_token_id,
            "rope_theta": spec.rope.theta,
            "rope_type": spec.rope.type,
            "dtype": str(self.net.dtype).removeprefix("torch."),
            "weights": self.net.switch.wish.weights,
            "layout": str(self.net.layout),
            "context_bytes": self.pool.bytes,
        }

    def _context(self, request_id: Hashable) -> FeatureContext:
        context = self._contexts.get(request_id)
        if context is None:
            context = self._contexts[request_id] = FeatureContext(0)
        return context

    def _jobs(self, rows: Sequence[DraftRow]) -> list[Job]:
        """The rows that get guesses; where there are no plain passes, those of the device's alone."""
        jobs = [self._job(place, row) for place, row in enumerate(rows) if self.can_draft(row)]
        if self.device is None or self.net.has_plain_passes:
            return jobs
        return [job for job in jobs if self.device.fits(_asked([job]))][: self.device.max_rows]

    def _job(self, place: int, row: DraftRow) -> Job:
        pending, whole = row.num_pending, self.spec.block_size
        wanted = pending + row.depth if row.depth else whole
        length = next((length for length in self._lengths if length >= wanted), whole)
        context_len = len(row.tokens) - pending
        known = tuple(row.tokens[context_len:])
        return Job(place, row, context_len, known, length, min(wanted, length) - pending)

    @torch.inference_mode()
    def _ingest(self, portions: Sequence[Portion]) -> None:
        """Turn waiting features into context, all requests in one call; nothing changes if it fails."""
        portions = [portion for portion in portions if portion.stop > portion.context.watermark]
        if not portions:
            return
        if self.device is not None:
            self.device.ingest(pieces_of(portions, self.pool.spec.page_size))
            for context, _, stop in portions:
                context.advance(stop)
            return
        chunks = [chunk for context, _, stop in portions for chunk in context.before(stop)]
        features = chunks[0] if len(chunks) == 1 else torch.cat(chunks)
        if len(portions) == 1:
            context, pages, stop = portions[0]
            positions = torch.arange(context.watermark, stop, device=self.net.device)
            self.net.ingest(features, positions, self.pool.span(pages, context.watermark, stop), self.pool)
        else:
            self.net.ingest(features, *self._places(portions), self.pool)
        for context, _, stop in portions:
            context.advance(stop)

    def _places(self, portions: Sequence[Portion]) -> tuple[Tensor, Tensor]:
        """Positions and slots of the tokens of all portions."""
        size = self.pool.spec.page_size
        positions = [np.arange(context.watermark, stop) for context, _, stop in portions]
        slots = [slot_ids(pages, size, context.watermark, stop) for context, pages, stop in portions]
        both = np.stack((np.concatenate(positions), np.concatenate(slots)))
        on_device = torch.from_numpy(both).to(self.net.device)
        return on_device[0], on_device[1]

    def _guess(self, jobs: Sequence[Job], noise: NoiseSource) -> HostTop:
        """The candidates of all jobs, depth after depth, job after job."""
        batch = self._batch(jobs)
        hidden = self.net.forward(batch, self.pool)
        parts = []
        for job, block in zip(jobs, batch.rows, strict=True):
            first = block.start + job.row.num_pending
            parts.append(hidden[first : first + job.depth])
        chosen = parts[0] if len(parts) == 1 else torch.cat(parts)
        logits = self.target.rough_logits(chosen.to(batch.embeddings.dtype))
        spans = [Span(job.row.temperature, job.row.seed, len(job.row.tokens), job.depth) for job in jobs]
        return to_host(best(noised(logits, spans, noise), self.options.ranks, self.net.top))

    def _batch(self, jobs: Sequence[Job]) -> BlockBatch:
        stops = np.cumsum([job.length for job in jobs]).tolist()
        packed = np.full((2, stops[-1]), self.spec.mask_token_id, np.int64)
        blocks = []
        for job, stop in zip(jobs, stops, strict=True):
            start, row = stop - job.length, job.row
            packed[0, start : start + row.num_pending] = job.pending
            packed[1, start:stop] = np.arange(job.context_len, job.context_len + job.length)
            # Slots behind the cached tokens are the row's own: the pass may lay its block there.
            spare = len(row.pages) * self.pool.spec.page_size >= job.context_len + job.length
            blocks.append(BlockRow(start, stop, job.context_len, row.pages, spare))
        on_device = torch.from_numpy(packed).to(self.net.device)
        return BlockBatch(self.target.embed(on_device[0]), on_device[1], blocks)


def _key(job: Job) -> StartKey:
    """What a draft depends on, but for its temperature and seed, which are the request's own."""
    return job.row.request_id, job.context_len, job.pending


def _asked(jobs: Sequence[Job]) -> list[DeviceJob]:
    return [DeviceJob(job.row, job.context_len, job.pending) for job in jobs]


def _make_device(
    net: DFlash, target: TargetFace, pool: KVPool, shape: PoolShape, options: BlockOptions
) -> BlockDevice | None:
    """The device's part, where there are kernels and they know this kind of block."""
    if options.kernels == "off" or net.weights is None or not kernels.has_kernels(net.device):
        return None
    if not net.spec.sees_whole_block:
        return None
    from wager.draft.block_device import BlockDevice

    most = shape.max_context or shape.num_pages * shape.page_size
    return BlockDevice(net, target, pool, options.ranks, most, capture=options.kernels == "auto")


def _check_options(options: BlockOptions, block_size: int) -> None:
    if options.known_tokens < 1:
        raise ConfigError("known_tokens", options.known_tokens, "at least 1")
    if options.ranks < 1:
        raise ConfigError("ranks", options.ranks, "at least 1")
    if options.max_waiting < 0:
        raise ConfigError("max_waiting", options.max_waiting, "0 or more")
    if any(not 2 <= length <= block_size for length in options.block_lengths):
        raise ConfigError("block_lengths", options.block_lengths, f"lengths from 2 to {block_size}")
