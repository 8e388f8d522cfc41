"""Steps planned before the verdict of the step in flight: who goes on, who is admitted, who must wait."""

import pytest

from tests.engine.test_scheduler import make, sequence
from wager.engine.scheduler import NextPlan, Planned, Scheduler
from wager.engine.sequence import Sequence


def finish_step(scheduler: Scheduler, rows: list[Planned]) -> None:
    """The verdict of a plain step: all its tokens are cached, and rows whose last token is in emit one."""
    judged = [row.sequence for row in rows if row.is_whole]
    for row in rows:
        row.sequence.num_cached += row.num_tokens
    for one in judged:
        one.append((7,))
        scheduler.serve(one, 1)
        one.stats.record(0, 0, emitted=1)
        if one.finish is not None:
            scheduler.finish(one)
        elif one.stats.steps == 1:
            scheduler.share(one)


def described(plan: NextPlan | None) -> list[tuple[object, int]] | None:
    return None if plan is None else [(row.sequence.request_id, row.num_tokens) for row in plan.rows]


def started(scheduler: Scheduler, *sequences: Sequence) -> list[Planned]:
    for one in sequences:
        scheduler.add(one)
    return scheduler.plan()


def test_decoding_rows_go_on_and_prompts_are_read_on() -> None:
    scheduler = make(prefill_chunk=4)
    rows = started(scheduler, sequence(0, prompt=3), sequence(1, prompt=10))
    plan = scheduler.plan_behind(rows)
    assert described(plan) == [(0, 1), (1, 4)] and plan is not None and plan.num_unread == 1
    finish_step(scheduler, rows)
    rows = scheduler.plan(plan.rows)
    assert [row.is_whole for row in rows] == [True, False]
    assert described(scheduler.plan_behind(rows)) == [(0, 1), (1, 2)]


def test_a_row_at_its_length_limit_makes_room_for_one_that_waits() -> None:
    scheduler = make(max_rows=2)
    rows = started(scheduler, sequence(0, output=1), sequence(1), sequence(2), sequence(3))
    assert [row.sequence.request_id for row in rows] == [0, 1]
    plan = scheduler.plan_behind(rows)
    assert described(plan) == [(1, 1), (2, 6)] and plan is not None and plan.num_unread == 1
    finish_step(scheduler, rows)
    assert [one.request_id for one in scheduler.running] == [1, 2]


def test_the_budget_of_a_step_holds_behind_another() -> None:
    scheduler = make(max_step_tokens=8)
    rows = started(scheduler, sequence(0, prompt=2))
    scheduler.add(sequence(1, prompt=5))
    scheduler.add(sequence(2, prompt=5))
    assert described(scheduler.plan_behind(rows)) == [(0, 1), (1, 5), (2, 2)]


def test_nobody_is_preempted_behind_a_step() -> None:
    scheduler = make(pages=4, size=4)
    rows = started(scheduler, sequence(0, prompt=8), sequence(1, prompt=8))
    assert scheduler.plan_behind(rows) is None, "no page is left for their next tokens"
    assert scheduler.num_preemptions == 0 and len(scheduler.running) == 2


def test_a_more_important_arrival_waits_for_the_verdict() -> None:
    scheduler = make(max_rows=1, order="priority")
    rows = started(scheduler, sequence(0, priority=1))
    scheduler.add(sequence(1, priority=1))
    assert described(scheduler.plan_behind(rows)) == [(0, 1)]
    scheduler.add(sequence(2, priority=2))
    assert scheduler.plan_behind(rows) is None


def test_nobody_is_admitted_to_full_memory() -> None:
    scheduler = make(pages=20, size=4)
    rows = started(scheduler, sequence(0, prompt=75, output=3))
    scheduler.add(sequence(1, prompt=2))
    assert described(scheduler.plan_behind(rows)) == [(0, 1)]


@pytest.mark.parametrize("known", [False, True])
def test_a_prompt_whose_beginning_is_being_read_waits_a_step(known: bool) -> None:
    """Unless the pages that it could share are in the index already."""
    scheduler = make(reuse=True)
    first, second = sequence(0, prompt=9), sequence(0, prompt=10)
    if known:
        earlier = started(scheduler, sequence(0, prompt=9, output=1))
        finish_step(scheduler, earlier)
    rows = started(scheduler, first)
    scheduler.add(second)
    plan = scheduler.plan_behind(rows)
    assert plan is not None and len(plan.rows) == 1 + known
    finish_step(scheduler, rows)
    if not known:
        plan = scheduler.plan_behind(scheduler.plan(plan.rows))
        assert plan is not None and len(plan.rows) == 2
    assert second.num_reused == 8


def test_where_nobody_goes_on_and_nobody_waits_there_is_no_plan() -> None:
    scheduler = make()
    assert scheduler.plan_behind(started(scheduler, sequence(0, output=1))) is None
