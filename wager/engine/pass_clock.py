"""Times one pass of the target or one draft, on free pages that are given back at once.

The texts are made up. The work is that of a step: a pass with the target's choices, or a drafter that reads
one new token and makes its guesses. No request takes part, and no cached page is evicted. Used by
cost_sweep.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from wager.draft.base import Drafter, DraftRow, KeptTokens, Proposal
from wager.draft.checked import checked
from wager.engine.device_clock import cuda_event
from wager.engine.drafting import DRAFT_ROOM
from wager.engine.engine import Engine
from wager.kvcache.pages import consecutive_runs
from wager.kvcache.pool import KVPool
from wager.records import SamplingParams
from wager.target import ChoiceRow, RunRow
from wager.tree import ROOT, Tree

_TOKEN = 1
"""The token of which the made-up texts consist."""
_GREEDY = SamplingParams()


class PassCase(NamedTuple):
    """A target pass to be timed."""

    num_tokens: int
    """The tokens of all rows together."""
    rows: int
    context_len: int
    """The cached tokens of each row."""

    @property
    def row_tokens(self) -> list[int]:
        """The number of tokens of each row, as equal as possible."""
        each, more = divmod(self.num_tokens, self.rows)
        return [each + (i < more) for i in range(self.rows)]


class DraftCase(NamedTuple):
    """A draft to be timed."""

    drafter: str
    rows: int
    depth: int
    """The guesses that are asked for; 0 asks for a whole draft."""
    context_len: int
    """The cached tokens of each row."""


class Clocked(NamedTuple):
    """The time of one run."""

    time_ms: float
    depth: int = 0
    """The number of guesses that a draft made."""


class PassClock:
    """Times passes of one engine. Precondition of every call: nothing runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runner = engine.runner
        self._allocator = engine.scheduler.memory.allocator
        self._is_cuda = torch.device(engine.runner.device).type == "cuda"

    def num_pages(self, rows: int, length: int) -> int:
        """Returns the number of pages for rows of this length."""
        return rows * self._allocator.pages_for(length)

    def has_room(self, rows: int, length: int) -> bool:
        return self.num_pages(rows, length) <= self._allocator.num_free

    def time_pass(self, case: PassCase) -> Clocked:
        """Times a pass and the target's choice at each of its tokens.

        With several rows on a device, the time is that of a prelaunched plain step: the pass runs behind
        another one, during which the host has done its work. `Experience` does not split the times of such
        steps.
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
        """Returns the device's time for this work, in milliseconds, behind everything launched before."""
        began, ended = cuda_event(), cuda_event()
        began.record()
        work()
        ended.record()
        self._synchronise()
        return began.elapsed_time(ended)

    def time_draft(self, case: DraftCase) -> Clocked | None:
        """Times a draft behind one new token; returns None if the drafter proposes nothing here."""
        drafter = self._engine.drafters[case.drafter]
        names = [("calibration", i) for i in range(case.rows)]
        with self._pages(case.rows, self.draft_len(case), drafter) as pages:
            try:
                return self._draft(drafter, case, dict(zip(names, pages, strict=True)))
            finally:
                for name in names:
                    drafter.forget(name)

    def draft_len(self, case: DraftCase) -> int:
        """Returns the tokens of a row and the room behind them that a drafter may write to."""
        return case.context_len + 2 + DRAFT_ROOM

    def _draft(
        self, drafter: Drafter, case: DraftCase, pages: dict[tuple[str, int], list[int]]
    ) -> Clocked | None:
        length = case.context_len
        for name in pages:
            drafter.adopt(name, length)
        # The first draft makes the drafter read a context that it has never seen.
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
        """Returns proposals for all rows, or None if there are none or they have no scores.

        A proposal without scores is copied text, and made-up texts say nothing about the time of copying.
        """
        if not all(drafter.can_propose(row) for row in rows):
            return None
        answer = drafter.propose(rows, self._engine.parts.noise)
        found, _ = checked(answer, rows, self._runner.vocab_size)
        scored = [one for one in found if one is not None and one.logprobs is not None]
        return scored if len(scored) == len(rows) else None

    @contextmanager
    def _pages(self, rows: int, length: int, drafter: Drafter | None = None) -> Iterator[list[list[int]]]:
        """Provides pages for each row, filled with zeros, and gives them back at the end."""
        assert self.has_room(rows, length), "calibration evicts nothing"
        each = self._allocator.pages_for(length)
        held = [self._allocator.allocate(each) for _ in range(rows)]
        try:
            for pool in (self._runner.pool, *(drafter.pools() if drafter is not None else ())):
                _fill_with_zeros(pool, [page for own in held for page in own])
            yield held
        finally:
            for own in held:
                self._allocator.release(own)

    def _synchronise(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize(self._runner.device)


def comb(num_nodes: int) -> Tree:
    """Returns a chain with a branch at its end, so that the pass needs ancestor masks as with any tree."""
    if num_nodes < 2:
        return Tree.chain([_TOKEN] * num_nodes)
    parents = np.arange(-1, num_nodes - 1, dtype=np.int32)
    parents[-1] = ROOT
    return Tree.of(np.full(num_nodes, _TOKEN), parents)


def _fill_with_zeros(pool: KVPool, pages: list[int]) -> None:
    """Overwrites the pages: left-over bits may be denormal numbers, which are slow on some machines."""
    size = pool.spec.page_size
    with torch.inference_mode():
        for start, length in consecutive_runs(sorted(pages)):
            pool.store[:, :, :, start * size : (start + length) * size].zero_()
