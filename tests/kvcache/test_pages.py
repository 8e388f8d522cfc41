"""The page allocator: placement on known layouts, refusals, and a random walk that must never leak."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wager.errors import CapacityError, ConfigError, OutOfPages, PageError
from wager.kvcache.pages import PageAllocator, consecutive_runs


def is_one_run(pages: list[int]) -> bool:
    return len(consecutive_runs(pages)) <= 1


def with_free(num_pages: int, free: set[int]) -> PageAllocator:
    """An allocator in which exactly `free` pages are free."""
    pages = PageAllocator(num_pages, 16)
    pages.release(sorted(set(pages.allocate(num_pages)) & free))
    return pages


def test_a_fresh_pool_is_one_run():
    pages = PageAllocator(10, 16)
    assert pages.allocate(4) == [0, 1, 2, 3]
    assert (pages.num_free, pages.num_used, pages.num_available) == (6, 4, 6)


def test_growth_follows_the_last_page():
    pages = PageAllocator(10, 16)
    first = pages.allocate(2)
    other = pages.allocate(1, reserve=3)
    assert other[0] > first[-1] + 1
    assert pages.allocate(1, after=first[-1]) == [first[-1] + 1]


def test_growth_takes_the_little_room_behind_it_first():
    pages = with_free(10, {3, 6, 7, 8})
    assert pages.allocate(3, after=2) == [3, 6, 7]


def test_growth_without_room_behind_goes_elsewhere_in_one_run():
    pages = with_free(10, {0, 5, 6, 7})
    assert pages.allocate(2, after=3) == [5, 6]


def test_best_fit_prefers_the_tightest_run():
    pages = with_free(12, {0, 1, 2, 3, 6, 7, 9})
    assert pages.allocate(2) == [6, 7]
    assert pages.allocate(1) == [9]


def test_scattered_allocation_uses_the_longest_runs():
    pages = with_free(12, {0, 2, 3, 5, 6, 7})
    assert pages.allocate(5) == [5, 6, 7, 2, 3]


def test_new_sequences_with_a_reserve_leave_each_other_room():
    pages = PageAllocator(64, 16)
    rows = [pages.allocate(1, reserve=8) for _ in range(4)]
    for _ in range(8):
        for row in rows:
            row += pages.allocate(1, after=row[-1], reserve=8)
    assert all(is_one_run(row) for row in rows)
    pages.check(rows)


def test_reserve_bends_to_what_is_left():
    pages = with_free(10, {4, 5, 6, 7})
    assert pages.allocate(2, reserve=2) == [4, 5]
    assert pages.allocate(2, reserve=100) == [6, 7]


def test_allocating_nothing_changes_nothing():
    pages = PageAllocator(4, 16)
    pages.allocate(1)
    assert pages.allocate(0, after=0, reserve=3) == []
    pages.check([[0]])


def test_out_of_pages_takes_nothing():
    pages = PageAllocator(4, 16)
    held = pages.allocate(3)
    with pytest.raises(OutOfPages) as caught:
        pages.allocate(2)
    assert isinstance(caught.value, CapacityError)
    assert (caught.value.num_wanted, caught.value.num_available) == (2, 1)
    pages.check([held])


def test_shared_pages_live_until_the_last_holder_goes():
    pages = PageAllocator(4, 16)
    held = pages.allocate(2)
    pages.retain(held)
    pages.release(held)
    assert pages.num_used == 2
    pages.release(held)
    assert pages.num_free == 4
    assert pages.allocate(4) == [0, 1, 2, 3]


@pytest.mark.parametrize("page", [3, -1, 4])
def test_pages_not_in_use_are_refused(page):
    pages = PageAllocator(4, 16)
    held = pages.allocate(2)
    with pytest.raises(PageError):
        pages.retain([page])
    with pytest.raises(PageError):
        pages.release([0, page])
    pages.check([held[1:]])


@pytest.mark.parametrize(("num_pages", "page_size"), [(0, 16), (4, 0)])
def test_impossible_sizes_are_refused(num_pages, page_size):
    with pytest.raises(ConfigError):
        PageAllocator(num_pages, page_size)


def test_check_sees_corruption():
    pages = PageAllocator(4, 16)
    held = pages.allocate(2)
    with pytest.raises(PageError, match="2 holders"):
        pages.check([held, held])
    with pytest.raises(PageError, match="0 holders"):
        pages.check([])
    pages._counts[3] = 1
    with pytest.raises(PageError, match="page 3"):
        pages.check()


def test_check_sees_runs_that_touch():
    pages = PageAllocator(4, 16)
    pages._free._remove(0)
    pages._free._insert(0, 2)
    pages._free._insert(2, 2)
    with pytest.raises(PageError, match="touch"):
        pages.check()


def test_pages_for_rounds_up():
    assert [PageAllocator(4, 16).pages_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


class AllocatorWalk(RuleBasedStateMachine):
    """Sequences come, grow, share and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageAllocator(24, 4)
        self.rows: list[list[int]] = []

    @rule(count=st.integers(0, 10), reserve=st.integers(0, 8))
    def arrive(self, count, reserve):
        self._allocate(count, None, reserve)

    @precondition(lambda self: any(self.rows))
    @rule(data=st.data(), count=st.integers(1, 3), reserve=st.integers(0, 4))
    def grow(self, data, count, reserve):
        row = data.draw(st.sampled_from([row for row in self.rows if row]))
        self._allocate(count, row[-1], reserve)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def share(self, data):
        row = data.draw(st.sampled_from(self.rows))
        part = row[: data.draw(st.integers(0, len(row)))]
        self.pages.retain(part)
        self.rows.append(part)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def leave(self, data):
        row = self.rows.pop(data.draw(st.integers(0, len(self.rows) - 1)))
        self.pages.release(row)

    def _allocate(self, count, after, reserve):
        in_use = {page for row in self.rows for page in row}
        free = 24 - len(in_use)
        if count > free:
            with pytest.raises(OutOfPages):
                self.pages.allocate(count, after, reserve)
            return
        longest = max((length for _, length in consecutive_runs(sorted(set(range(24)) - in_use))), default=0)
        got = self.pages.allocate(count, after, reserve)
        assert len(got) == len(set(got)) == count
        assert not in_use & set(got)
        if after is None and count <= longest:
            assert is_one_run(got)
        if after is not None and after + 1 < 24 and after + 1 not in in_use:
            assert got[0] == after + 1
        self.rows.append(got)

    @invariant()
    def accounts_agree(self):
        self.pages.check(self.rows)
        assert self.pages.num_used == len({page for row in self.rows for page in row})


TestAllocatorWalk = AllocatorWalk.TestCase
TestAllocatorWalk.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
