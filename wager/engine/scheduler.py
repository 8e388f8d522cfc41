"""Decides who runs in a step, with how many tokens, on which pages. It knows no torch and no token's meaning.

Running rows come first, then sequences that lost their pages, then new ones in the configured order, as long
as rows, tokens and memory allow. Every step each running row gets at least one token, or the youngest of the
least important rows gives up its pages and waits. So no request starves and nothing deadlocks, because a
request that could never fit is refused on arrival. The plan stage calls `plan`; later stages call `grow`,
`share` and `finish`.
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

_AGING = 16
"""Tokens by which a request counts as shorter for every step that it has waited, under `shortest`."""


class Planned(NamedTuple):
    """One row of the step: a sequence and how many of its pending tokens go in."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_whole(self) -> bool:
        """Whether the last pending token is included, so that the row has a root and emits a token."""
        return self.num_tokens == self.sequence.num_pending


class NextPlan(NamedTuple):
    """The rows of a step that is planned before the verdict of the step in flight is known."""

    rows: list[Planned]
    num_unread: int
    """The first rows, this many, have one pending token that only the device knows."""


@dataclass
class Memory:
    """The pages of all sequences."""

    allocator: PageAllocator
    index: PrefixIndex | None
    threshold: float = 0.9
    """New sequences are admitted only while less than this share of the pages is in use."""

    @property
    def num_pages(self) -> int:
        return self.allocator.num_free + self.allocator.num_used

    def is_full(self) -> bool:
        return self.allocator.num_available < (1.0 - self.threshold) * self.num_pages


@dataclass
class Hooks:
    """Calls by which drafters follow the scheduler's decisions; the engine sets them.

    They are called for every sequence; those that never draft concern no drafter.
    """

    need_draft: bool = False
    """Whether shared pages are useful only with the drafter's context."""
    adopt: Callable[[Sequence], None] = lambda _sequence: None
    settle: Callable[[Sequence, int], bool] = lambda _sequence, _num_tokens: True
    forget: Callable[[Sequence], None] = lambda _sequence: None
    relocate: Callable[[list[int], list[int]], None] | None = None
    """Copies the contents of pages to other pages.

    It is set where attention gathers scattered pages in every layer of every pass, but reads a run of pages
    in place: there one copy is cheaper.
    """
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
    """Tokens served by client, for clients with a running or waiting request."""
    _clock: int = 0
    num_preemptions: int = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises CapacityError when it could never run, however long it waited."""
        most = self.memory.num_pages * self.memory.allocator.page_size
        if sequence.max_len > most:
            raise CapacityError(
                f"the request may need {sequence.max_len} tokens of memory; there is room for {most} in all"
            )
        # A new client starts level with the least served one, not ahead of all others.
        self._served.setdefault(sequence.request.client, min(self._served.values(), default=0.0))
        sequence.queued_at = self._clock
        self.waiting.append(sequence)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def plan(self, in_flight: Many[Planned] = ()) -> list[Planned]:
        """The rows of the next step, with pages for all their tokens.

        `in_flight` are the rows of the pass that has been launched for this step, if there is one.
        """
        self._clock += 1
        if in_flight:
            return list(in_flight)
        budget = self.config.max_step_tokens
        rows: list[Planned] = []
        for sequence in self._in_order():
            budget = self._schedule(sequence, rows, budget)
        self._admit(rows, budget)
        return rows

    def plan_behind(self, in_flight: Many[Planned]) -> NextPlan | None:
        """The rows of the step behind the one in flight, before its verdict is known.

        Rows that reach their length limit are left out, prompts go on, and waiting sequences are admitted.
        The rows have pages for all their tokens. None where the step needs the verdict: nobody is known to
        run, or a sequence would have to be preempted.
        """
        unread, prompts = [], []
        for row in in_flight:
            if not row.is_whole:
                prompts.append(row)
            elif len(row.sequence.tokens) + 1 < row.sequence.max_len:
                unread.append(row)
        rows, budget = list[Planned](), self.config.max_step_tokens
        try:
            for sequence, num_tokens in unread:
                self.grow(sequence, sequence.num_cached + num_tokens + 1)
                rows.append(Planned(sequence, 1))
            budget -= len(rows)
            if len(prompts) > 1:
                prompts.sort(key=lambda row: self._rank(row.sequence))
            for sequence, num_tokens in prompts:
                start = sequence.num_cached + num_tokens
                count = min(len(sequence.tokens) - start, self.config.prefill_chunk, max(budget, 1))
                self.grow(sequence, start + count)
                rows.append(Planned(sequence, count))
                budget -= count
        except OutOfPages:
            return None
        if self.waiting and not self._admit_behind(in_flight, rows, budget):
            return None
        return NextPlan(rows, len(unread)) if rows else None

    def _admit_behind(self, in_flight: Many[Planned], rows: list[Planned], budget: int) -> bool:
        """Admit waiting sequences to a step planned behind the one in flight; False where one must make way.

        The rows that are in flight and not in `rows` reach their length limit, so their places are free.
        """
        num_leaving = len(in_flight) - len(rows)
        new_prompts = [row.sequence for row in in_flight if row.is_whole and not row.sequence.stats.steps]
        while self.waiting and budget > 0:
            sequence = min(self.waiting, key=self._turn)
            if len(self.running) - num_leaving >= self.config.max_rows:
                return self._victim_for(sequence) is None
            if self.memory.is_full() and sequence.num_preemptions == 0:
                return True
            if self._is_shared_soon(sequence, new_prompts) or not self._start(sequence, rows, budget):
                return True
            budget -= rows[-1].num_tokens
        return True

    def _is_shared_soon(self, sequence: Sequence, new_prompts: Many[Sequence]) -> bool:
        """Whether more of the sequence's pages can be shared once these prompts have been read."""
        index, size = self.memory.index, self.memory.allocator.page_size
        if index is None or not new_prompts:
            return False
        pages = self._match(index, sequence)
        self.memory.allocator.release(pages)
        stop = (len(pages) + 1) * size
        if stop >= len(sequence.tokens):
            return False
        wanted = sequence.tokens[:stop]
        return any(prompt.tokens[:stop] == wanted for prompt in new_prompts)

    def room(self, planned: Planned, num_rows: int) -> int:
        """Most nodes of this row: the free slots of its pages and a fair share of the available pages."""
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
        """Move a sequence to one run of consecutive pages, where that helps and such a run is free."""
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
        """The running sequences: those that decode before those in prefill, the more important first."""
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
        pages = self._match(index, sequence)
        sequence.pages = list(pages)
        sequence.in_index = len(pages)
        sequence.num_cached = sequence.num_reused = len(pages) * self.memory.allocator.page_size

    def _match(self, index: PrefixIndex, sequence: Sequence) -> list[int]:
        """The shared pages that a sequence can start from, retained for it."""
        need_draft = self.hooks.need_draft and sequence.may_draft
        return index.match(sequence.tokens, need_draft=need_draft, salt=self.hooks.salt)

    def _make_way(self, sequence: Sequence, rows: list[Planned]) -> bool:
        """Under `priority`, preempt the least important row for a more important arrival."""
        victim = self._victim_for(sequence)
        if victim is None:
            return False
        self._preempt(victim)
        rows[:] = [row for row in rows if row.sequence is not victim]
        return True

    def _victim_for(self, sequence: Sequence) -> Sequence | None:
        """The running sequence that a more important arrival preempts under `priority`, if there is one."""
        if self.config.order != "priority":
            return None
        victim = max(self.running, key=self._rank)
        return victim if victim.params.priority < sequence.params.priority else None

    def _preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's pages; it waits with its tokens and is admitted before new ones."""
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
        """The importance of a running sequence for keeping its pages; smaller is more important."""
        priority = -sequence.params.priority if self.config.order == "priority" else 0
        return priority, sequence.arrival

    def _turn(self, sequence: Sequence) -> tuple[float, float, int]:
        """The order of the waiting sequences; smaller is admitted sooner."""
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
