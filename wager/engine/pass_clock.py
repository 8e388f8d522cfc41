"""Time one pass of the target, or one draft, on pages of its own that are given back at once.

The texts are made up and the contexts empty of meaning; the work is that of a step: the pass and the target's
choices, or a drafter's catching up on one token and its guesses. No request is needed and none is touched:
only free pages are used, nothing is evicted for them. Used by calibrate.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from wager.draft.base import Drafter, DraftRow, KeptTokens, Proposal
from wager.engine.device_clock import cuda_event
from wager.engine.drafting import DRAFT_ROOM
from wager.engine.engine import Engine
from wager.kvcache.pages import consecutive_runs
from wager.kvcache.pool import KVPool
from wager.records import SamplingParams
from wager.target import ChoiceRow, RunRow
from wager.tree import ROOT, Tree

_TOKEN = 1  # what made-up texts consist of
_GREEDY = SamplingParams()


class PassCase(NamedTuple):
    """A target pass: tokens in all its rows together, and the context of each."""

    num_tokens: int
    rows: int
    context_len: int

    @property
    def row_tokens(self) -> list[int]:
        """Tokens of each row, as even as they can be."""
        each, more = divmod(self.num_tokens, self.rows)
        return [each + (i < more) for i in range(self.rows)]


class DraftCase(NamedTuple):
    """A draft of so many guesses (0: a whole one), for rows with a context of the same length."""

    drafter: str
    rows: int
    depth: int
    context_len: int


class Clocked(NamedTuple):
    """What a run took; of a draft, how many guesses came of it."""

    time_ms: float
    depth: int = 0


class PassClock:
    """Times passes of one engine. Precondition of every call: nothing runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runner = engine.runner
        self._allocator = engine.scheduler.memory.allocator
        self._is_cuda = torch.device(engine.runner.device).type == "cuda"

    def num_pages(self, rows: int, length: int) -> int:
        """Pages for rows of so many tokens each."""
        return rows * self._allocator.pages_for(length)

    def has_room(self, rows: int, length: int) -> bool:
        return self.num_pages(rows, length) <= self._allocator.num_free

    def time_pass(self, case: PassCase) -> Clocked:
        """The pass, and the target's choice at each of its tokens.

        Of several rows on a device, whose steps are not taken apart later (`Experience`), as plain steps are
        that run ahead: behind another pass, during which the host has done its part.
        """
        tokens = case.row_tokens
        text = [_TOKEN] * (case.context_len + 1)
        with self._pages(case.rows, case.context_len + max(tokens)) as pages:
            trees = [comb(count - 1) for count in tokens]
            rows = [
                RunRow([_TOKEN], tree, case.context_len, own) for tree, own in zip(trees, pages, strict=True)
            ]
            choices = [ChoiceRow(_GREEDY, 0, text, 1, tree, bare=True) for tree in trees]
            self._synchronise()
            if self._is_cuda and case.rows > 1:
                self._runner.run(rows)
                return Clocked(self._marked(lambda: self._chosen(rows, choices)))
            began = time.perf_counter()
            self._chosen(rows, choices)
            self._synchronise()
            return Clocked((time.perf_counter() - began) * 1e3)

    def _chosen(self, rows: Sequence[RunRow], choices: Sequence[ChoiceRow]) -> None:
        result = self._runner.run(rows)
        assert result.logits is not None
        self._engine.sampler.choose(result.logits, choices)

    def _marked(self, work: Callable[[], None]) -> float:
        """Milliseconds of the device from what is launched already to the end of this work."""
        began, ended = cuda_event(), cuda_event()
        began.record()
        work()
        ended.record()
        self._synchronise()
        return began.elapsed_time(ended)

    def time_draft(self, case: DraftCase) -> Clocked | None:
        """A draft behind one new token; None where the drafter proposes nothing here."""
        drafter = self._engine.drafters[case.drafter]
        names = [("calibration", i) for i in range(case.rows)]
        with self._pages(case.rows, self.draft_len(case), drafter) as pages:
            try:
                return self._draft(drafter, case, dict(zip(names, pages, strict=True)))
            finally:
                for name in names:
                    drafter.forget(name)

    def draft_len(self, case: DraftCase) -> int:
        """Tokens of a row, with room behind them for what a drafter lays there."""
        return case.context_len + 2 + DRAFT_ROOM

    def _draft(
        self, drafter: Drafter, case: DraftCase, pages: dict[tuple[str, int], list[int]]
    ) -> Clocked | None:
        length = case.context_len
        for name in pages:
            drafter.adopt(name, length)
        # The first brings the drafter up to date with a context that it never saw.
        if self._guesses(drafter, self._draft_rows(case, pages, length + 1)) is None:
            return None
        width = len(drafter.feature_layers) * self._runner.hidden_size
        dtype, device = self._runner.decoder.dtype, self._runner.device
        features = torch.zeros(1, width, dtype=dtype, device=device) if width else None
        drafter.keep([KeptTokens(name, length, features, own) for name, own in pages.items()])
        rows = self._draft_rows(case, pages, length + 2)
        self._synchronise()
        began = time.perf_counter()
        proposals = self._guesses(drafter, rows)
        self._synchronise()
        time_ms = (time.perf_counter() - began) * 1e3
        return None if proposals is None else Clocked(time_ms, len(proposals[0].token_ids))

    def _draft_rows(
        self, case: DraftCase, pages: dict[tuple[str, int], list[int]], length: int
    ) -> list[DraftRow]:
        text = [_TOKEN] * length
        return [DraftRow(name, text, 1, own, depth=case.depth) for name, own in pages.items()]

    def _guesses(self, drafter: Drafter, rows: list[DraftRow]) -> list[Proposal] | None:
        """Proposals with scores for all rows: one without any is copied text, whose time is not the copy."""
        if not all(drafter.can_draft(row) for row in rows):
            return None
        found = drafter.draft(rows, self._engine.parts.noise)
        scored = [one for one in found if one is not None and one.logprobs is not None]
        return scored if len(scored) == len(rows) else None

    @contextmanager
    def _pages(self, rows: int, length: int, drafter: Drafter | None = None) -> Iterator[list[list[int]]]:
        """Blank pages for each row, given back at the end."""
        assert self.has_room(rows, length), "calibration evicts nothing"
        each = self._allocator.pages_for(length)
        held = [self._allocator.allocate(each) for _ in range(rows)]
        try:
            for pool in (self._runner.pool, getattr(drafter, "pool", None)):
                if isinstance(pool, KVPool):
                    _blank(pool, [page for own in held for page in own])
            yield held
        finally:
            for own in held:
                self._allocator.release(own)

    def _synchronise(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize(self._runner.device)


def comb(num_nodes: int) -> Tree:
    """A chain with a branch at its end, so that a pass has to mind ancestors as it does with any tree."""
    if num_nodes < 2:
        return Tree.chain([_TOKEN] * num_nodes)
    parents = np.arange(-1, num_nodes - 1, dtype=np.int32)
    parents[-1] = ROOT
    return Tree.of(np.full(num_nodes, _TOKEN), parents)


def _blank(pool: KVPool, pages: list[int]) -> None:
    """Zero what pages hold: left-over bits may be numbers that some machines are slow at."""
    size = pool.spec.page_size
    with torch.inference_mode():
        for start, length in consecutive_runs(sorted(pages)):
            pool.store[:, :, :, start * size : (start + length) * size].zero_()
