"""Which passes a calibration times: the usual ones first, within bounds, and believed only if they agree."""

from collections.abc import Callable

import pytest

from wager.engine.cost_sweep import Bounds, Sweep, pass_shapes, pass_sizes
from wager.engine.pass_clock import Clocked, DraftCase, PassCase

WIDE = Bounds(64, 32768, 64, 512, (512, 4096))


class Clock:
    """Times as told; `block` makes whole drafts of fifteen guesses, `lookup` none with scores."""

    def __init__(self, time_ms: Callable[[int], float] = lambda size: 5.0 + 0.1 * size, pages: int = 1 << 30):
        self.time_ms, self.free = time_ms, pages
        self.cases: list[PassCase | DraftCase] = []

    def num_pages(self, rows: int, length: int) -> int:
        return rows * length

    def has_room(self, rows: int, length: int) -> bool:
        return self.num_pages(rows, length) <= self.free

    def draft_len(self, case: DraftCase) -> int:
        return case.context_len + 18

    def time_pass(self, case: PassCase) -> Clocked:
        self.cases.append(case)
        return Clocked(self.time_ms(case.num_tokens))

    def time_draft(self, case: DraftCase) -> Clocked | None:
        self.cases.append(case)
        return None if case.drafter == "lookup" else Clocked(0.1 * (case.depth or 15) * case.rows, 15)


def swept(clock: Clock, bounds: Bounds = WIDE, drafters: tuple[str, ...] = ("block", "lookup")) -> Sweep:
    sweep = Sweep(clock, drafters, bounds)  # type: ignore[arg-type]
    for _ in sweep:
        pass
    return sweep


def test_short_contexts_and_few_rows_come_first() -> None:
    assert pass_shapes(WIDE)[:5] == [(512, 1), (512, 4), (512, 16), (512, 64), (4096, 1)]
    assert pass_shapes(WIDE._replace(max_rows=7)) == [(512, 1), (512, 4), (4096, 1), (4096, 4)]


def test_sizes_go_from_plain_decoding_to_the_largest_bet() -> None:
    assert pass_sizes(1, WIDE) == [1, 2, 4, 8, 16, 32, 64]
    assert pass_sizes(4, WIDE) == [4, 8, 16, 32, 64, 128, 256]
    assert pass_sizes(64, WIDE) == [64, 128, 256, 512]
    assert pass_sizes(3, WIDE._replace(max_nodes=2)) == [3, 4, 8]


def test_buckets_are_the_sizes_where_passes_are_padded() -> None:
    padded = WIDE._replace(buckets=(1, 2, 3, 4, 6, 8, 12, 16, 100, 200))
    assert pass_sizes(1, padded) == [1, 2, 3, 4, 6, 8, 12, 16, 100]
    assert pass_sizes(1, padded, every=False) == [1, 2, 4, 8, 16, 100]
    assert pass_sizes(5, padded)[0] == 6


@pytest.mark.parametrize(("tokens", "rows"), [(5, 1), (7, 3), (64, 64), (65, 64)])
def test_tokens_are_shared_evenly(tokens: int, rows: int) -> None:
    each = PassCase(tokens, rows, 0).row_tokens
    assert sum(each) == tokens and len(each) == rows
    assert max(each) - min(each) <= 1


def test_every_case_gives_one_time_and_short_drafts_are_timed_too() -> None:
    sweep = swept(Clock())
    shapes = [(one.rows, one.context_len) for one in sweep.passes]
    assert set(shapes) == {(rows, context) for context, rows in pass_shapes(WIDE)}
    assert all(one.time_ms == pytest.approx(5.0 + 0.1 * one.num_tokens) for one in sweep.passes)
    assert {(one.drafter, one.depth) for one in sweep.drafts} == {("block", depth) for depth in (0, 8, 4)}
    assert {one.rows for one in sweep.drafts} == {1, 4, 16, 64}
    assert not sweep.is_unsteady


def test_memory_and_context_bound_it() -> None:
    longest = max(one.context_len for one in swept(Clock(), WIDE._replace(max_context=1000)).passes)
    assert longest == 512
    assert {one.rows for one in swept(Clock(pages=3000)).passes if one.context_len == 512} == {1, 4}
    assert {one.rows for one in swept(Clock(), WIDE._replace(most_pages=3000)).passes} == {1, 4}


def test_nothing_larger_is_run_behind_a_pass_that_took_long() -> None:
    clock = Clock(lambda size: 10.0 * size)
    sweep = swept(clock, WIDE._replace(longest_ms=30.0, contexts=(512,), max_rows=1), ())
    assert [one.num_tokens for one in sweep.passes] == [1, 2, 4]
    assert len([case for case in clock.cases if case[0] == 4]) == 2


def test_the_budget_ends_it_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr("wager.engine.cost_sweep.time.perf_counter", lambda: float(next(ticks)))
    sweep = swept(Clock(), WIDE._replace(budget_s=13.0))
    assert [one.num_tokens for one in sweep.passes] == [1, 2, 4]


def test_the_cold_run_and_one_stall_do_not_count() -> None:
    times = iter([500.0, 5.0, 5.1, 90.0, 5.0, 5.2])
    sweep = swept(
        Clock(lambda _size: next(times, 5.3)), WIDE._replace(max_rows=1, max_nodes=1, contexts=(9,)), ()
    )
    assert sweep.passes[0].time_ms == pytest.approx(5.1)


def test_a_busy_machine_is_not_believed() -> None:
    count = iter(range(10**6))
    scattered = swept(Clock(lambda size: 5.0 + 4.0 * (next(count) % 3)))
    assert scattered.is_unsteady
    assert swept(Clock(lambda size: 20.0 if size == 2 else 5.0 + 0.1 * size)).is_unsteady
