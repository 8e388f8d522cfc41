"""Who runs when, without torch: orders, budgets, preemption and refusals over a real page allocator."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.config import SchedulerConfig
from wager.engine.scheduler import Memory, Planned, Scheduler
from wager.engine.sequence import Finish, Request, Sequence
from wager.errors import CapacityError
from wager.kvcache.pages import PageAllocator
from wager.kvcache.prefix import PrefixIndex
from wager.records import SamplingParams


def make(pages: int = 64, size: int = 4, reuse: bool = False, **config: Any) -> Scheduler:
    allocator = PageAllocator(pages, size)
    index = PrefixIndex(size, allocator) if reuse else None
    return Scheduler(SchedulerConfig(**config), Memory(allocator, index))


def sequence(number: int, prompt: int = 6, output: int = 8, client: str = "", priority: int = 0) -> Sequence:
    params = SamplingParams(max_tokens=output, priority=priority)
    ids = tuple(range(100 * number, 100 * number + prompt))
    return Sequence(Request(number, ids, params, 0, client), prompt + output, number)


def take_step(scheduler: Scheduler) -> list[Planned]:
    """Do to the planned rows what a plain step does: all tokens cached, one more emitted by whole rows."""
    rows = scheduler.plan()
    for row in rows:
        whole = row.is_whole
        row.sequence.num_cached += row.num_tokens
        if whole:
            row.sequence.append((7,))
            scheduler.serve(row.sequence, 1)
            if row.sequence.finish is not None:
                scheduler.finish(row.sequence)
    return rows


def first_steps(scheduler: Scheduler, most: int = 500) -> list[int]:
    """Run to the end; the ids in the order in which they first ran."""
    seen: dict[int, None] = {}
    for _ in range(most):
        for row in take_step(scheduler):
            seen.setdefault(row.sequence.request_id)
        if not scheduler.has_work:
            return list(seen)
    raise AssertionError("the scheduler does not come to an end")


def test_first_come_first_served() -> None:
    scheduler = make(max_rows=1)
    for number in (0, 1, 2):
        scheduler.add(sequence(number, prompt=9 - 3 * number))
    assert first_steps(scheduler) == [0, 1, 2]


def test_shortest_first() -> None:
    scheduler = make(max_rows=1, order="shortest")
    for number, output in enumerate((30, 2, 12)):
        scheduler.add(sequence(number, output=output))
    assert first_steps(scheduler) == [1, 2, 0]


def test_under_shortest_the_long_one_does_not_starve() -> None:
    scheduler = make(max_rows=1, order="shortest")
    scheduler.add(sequence(0, output=200))
    started = None
    for step in range(120):
        scheduler.add(sequence(step + 1, prompt=2, output=2))
        if any(row.sequence.request_id == 0 for row in take_step(scheduler)):
            started = step
            break
    assert started is not None and started > 5


def test_priority_goes_first_and_takes_the_place_of_less() -> None:
    scheduler = make(max_rows=2, order="priority")
    for number in (0, 1):
        scheduler.add(sequence(number, output=20))
    take_step(scheduler)
    scheduler.add(sequence(2, priority=5))
    rows = take_step(scheduler)
    assert [row.sequence.request_id for row in rows] == [0, 2]
    (waiting,) = scheduler.waiting
    assert waiting.request_id == 1 and waiting.pages == [] and waiting.num_preemptions == 1
    scheduler.add(sequence(3, priority=5))
    assert {row.sequence.request_id for row in take_step(scheduler)} == {2, 3}
    scheduler.add(sequence(4, priority=5))
    assert {row.sequence.request_id for row in take_step(scheduler)} == {2, 3}


def test_fair_share_favours_the_client_served_least() -> None:
    scheduler = make(max_rows=1, order="fair")
    for number in range(3):
        scheduler.add(sequence(number, client="greedy"))
    scheduler.add(sequence(3, client="modest"))
    assert first_steps(scheduler) == [0, 3, 1, 2]


def test_a_newcomer_begins_level_with_the_least_served() -> None:
    scheduler = make(max_rows=1, order="fair")
    for number in range(3):
        scheduler.add(sequence(number, client="old", output=8))
    for _ in range(8):
        take_step(scheduler)
    # Level with the other, it waits its turn by arrival; ahead by a whole past, 4 and 5 would come before 1.
    for number in (3, 4, 5):
        scheduler.add(sequence(number, client="new", output=8))
    assert first_steps(scheduler) == [1, 3, 2, 4, 5]


def test_clients_are_forgotten_when_nothing_of_theirs_is_left() -> None:
    scheduler = make(max_rows=1, order="fair")
    for number in range(40):
        scheduler.add(sequence(number, client=f"client {number}", output=2))
    for number in range(20, 40):
        waiting = scheduler.find(number)
        assert waiting is not None
        waiting.end(Finish.ABORT)
        scheduler.finish(waiting)
    assert len(scheduler._served) == 20
    first_steps(scheduler)
    assert scheduler._served == {}


def test_the_preempted_come_back_before_new_ones() -> None:
    scheduler = make(pages=8, size=4, max_rows=4)
    for number in (0, 1):
        scheduler.add(sequence(number, prompt=8, output=14))
    while not scheduler.num_preemptions:
        take_step(scheduler)
    scheduler.add(sequence(2, prompt=1, output=1))
    order = []
    while scheduler.has_work:
        order += [row.sequence.request_id for row in take_step(scheduler)]
    assert order.index(1) < order.index(2)


def test_decoding_rows_come_before_prompt_chunks_within_the_budget() -> None:
    scheduler = make(max_step_tokens=10, prefill_chunk=8)
    scheduler.add(sequence(0, prompt=4))
    take_step(scheduler)
    scheduler.add(sequence(1, prompt=30))
    rows = take_step(scheduler)
    assert [(row.sequence.request_id, row.num_tokens) for row in rows] == [(0, 1), (1, 8)]
    assert not rows[1].is_whole


def test_new_requests_wait_while_memory_is_nearly_full() -> None:
    scheduler = make(pages=20, size=1)
    scheduler.add(sequence(0, prompt=18, output=2))
    scheduler.add(sequence(1, prompt=1, output=1))
    take_step(scheduler)
    assert [s.request_id for s in scheduler.running] == [0]


def test_what_never_fits_is_refused() -> None:
    scheduler = make(pages=3, size=4)
    with pytest.raises(CapacityError, match="12 in all"):
        scheduler.add(sequence(0, prompt=8, output=5))
    scheduler.add(sequence(1, prompt=8, output=4))
    assert first_steps(scheduler) == [1]


def test_shared_beginnings_are_taken_over() -> None:
    scheduler = make(reuse=True)
    scheduler.add(sequence(0, prompt=12, output=1))
    first_steps(scheduler)
    again = sequence(0, prompt=12, output=1)
    scheduler.add(again)
    (row,) = scheduler.plan()
    # One token is always left to compute.
    assert again.num_reused == 8 and row.num_tokens == 4


def test_ending_a_waiting_request_takes_it_out() -> None:
    scheduler = make(max_rows=1)
    waiting = sequence(1)
    scheduler.add(sequence(0))
    scheduler.add(waiting)
    take_step(scheduler)
    waiting.end(Finish.ABORT)
    scheduler.finish(waiting)
    assert scheduler.find(1) is None and first_steps(scheduler) == [0]


ARRIVALS = st.lists(
    st.tuples(
        st.integers(1, 14), st.integers(1, 12), st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 3)
    ),
    min_size=1,
    max_size=12,
)


@given(ARRIVALS, st.sampled_from(["fcfs", "shortest", "priority", "fair"]), st.integers(7, 20), st.booleans())
@settings(deadline=None, max_examples=120)
def test_everybody_gets_done_and_no_page_is_lost(
    arrivals: list[tuple[int, int, str, int, int]], order: str, pages: int, reuse: bool
) -> None:
    scheduler = make(pages, 4, reuse, max_rows=3, prefill_chunk=5, max_step_tokens=9, order=order)
    done = 0
    for number, (prompt, output, client, priority, gap) in enumerate(arrivals):
        scheduler.add(sequence(number, prompt, output, client, priority))
        for _ in range(gap):
            done += sum(row.sequence.finish is not None for row in take_step(scheduler))
    for _ in range(2000):
        if not scheduler.has_work:
            break
        rows = take_step(scheduler)
        assert rows and sum(row.num_tokens for row in rows) <= max(9, len(rows))
        done += sum(row.sequence.finish is not None for row in rows)
    assert done == len(arrivals)
    kept = [] if scheduler.memory.index is None else scheduler.memory.index.pages()
    scheduler.memory.allocator.check([kept])
