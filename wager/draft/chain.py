"""Guesses from a small autoregressive model with the target's tokenizer, token by token, all rows together.

Its keys and values are in a pool of its own at the target's slots: token i of a row is at the row's i-th
slot. For each request `stored.py` records how many stored tokens are certain and which guesses follow them:
accepted guesses are reused and the others are overwritten. Tokens that came while it did not draft are read
when it drafts again, a long stretch in chunks. Guesses are stored behind the known tokens, so a chain ends
where the row's pages end. Knows nothing of the target but its vocabulary.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from wager.draft.base import Drafter, DraftRow, PoolShape, Proposal, TargetInterface
from wager.draft.scores import HostTop, Span, Top, best, noised, to_host
from wager.draft.stored import PageTexts, Stored
from wager.errors import ConfigError, ModelError
from wager.kvcache.pool import KVPool, PageIds, slot_ids
from wager.nn.batch import PassBatch, PassRow
from wager.nn.models.decoder import Decoder
from wager.nn.noise import NoiseSource


@dataclass(frozen=True)
class ChainOptions:
    """The sizes of a chain drafter's proposals and passes."""

    depth: int = 8
    """The most guesses of one proposal."""
    ranks: int = 4
    """The candidates at each depth."""
    chunk: int = 512
    """The most tokens that one pass reads when it catches up."""


class Job(NamedTuple):
    """One row that drafts."""

    place: int
    """Its index among the rows that were asked for."""
    row: DraftRow
    stored: Stored
    """What the pool holds of it."""
    depth: int
    """The number of guesses that its pages have room for."""


class Piece(NamedTuple):
    """Tokens start..stop-1 of a job's row, which one pass reads."""

    job: Job
    start: int
    stop: int


class ChainDrafter(Drafter):
    """A loaded decoder with its own pool."""

    name = "chain"
    uses_noise = True

    def __init__(
        self, model: Decoder, target: TargetInterface, shape: PoolShape, options: ChainOptions | None = None
    ) -> None:
        """Raises ModelError if its vocabulary is larger than the target's, ConfigError for a bad option."""
        self.options = options or ChainOptions()
        for name in ("depth", "ranks", "chunk"):
            if getattr(self.options, name) < 1:
                raise ConfigError(name, getattr(self.options, name), "at least 1")
        if model.spec.vocab_size > target.vocab_size:
            raise ModelError(
                f"drafter vocab_size = {model.spec.vocab_size}, but the target has {target.vocab_size}"
            )
        self.model, self.vocab_size = model, model.spec.vocab_size
        self.pool = KVPool(model.pool_spec(shape.num_pages, shape.page_size))
        self._is_narrower = self.vocab_size < target.vocab_size
        self._texts = PageTexts(shape.page_size)
        self._stored: dict[Hashable, Stored] = {}

    def can_propose(self, row: DraftRow) -> bool:
        """Whether pages and positions have room for the known tokens and a guess."""
        return row.num_pending >= 1 and self._depth(row) >= 1

    @torch.inference_mode()
    def propose(self, rows: Sequence[DraftRow], noise: NoiseSource) -> list[Proposal | None]:
        """Reads the tokens that it has not seen, then runs one pass per depth over the rows that go that
        deep.
        """
        jobs = [self._job(place, row) for place, row in enumerate(rows) if self.can_propose(row)]
        jobs = [job for job in jobs if self._can_read(job)]
        proposals: list[Proposal | None] = [None] * len(rows)
        if not jobs:
            return proposals
        # The deepest rows come first, so the rows that still draft are always the first ones.
        jobs.sort(key=lambda job: -job.depth)
        tops = self._extend(jobs, self._catch_up(jobs), noise)
        for order, job in enumerate(jobs):
            proposals[job.place] = _proposal(tops[: job.depth], order)
            guesses = [int(top.token_ids[order, 0]) for top in tops[: job.depth - 1]]
            job.stored.guesses = guesses
        return proposals

    def forget(self, request_id: Hashable) -> None:
        """Drops the request's record; a later request with its pages finds their contents by their keys."""
        self._stored.pop(request_id, None)

    def copy_pages(self, source: PageIds, target: PageIds) -> None:
        super().copy_pages(source, target)
        self._texts.copy(source, target)

    def networks(self) -> Sequence[Decoder]:
        return (self.model,)

    def pools(self) -> Sequence[KVPool]:
        return (self.pool,)

    def describe(self) -> dict[str, object]:
        return {
            "drafter": self.name,
            "model_type": self.model.spec.model_type,
            "depth": self.options.depth,
            "ranks": self.options.ranks,
            "layers": self.model.spec.num_layers,
            "hidden_size": self.model.spec.hidden_size,
            "vocab_size": self.vocab_size,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "layout": str(self.model.layout),
            "context_bytes": self.pool.bytes,
        }

    def _depth(self, row: DraftRow) -> int:
        """The number of guesses that fit: all but the last are stored behind the known tokens."""
        room = min(len(row.pages) * self.pool.spec.page_size, self.model.spec.max_position)
        return min(row.depth or self.options.depth, self.options.depth, room - len(row.tokens) + 1)

    def _job(self, place: int, row: DraftRow) -> Job:
        stored = self._stored.get(row.request_id)
        if stored is None:
            stored = self._stored[row.request_id] = self._texts.find(row.tokens, row.pages)
        stored.judge(row.tokens)
        return Job(place, row, stored, self._depth(row))

    def _can_read(self, job: Job) -> bool:
        """Whether the unseen tokens are in this model's vocabulary; if one is not, the request gets no
        drafts.

        NOTE: on a device an unknown id does not raise an error but breaks every later pass.
        """
        unseen = job.row.tokens[job.stored.certain :]
        return not self._is_narrower or max(unseen) < self.vocab_size

    def _catch_up(self, jobs: Sequence[Job]) -> Tensor:
        """Reads all unseen tokens; returns the hidden state of each job's last token, [jobs, hidden]."""
        while pieces := _early_pieces(jobs, self.options.chunk):
            self._feed(pieces)
        pieces = [Piece(job, job.stored.certain, len(job.row.tokens)) for job in jobs]
        hidden = self._feed(pieces)
        if len(hidden) == len(jobs):
            return hidden
        ends = np.cumsum([piece.stop - piece.start for piece in pieces]) - 1
        return hidden.index_select(0, torch.from_numpy(ends).to(hidden.device))

    def _feed(self, pieces: Sequence[Piece]) -> Tensor:
        """Runs one pass over known tokens, which are certain afterwards."""
        for job, start, stop in pieces:
            self._texts.overwrite(job.row.pages, start, stop)
        token_ids = [np.asarray(job.row.tokens[start:stop], np.int64) for job, start, stop in pieces]
        positions = [np.arange(start, stop) for _, start, stop in pieces]
        size = self.pool.spec.page_size
        slots = [slot_ids(job.row.pages, size, start, stop) for job, start, stop in pieces]
        packed = np.stack([np.concatenate(part) for part in (token_ids, positions, slots)])
        rows, at = [], 0
        for job, start, stop in pieces:
            rows.append(PassRow(at, at + stop - start, start, job.row.pages))
            at += stop - start
        on_device = torch.from_numpy(packed).to(self.model.device)
        hidden = self.model.forward(
            PassBatch(on_device[0], on_device[1], on_device[2], rows), self.pool
        ).hidden
        for job, start, stop in pieces:
            job.stored.certain = stop
            self._texts.record(job.stored, job.row.tokens, job.row.pages, start)
        return hidden

    def _extend(self, jobs: Sequence[Job], hidden: Tensor, noise: NoiseSource) -> list[HostTop]:
        """Returns the candidates of every depth, [jobs that deep, ranks] each, with one copy to the host."""
        tops = [self._rank(jobs, hidden, 1, noise)]
        steps = self._steps(jobs)
        for depth in range(2, jobs[0].depth + 1):
            active = [job for job in jobs if job.depth >= depth]
            token_ids = tops[-1].token_ids[: len(active), 0].contiguous()
            positions, slots = steps[depth - 2, :, : len(active)]
            rows = [
                PassRow(order, order + 1, len(job.row.tokens) + depth - 2, job.row.pages)
                for order, job in enumerate(active)
            ]
            hidden = self.model.forward(PassBatch(token_ids, positions, slots, rows), self.pool).hidden
            tops.append(self._rank(active, hidden, depth, noise))
        return _read_back(tops)

    def _rank(self, jobs: Sequence[Job], hidden: Tensor, depth: int, noise: NoiseSource) -> Top:
        """Returns the candidates of every job at one depth."""
        spans = [Span(job.row.temperature, job.row.seed, len(job.row.tokens) - 1 + depth, 1) for job in jobs]
        return best(noised(self.model.logits(hidden), spans, noise), self.options.ranks, self.model.top)

    def _steps(self, jobs: Sequence[Job]) -> Tensor:
        """Returns positions and slots of the stored guesses [depth - 1, 2, jobs]; unused ones are zero."""
        steps = np.zeros((jobs[0].depth - 1, 2, len(jobs)), np.int64)
        for order, job in enumerate(jobs):
            start, count = len(job.row.tokens), job.depth - 1
            self._texts.overwrite(job.row.pages, start, start + count)
            steps[:count, 0, order] = np.arange(start, start + count)
            steps[:count, 1, order] = slot_ids(job.row.pages, self.pool.spec.page_size, start, start + count)
        return torch.from_numpy(steps).to(self.model.device)


def _early_pieces(jobs: Sequence[Job], chunk: int) -> list[Piece]:
    """Returns up to `chunk` tokens to read before the last pass; none if the missing tokens fit in that pass.

    The last token of every job is left for the last pass, which needs the hidden states of all jobs together.
    """
    missing = [len(job.row.tokens) - job.stored.certain for job in jobs]
    if sum(missing) <= chunk:
        return []
    pieces, left = [], chunk
    for job, count in zip(jobs, missing, strict=True):
        take = min(count - 1, left)
        if take > 0:
            pieces.append(Piece(job, job.stored.certain, job.stored.certain + take))
            left -= take
    return pieces


def _read_back(tops: Sequence[Top]) -> list[HostTop]:
    """Copies the candidates of all depths from the device at once."""
    joined = to_host(
        Top(torch.cat([top.logprobs for top in tops]), torch.cat([top.token_ids for top in tops]))
    )
    ends = np.cumsum([len(top.token_ids) for top in tops])
    pairs = zip(np.split(joined.logprobs, ends[:-1]), np.split(joined.token_ids, ends[:-1]), strict=True)
    return [HostTop(logprobs, token_ids) for logprobs, token_ids in pairs]


def _proposal(tops: Sequence[HostTop], order: int) -> Proposal:
    token_ids = np.stack([top.token_ids[order] for top in tops])
    return Proposal(token_ids, np.stack([top.logprobs[order] for top in tops]), spine_only=True)
