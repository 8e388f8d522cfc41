"""The DFlash drafter: a whole block of guesses in one pass, from the target's own hidden features.

For each request it records how far its context reaches and keeps the features that wait behind that. They are
turned into keys and values when the request drafts again, for all rows in one call. A block is [pending
tokens, MASK ...] right behind the context. The guesses are read behind the last pending token, and the
candidates of each depth do not depend on those above. The whole block is drafted even if fewer guesses are
asked for, because drafting fewer masks than in training changes the guesses. Embedding and head are the
target's.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from wager.draft.base import Drafter, DraftRow, KeptTokens, PoolShape, Proposal, TargetInterface
from wager.draft.block_jobs import Job
from wager.draft.block_native import BlockNative
from wager.draft.context import FeatureContext
from wager.draft.feature_pieces import Portion, pieces_of
from wager.draft.scores import HostTop, Span, best, noised, to_host
from wager.errors import ConfigError, ModelError
from wager.kvcache.pool import KVPool, PageIds, slot_ids
from wager.nn.batch import BlockBatch, BlockRow
from wager.nn.kernels.support import pool_refusal, ranking_refusal
from wager.nn.models.dflash import DFlash, check_pair
from wager.nn.noise import NoiseSource

if TYPE_CHECKING:
    from wager.draft.block_prelaunch import BlockPrelaunch

log = logging.getLogger(__name__)

READ_IN_TOKENS = 512
"""Tokens whose waiting features are read in at once on a device, unless one request has more.

So many tokens of all requests take little longer than those of one, because their features lie together.
"""


@dataclass(frozen=True)
class BlockOptions:
    """How a block drafter is used."""

    known_tokens: int = 1
    """The most pending tokens in front of the masks, as in training."""
    block_lengths: tuple[int, ...] = ()
    """Shorter blocks that occurred in training; one is used where it is long enough."""
    ranks: int = 8
    """The candidates at each depth."""
    max_waiting: int = 256
    """Tokens of one request whose features may wait on a path without kernels; more are read in at once.

    That bounds their memory, and a prompt's features are read with the prompt: the first draft of a request
    would otherwise take so long that the policy would stop drafting for it.
    """
    kernels: str = "auto"
    """The config field of that name: how passes run on a CUDA device."""
    draft_vocab: tuple[int, ...] = ()
    """The tokens among which native passes look for guesses; () means all. A draft takes less time with the
    most frequent ones only, and hardly loses a guess."""


class BlockDrafter(Drafter):
    """A loaded DFlash network with its context pool."""

    name = "block"
    uses_noise = True
    device: BlockPrelaunch | None

    def __init__(
        self, net: DFlash, target: TargetInterface, shape: PoolShape, options: BlockOptions | None = None
    ) -> None:
        """Raises ModelError naming what does not fit the target, ConfigError naming a bad option."""
        self.options = options or BlockOptions()
        check_pair(net.spec, target.hidden_size, target.num_layers, target.vocab_size)
        _check_options(self.options, net.spec.block_size)
        self.net, self.target, self.spec = net, target, net.spec
        self.feature_layers = net.spec.target_layer_ids
        self.pool = KVPool(net.pool_spec(shape.num_pages, shape.page_size))
        self._contexts: dict[Hashable, FeatureContext] = {}
        self._shares_pages = False
        """Whether the engine shares pages: then all features have to be read in when a request ends."""
        self.kernel_refusal = self._find_kernel_refusal()
        """The reason why the device's kernels do not run the drafts; empty if they do or there are none."""
        self.device = None if self._lacks_kernels else _make_device(self, shape)
        self._native: BlockNative | None = None
        whole = net.spec.block_size
        self._lengths = [whole] if self.device else sorted({*self.options.block_lengths, whole})

    @property
    def native(self) -> BlockNative | None:
        net = self.net.native
        if self._native is None and net is not None:
            head = self.target.draft_head(self.options.draft_vocab)
            self._native = None if head is None else BlockNative(self, net, head)
        return self._native

    @property
    def _lacks_kernels(self) -> bool:
        return self.options.kernels == "off" or self.net.weights is None or bool(self.kernel_refusal)

    def _find_kernel_refusal(self) -> str:
        """Looks for what the kernels cannot do here; raises ModelError if the drafter has no other passes."""
        if self.options.kernels == "off":
            return ""
        if self.net.weights is None:
            return self.net.kernel_refusal
        reason = ranking_refusal(self.options.ranks, self.target.vocab_size) or pool_refusal(
            self.pool.num_slots, self.spec.head_dim
        )
        if reason and not self.net.has_plain_passes:
            raise ModelError(f"drafter weights in few bits need kernels: {reason}")
        if reason:
            log.warning("the block drafter runs by plain torch: %s", reason)
        return reason

    def can_propose(self, row: DraftRow) -> bool:
        """Whether there are as few pending tokens as in training, and the context has no gap."""
        context, pending = self._contexts.get(row.request_id), row.num_pending
        if not 1 <= pending <= self.options.known_tokens or pending >= self.spec.block_size:
            return False
        return (context.num_known if context else 0) == len(row.tokens) - pending

    @torch.inference_mode()
    def propose(self, rows: Sequence[DraftRow], noise: NoiseSource) -> list[Proposal | None]:
        """Reads in the features that wait for these rows, in one call, then runs one pass over all blocks."""
        jobs = self.jobs(rows)
        proposals: list[Proposal | None] = [None] * len(rows)
        if not jobs:
            return proposals
        by_kernels = self.device is not None and self.device.fits(jobs)
        found = (
            self.device.propose(jobs) if self.device and by_kernels else self._propose_plainly(jobs, noise)
        )
        for job, proposal in zip(jobs, found, strict=True):
            proposals[job.place] = proposal
        return proposals

    def _propose_plainly(self, jobs: Sequence[Job], noise: NoiseSource) -> list[Proposal]:
        """By plain torch or native passes."""
        self.read_in_context(jobs)
        top = self._guess(jobs, noise)
        stops = list(accumulate(job.depth for job in jobs))
        cuts = [slice(stop - job.depth, stop) for job, stop in zip(jobs, stops, strict=True)]
        return [Proposal(top.token_ids[cut], top.logprobs[cut]) for cut in cuts]

    def keep(self, kept: Sequence[KeptTokens]) -> None:
        """Stores features for later; if too many wait, some of them are read in now."""
        for item in kept:
            if item.features is None:
                continue
            context = self.context(item.request_id)
            if item.lines is not None:
                context.add_lines(item.start, item.features, item.lines)
            else:
                context.add(item.start, item.features)
        due = self._due(kept)
        if due:
            self._read_in(due)

    def _due(self, kept: Sequence[KeptTokens]) -> list[Portion]:
        """Returns the waiting features of these requests that should be read in now.

        Without kernels each request has a limit. On a device there is one limit for all requests together,
        because reading features in is wasted work as long as a request does not draft, unless its pages are
        shared when it ends. If the limit is exceeded, the requests with the most waiting features are served,
        as many as one pass takes. Requests whose pages are shared next are always served.
        """
        known = [(item, self.context(item.request_id)) for item in kept]
        if self.device is None:
            limit = self.options.max_waiting
            return [Portion(own, item.pages, own.num_known) for item, own in known if own.num_waiting > limit]
        portions = [Portion(context, item.pages, context.num_known) for item, context in known]
        shared = [p for p, item in zip(portions, kept, strict=True) if item.to_be_shared]
        self._shares_pages = self._shares_pages or bool(shared)
        waiting = sum([context.num_waiting for context in self._contexts.values()])
        limit = READ_IN_TOKENS if self._shares_pages else self.device.max_waiting
        if shared or waiting <= min(limit, self.device.max_waiting):
            return shared
        longest = sorted(portions, key=lambda portion: -portion.context.num_waiting)
        sums = accumulate(portion.context.num_waiting for portion in longest)
        return [p for p, total in zip(longest, sums, strict=True) if total <= READ_IN_TOKENS] or longest[:1]

    def forget(self, request_id: Hashable) -> None:
        if self.device is not None:
            self.device.forget(request_id)
        self._contexts.pop(request_id, None)

    def adopt(self, request_id: Hashable, num_tokens: int) -> None:
        """The request's context begins with what the shared pages hold."""
        self.forget(request_id)
        self._contexts[request_id] = FeatureContext(num_tokens)

    def prepare_sharing(self, request_id: Hashable, pages: PageIds, num_tokens: int) -> bool:
        """Reads in the features of these tokens, so that their pages hold the whole context."""
        context = self.context(request_id)
        self._read_in([Portion(context, pages, min(num_tokens, context.num_known))])
        return context.watermark >= num_tokens

    def networks(self) -> Sequence[DFlash]:
        return (self.net,)

    def pools(self) -> Sequence[KVPool]:
        return (self.pool,)

    def describe(self) -> dict[str, object]:
        spec = self.spec
        return {
            "drafter": self.name,
            "block_size": spec.block_size,
            "block_lengths": list(self._lengths),
            "known_tokens": self.options.known_tokens,
            "ranks": self.options.ranks,
            **({"draft_vocab": len(self.options.draft_vocab)} if self.options.draft_vocab else {}),
            "layers": spec.num_layers,
            "windows": list(spec.windows),
            "block_causal_in_sliding": spec.block_causal_in_sliding,
            "target_layer_ids": list(spec.target_layer_ids),
            "target_layer_ids_derived": spec.layer_ids_derived,
            "mask_token_id": spec.mask_token_id,
            "rope_theta": spec.rope.theta,
            "rope_type": spec.rope.type,
            "dtype": str(self.net.dtype).removeprefix("torch."),
            "weights": self.net.native_loader.options.weights,
            "layout": str(self.net.layout),
            "context_bytes": self.pool.bytes,
            **({"kernel_refusal": self.kernel_refusal} if self.kernel_refusal else {}),
        }

    # -- for block_prelaunch.py as well

    def jobs(self, rows: Sequence[DraftRow]) -> list[Job]:
        """Returns the rows that get a block; if narrow weights have no plain passes, those that fit the
        device.
        """
        jobs = [self._job(place, row) for place, row in enumerate(rows) if self.can_propose(row)]
        if self.device is None or self.net.has_plain_passes:
            return jobs
        return [job for job in jobs if self.device.fits([job])][: self.device.max_rows]

    def context(self, request_id: Hashable) -> FeatureContext:
        """Returns the request's context, which is empty at first."""
        context = self._contexts.get(request_id)
        if context is None:
            context = self._contexts[request_id] = FeatureContext(0)
        return context

    def is_up_to_date(self, row: DraftRow) -> bool:
        """Whether the row can draft and none of its features wait."""
        context = self._contexts.get(row.request_id)
        return context is not None and not context.num_waiting and self.can_propose(row)

    def read_in_context(self, jobs: Sequence[Job]) -> None:
        """Turns the waiting features of these rows into context."""
        self._read_in(
            [Portion(self.context(job.row.request_id), job.row.pages, job.context_len) for job in jobs]
        )

    def _job(self, place: int, row: DraftRow) -> Job:
        pending, whole = row.num_pending, self.spec.block_size
        wanted = pending + row.depth if row.depth else whole
        length = next((length for length in self._lengths if length >= wanted), whole)
        context_len = len(row.tokens) - pending
        known = tuple(row.tokens[context_len:])
        return Job(place, row, context_len, known, length, min(wanted, length) - pending)

    @torch.inference_mode()
    def _read_in(self, portions: Sequence[Portion]) -> None:
        """Turns waiting features into context, all requests in one call; nothing changes if it fails."""
        portions = [portion for portion in portions if portion.stop > portion.context.watermark]
        if not portions:
            return
        if self.device is not None:
            self.device.kernels.ingest(pieces_of(portions, self.pool.spec.page_size))
        else:
            self._read_in_plainly(portions)
        for context, _, stop in portions:
            context.advance(stop)

    def _read_in_plainly(self, portions: Sequence[Portion]) -> None:
        chunks = [chunk for context, _, stop in portions for chunk in context.before(stop)]
        features = chunks[0] if len(chunks) == 1 else torch.cat(chunks)
        if len(portions) == 1:
            context, pages, stop = portions[0]
            positions = torch.arange(context.watermark, stop, device=self.net.device)
            self.net.ingest(features, positions, self.pool.span(pages, context.watermark, stop), self.pool)
        else:
            self.net.ingest(features, *self._places(portions), self.pool)

    def _places(self, portions: Sequence[Portion]) -> tuple[Tensor, Tensor]:
        """Returns positions and slots of the tokens of all portions."""
        size = self.pool.spec.page_size
        positions = [np.arange(context.watermark, stop) for context, _, stop in portions]
        slots = [slot_ids(pages, size, context.watermark, stop) for context, pages, stop in portions]
        both = np.stack((np.concatenate(positions), np.concatenate(slots)))
        on_device = torch.from_numpy(both).to(self.net.device)
        return on_device[0], on_device[1]

    def _guess(self, jobs: Sequence[Job], noise: NoiseSource) -> HostTop:
        """Returns the candidates of all jobs: those of the first job by depth, then those of the next."""
        batch = self._batch(jobs)
        hidden = self.net.forward(batch, self.pool)
        parts = []
        for job, block in zip(jobs, batch.rows, strict=True):
            first = block.start + job.row.num_pending
            parts.append(hidden[first : first + job.depth])
        chosen = parts[0] if len(parts) == 1 else torch.cat(parts)
        spans = [Span(job.row.temperature, job.row.seed, len(job.row.tokens), job.depth) for job in jobs]
        native = self.native
        if native is not None:
            return native.candidates(chosen, spans, self.options.ranks)
        logits = self.target.logits(chosen.to(batch.embeddings.dtype))
        return to_host(best(noised(logits, spans, noise), self.options.ranks, self.net.top))

    def _batch(self, jobs: Sequence[Job]) -> BlockBatch:
        stops = np.cumsum([job.length for job in jobs]).tolist()
        packed = np.full((2, stops[-1]), self.spec.mask_token_id, np.int64)
        blocks = []
        for job, stop in zip(jobs, stops, strict=True):
            start, row = stop - job.length, job.row
            packed[0, start : start + row.num_pending] = job.pending
            packed[1, start:stop] = np.arange(job.context_len, job.context_len + job.length)
            # Slots behind the cached tokens belong to the row alone: the pass may store its block there.
            spare = len(row.pages) * self.pool.spec.page_size >= job.context_len + job.length
            blocks.append(BlockRow(start, stop, job.context_len, row.pages, spare))
        on_device = torch.from_numpy(packed).to(self.net.device)
        return BlockBatch(self.target.embed(on_device[0]), on_device[1], blocks)


def _make_device(drafter: BlockDrafter, shape: PoolShape) -> BlockPrelaunch:
    """Returns the device part. Precondition: the kernels can run this drafter."""
    net, options = drafter.net, drafter.options
    from wager.draft.block_kernels import BlockKernels
    from wager.draft.block_prelaunch import BlockPrelaunch

    max_context = shape.max_context or shape.num_pages * shape.page_size
    capture = options.kernels == "auto"
    kernels = BlockKernels(net, drafter.target, drafter.pool, options.ranks, max_context, capture=capture)
    return BlockPrelaunch(drafter, kernels)


def _check_options(options: BlockOptions, block_size: int) -> None:
    if options.known_tokens < 1:
        raise ConfigError("known_tokens", options.known_tokens, "at least 1")
    if options.ranks < 1:
        raise ConfigError("ranks", options.ranks, "at least 1")
    if options.max_waiting < 0:
        raise ConfigError("max_waiting", options.max_waiting, "0 or more")
    if any(not 2 <= length <= block_size for length in options.block_lengths):
        raise ConfigError("block_lengths", options.block_lengths, f"lengths from 2 to {block_size}")
