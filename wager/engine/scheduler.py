"""Who runs in this step, with how many tokens, on which pages. No torch, no tokens' meaning.

Running rows come first, then sequences that lost their pages, then new ones in the configured order, as long
as rows, tokens and memory allow. Every step each running row gets at least one token, or the youngest of the
least important rows gives up its pages and waits: nobody starves and nothing deadlocks, since what could
never fit is refused on arrival. The plan stage calls `plan`; commit and emit call `grow` and `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import NamedTuple

from wager.config import SchedulerConfig
from wager.engine.sequence import Sequence
from wager.errors import CapacityError, OutOfPages
from wager.kvcache.pages import PageAllocator
from wager.kvcache.prefix import PrefixIndex

_AGING = 16  # under `shortest`, every step of waiting counts as this many tokens fewer


class Planned(NamedTuple):
    """One row of the step: a sequence and how many of its pending tokens go in."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_whole(self) -> bool:
        """Whether the last pending token is in: only then is there a root to guess from, a token to emit."""
        return self.num_tokens == self.sequence.num_pending


@dataclass
class Memory:
    """The pages that sequences live on."""

    allocator: PageAllocator
    index: PrefixIndex | None
    threshold: float = 0.9
    """New sequences are let in only while fewer pages than this share are in use."""

    @property
    def num_pages(self) -> int:
        return self.allocator.num_free + self.allocator.num_used

    def is_full(self) -> bool:
        return self.allocator.num_available < (1.0 - self.threshold) * self.num_pages


@dataclass
class Hooks:
    """What a drafter must hear of; the engine fills these in."""

    need_draft: bool = False
    """Only pages with the drafter's context are worth taking over."""
    adopt: Callable[[Sequence], None] = lambda _sequence: None
    settle: Callable[[Sequence, int], bool] = lambda _sequence, _num_tokens: True
    forget: Callable[[Sequence], None] = lambda _sequence: None
    relocate: Callable[[list[int], list[int]], None] | None = None
    """Copies what pages hold to other pages. Given where attention reads a run of pages without copying and
    scattered ones only by gathering them in every layer of every pass: there one copy now is cheaper."""
    salt: str = ""


@dataclass
class Scheduler:
    """Waiting and running sequences over one memory."""

    config: SchedulerConfig
    memory: Memory
    hooks: Hooks = field(default_factory=Hooks)
    running: list[Sequence] = field(default_factory=list)
    waiting: list[Sequence] = field(default_factory=list)
    _served: dict[str, float] = field(default_factory=dict)
    """Tokens served by client, of those with something running or waiting."""
    _clock: int = 0
    num_preemptions: int = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises CapacityError when it could never run, however long it waited."""
        most = self.memory.num_pages * self.memory.allocator.page_size
        if sequence.max_len > most:
            raise CapacityError(
                f"the request may need {sequence.max_len} tokens of memory; there is room for {most} in all"
            )
        # A newcomer begins level with the least served, not ahead of all by their whole past.
        self._served.setdefault(sequence.request.client, min(self._served.values(), default=0.0))
        sequence.queued_at = self._clock
        self.waiting.append(sequence)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def plan(self, begun: Many[Sequence] = ()) -> list[Planned]:
        """The rows of the next step, with pages for all their tokens: those of a pass under way if any is."""
        self._clock += 1
        if begun:
            return [Planned(sequence, 1) for sequence in begun]
        budget = self.config.max_step_tokens
        rows: list[Planned] = []
        for sequence in self._in_order():
            budget = self._schedule(sequence, rows, budget)
        self._admit(rows, budget)
        return rows

    def room(self, planned: Planned, num_rows: int) -> int:
        """Nodes this row may have: free slots of its pages and a fair part of the available ones."""
        sequence, size = planned.sequence, self.memory.allocator.page_size
        own = len(sequence.pages) * size - sequence.num_cached - planned.num_tokens
        return own + self.memory.allocator.num_available // max(num_rows, 1) * size

    def grow(self, sequence: Sequence, num_tokens: int) -> None:
        """Pages for `num_tokens` in all. Raises OutOfPages."""
        allocator, pages = self.memory.allocator, sequence.pages
        missing = allocator.pages_for(num_tokens) - len(pages)
        if missing > 0:
            after = pages[-1] if pages else None
            reserve = allocator.pages_for(sequence.max_len) if after is None else 0
            pages += allocator.allocate(missing, after=after, reserve=reserve)
            self._straighten(sequence)

    def _straighten(self, sequence: Sequence) -> None:
        """Move a sequence to one run of pages, where that helps and there is such a run."""
        pages, allocator = sequence.pages, self.memory.allocator
        if self.hooks.relocate is None or is_run(pages) or allocator.longest_run < len(pages):
            return
        room = allocator.pages_for(sequence.max_len) - len(pages)
        moved = allocator.allocate(len(pages), reserve=max(room, 1))
        self.hooks.relocate(pages, moved)
        allocator.release(pages)
        sequence.pages = moved

    def share(self, sequence: Sequence) -> None:
        """Give the full pages of cached tokens to the prefix index, with the drafter's context."""
        index, size = self.memory.index, self.memory.allocator.page_size
        num_full = sequence.num_cached // size
        if index is None or num_full <= sequence.in_index:
            return
        ready = self.hooks.settle(sequence, num_full * size)
        tokens, pages = sequence.tokens[: num_full * size], sequence.pages[:num_full]
        index.insert(tokens, pages, draft_ready=ready, salt=self.hooks.salt)
        sequence.in_index = num_full

    def finish(self, sequence: Sequence) -> None:
        """The sequence has ended: its pages go back, full ones stay findable."""
        self._release(sequence, keep=sequence.error is None)
        if sequence in self.running:
            self.running.remove(sequence)
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        client = sequence.request.client
        if all(other.request.client != client for other in (*self.running, *self.waiting)):
            self._served.pop(client, None)

    def serve(self, sequence: Sequence, num_tokens: int) -> None:
        """Count tokens against the client's share. Precondition: the sequence has not finished."""
        self._served[sequence.request.client] += num_tokens

    def find(self, request_id: Hashable) -> Sequence | None:
        return next((s for s in (*self.running, *self.waiting) if s.request_id == request_id), None)

    def _in_order(self) -> list[Sequence]:
        """The running sequences: those that decode before those that read, the more important first."""
        if len(self.running) < 2:
            return list(self.running)
        return sorted(self.running, key=lambda s: (s.num_pending > 1, self._rank(s)))

    def _schedule(self, sequence: Sequence, rows: list[Planned], budget: int) -> int:
        """Put a running sequence into the step, if need be at the cost of a less important one."""
        if sequence not in self.running:
            return budget  # it gave up its pages to an earlier row of this very step
        num_tokens = min(sequence.num_pending, self.config.prefill_chunk, max(budget, 1))
        while True:
            try:
                self.grow(sequence, sequence.num_cached + num_tokens)
            except OutOfPages:
                victim = max(self.running, key=self._rank)
                self._preempt(victim)
                rows[:] = [row for row in rows if row.sequence is not victim]
                if victim is sequence:
                    return budget
                continue
            rows.append(Planned(sequence, num_tokens))
            return budget - num_tokens

    def _admit(self, rows: list[Planned], budget: int) -> None:
        while self.waiting and budget > 0:
            sequence = min(self.waiting, key=self._turn)
            if len(self.running) >= self.config.max_rows and not self._make_way(sequence, rows):
                return
            if self.running and self.memory.is_full() and sequence.num_preemptions == 0:
                return
            if not self._start(sequence, rows, budget):
                return
            budget -= rows[-1].num_tokens

    def _start(self, sequence: Sequence, rows: list[Planned], budget: int) -> bool:
        """Give a waiting sequence its first pages, shared ones where its beginning is known."""
        self._take_over(sequence)
        num_tokens = min(sequence.num_pending, self.config.prefill_chunk, budget)
        try:
            self.grow(sequence, sequence.num_cached + num_tokens)
        except OutOfPages:
            self._drop_pages(sequence)
            return False
        self.waiting.remove(sequence)
        self.running.append(sequence)
        self.hooks.adopt(sequence)
        rows.append(Planned(sequence, num_tokens))
        return True

    def _take_over(self, sequence: Sequence) -> None:
        index = self.memory.index
        if index is None:
            return
        pages = index.match(sequence.tokens, need_draft=self.hooks.need_draft, salt=self.hooks.salt)
        sequence.pages = list(pages)
        sequence.in_index = len(pages)
        sequence.num_cached = sequence.num_reused = len(pages) * self.memory.allocator.page_size

    def _make_way(self, sequence: Sequence, rows: list[Planned]) -> bool:
        """Under `priority`, a more important arrival takes the place of the least important row."""
        if self.config.order != "priority":
            return False
        victim = max(self.running, key=self._rank)
        if victim.params.priority >= sequence.params.priority:
            return False
        self._preempt(victim)
        rows[:] = [row for row in rows if row.sequence is not victim]
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's pages; it waits, keeps its tokens, and comes back before new ones."""
        self._release(sequence, keep=True)
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.running.remove(sequence)
        self.waiting.append(sequence)

    def _release(self, sequence: Sequence, *, keep: bool) -> None:
        if keep and sequence.pages:
            self.share(sequence)
        self._drop_pages(sequence)
        self.hooks.forget(sequence)

    def _drop_pages(self, sequence: Sequence) -> None:
        self.memory.allocator.release(sequence.pages)
        sequence.pages, sequence.num_cached, sequence.in_index = [], 0, 0

    def _rank(self, sequence: Sequence) -> tuple[float, int]:
        """Smaller is more important: who keeps its pages."""
        priority = -sequence.params.priority if self.config.order == "priority" else 0
        return priority, sequence.arrival

    def _turn(self, sequence: Sequence) -> tuple[float, float, int]:
        """Smaller is sooner: who of the waiting comes next."""
        back = 0.0 if sequence.num_preemptions else 1.0
        order = self.config.order
        if order == "priority":
            return -float(sequence.params.priority), back, sequence.arrival
        if order == "shortest":
            waited = self._clock - sequence.queued_at
            return back, float(sequence.num_pending + sequence.num_left - _AGING * waited), sequence.arrival
        if order == "fair":
            return back, self._served[sequence.request.client], sequence.arrival
        return back, 0.0, sequence.arrival


def is_run(pages: list[int]) -> bool:
    """Whether the pages follow one another."""
    return not pages or pages == list(range(pages[0], pages[0] + len(pages)))
