"""Guesses from a small autoregressive model with the target's tokenizer, token by token, all rows together.

Its K/V lie in a pool of its own at the target's slots: token i of a row at the row's i-th slot. Per request
it knows how many stored tokens are certain and which guesses lie behind them (`stored.py`): those that came
true are reused, the rest is overwritten. Tokens it has not seen are caught up on when it drafts again, long
stretches in chunks. Guesses are stored behind the known tokens, so where a row's pages end, so does its
chain. Knows nothing of the target but its vocabulary.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from wager.draft.base import DraftRow, HostDrafter, PoolShape, Proposal, TargetFace
from wager.draft.scores import HostTop, Span, Top, best, noised, to_host
from wager.draft.stored import PageTexts, Stored
from wager.errors import ConfigError, ModelError
from wager.kvcache.pool import KVPool, PageIds, slot_ids
from wager.nn.batch import PassBatch, PassRow
from wager.nn.models.decoder import Decoder
from wager.nn.noise import NoiseSource


@dataclass(frozen=True)
class ChainOptions:
    """`depth` guesses with `ranks` candidates each; at most `chunk` tokens are caught up on in one pass."""

    depth: int = 8
    ranks: int = 4
    chunk: int = 512


class Job(NamedTuple):
    """One row that drafts: its place among the rows, what is stored for it, the guesses there is room for."""

    place: int
    row: DraftRow
    stored: Stored
    depth: int


class Piece(NamedTuple):
    """Tokens start..stop-1 of a job's row, to be fed in one pass."""

    job: Job
    start: int
    stop: int


class ChainDrafter(HostDrafter):
    """A loaded decoder with its own pool."""

    name = "chain"
    feature_layers: tuple[int, ...] = ()
    uses_noise = True

    def __init__(
        self, model: Decoder, target: TargetFace, shape: PoolShape, options: ChainOptions | None = None
    ) -> None:
        """Raises ModelError when the model knows words the target does not, ConfigError for a bad option."""
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

    def can_draft(self, row: DraftRow) -> bool:
        """Whether the pages have room for the known tokens, and the model's positions for a guess."""
        return row.num_pending >= 1 and self._depth(row) >= 1

    @torch.inference_mode()
    def draft(self, rows: Sequence[DraftRow], noise: NoiseSource) -> list[Proposal | None]:
        """Catch up on unseen tokens, then one pass per depth over the rows that go that deep."""
        jobs = [self._job(place, row) for place, row in enumerate(rows) if self.can_draft(row)]
        jobs = [job for job in jobs if self._can_read(job)]
        proposals: list[Proposal | None] = [None] * len(rows)
        if not jobs:
            return proposals
        # The deepest first: the rows still drafting are then always the first ones.
        jobs.sort(key=lambda job: -job.depth)
        tops = self._extend(jobs, self._catch_up(jobs), noise)
        for order, job in enumerate(jobs):
            proposals[job.place] = _proposal(tops[: job.depth], order)
            guesses = [int(top.token_ids[order, 0]) for top in tops[: job.depth - 1]]
            job.stored.guesses = guesses
        return proposals

    def settle(self, request_id: Hashable, pages: PageIds, num_tokens: int) -> bool:
        """Always: whoever starts from these pages finds out what they hold, and catches up on the rest."""
        return True

    def adopt(self, request_id: Hashable, num_tokens: int) -> None:
        """What its pages hold is looked up when it drafts: they may be the target's alone."""
        self._stored.pop(request_id, None)

    def relocate(self, source: PageIds, target: PageIds) -> None:
        self.pool.copy_pages(source, target)
        self._texts.copy(source, target)

    def forget(self, request_id: Hashable) -> None:
        self._stored.pop(request_id, None)

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
        """Guesses there is room for: all but the last are stored behind the known tokens."""
        room = min(len(row.pages) * self.pool.spec.page_size, self.model.spec.max_position)
        return min(row.depth or self.options.depth, self.options.depth, room - len(row.tokens) + 1)

    def _job(self, place: int, row: DraftRow) -> Job:
        stored = self._stored.get(row.request_id)
        if stored is None:
            stored = self._stored[row.request_id] = self._texts.find(row.tokens, row.pages)
        stored.judge(row.tokens)
        return Job(place, row, stored, self._depth(row))

    def _can_read(self, job: Job) -> bool:
        """Whether the unseen tokens are words of this model; one that is not ends the drafts of its request.

        NOTE: on a device an unknown id would not raise but break every pass after it.
        """
        unseen = job.row.tokens[job.stored.certain :]
        return not self._is_narrower or max(unseen) < self.vocab_size

    def _catch_up(self, jobs: Sequence[Job]) -> Tensor:
        """Feed every job's unseen tokens; the hidden state of each one's last token, [jobs, hidden]."""
        while pieces := _early_pieces(jobs, self.options.chunk):
            self._feed(pieces)
        pieces = [Piece(job, job.stored.certain, len(job.row.tokens)) for job in jobs]
        hidden = self._feed(pieces)
        if len(hidden) == len(jobs):
            return hidden
        ends = np.cumsum([piece.stop - piece.start for piece in pieces]) - 1
        return hidden.index_select(0, torch.from_numpy(ends).to(hidden.device))

    def _feed(self, pieces: Sequence[Piece]) -> Tensor:
        """One pass over known tokens, which are certain from then on."""
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
        """The candidates of every depth, [jobs that deep, ranks] each; read back once, at the end."""
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
        """The candidates at one depth of every job."""
        spans = [Span(job.row.temperature, job.row.seed, len(job.row.tokens) - 1 + depth, 1) for job in jobs]
        return best(noised(self.model.logits(hidden), spans, noise), self.options.ranks, self.model.top)

    def _steps(self, jobs: Sequence[Job]) -> Tensor:
        """Positions and slots [depth - 1, 2, jobs] where guesses will be stored; zero where none is."""
        steps = np.zeros((jobs[0].depth - 1, 2, len(jobs)), np.int64)
        for order, job in enumerate(jobs):
            start, count = len(job.row.tokens), job.depth - 1
            self._texts.overwrite(job.row.pages, start, start + count)
            steps[:count, 0, order] = np.arange(start, start + count)
            steps[:count, 1, order] = slot_ids(job.row.pages, self.pool.spec.page_size, start, start + count)
        return torch.from_numpy(steps).to(self.model.device)


def _early_pieces(jobs: Sequence[Job], chunk: int) -> list[Piece]:
    """Up to `chunk` tokens that can be fed before the last pass; none once what is missing fits in it.

    The last token of every job is left for that pass, which needs the state of all of them together.
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
    """All depths in one copy from the device."""
    joined = to_host(
        Top(torch.cat([top.logprobs for top in tops]), torch.cat([top.token_ids for top in tops]))
    )
    ends = np.cumsum([len(top.token_ids) for top in tops])
    pairs = zip(np.split(joined.logprobs, ends[:-1]), np.split(joined.token_ids, ends[:-1]), strict=True)
    return [HostTop(logprobs, token_ids) for logprobs, token_ids in pairs]


def _proposal(tops: Sequence[HostTop], order: int) -> Proposal:
    token_ids = np.stack([top.token_ids[order] for top in tops])
    return Proposal(token_ids, np.stack([top.logprobs[order] for top in tops]), spine_only=True)
