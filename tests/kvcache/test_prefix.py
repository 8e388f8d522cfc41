"""The prefix index: what it matches, refuses and evicts, and a random walk against a naive model of it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wager.errors import OutOfPages, PageError
from wager.kvcache.pages import PageAllocator
from wager.kvcache.prefix import PrefixIndex

SIZE = 2


def new_index(num_pages: int = 16) -> tuple[PageAllocator, PrefixIndex]:
    pages = PageAllocator(num_pages, SIZE)
    return pages, PrefixIndex(SIZE, pages)


def remember(pages: PageAllocator, index: PrefixIndex, token_ids: list[int], **options) -> list[int]:
    """Run a sequence over `token_ids` and let it go; returns the pages it had."""
    held = pages.allocate(pages.pages_for(len(token_ids)))
    index.insert(token_ids, held, **options)
    pages.release(held)
    return held


def test_match_is_the_longest_run_of_full_pages_and_is_retained():
    pages, index = new_index()
    held = remember(pages, index, [1, 2, 3, 4, 5])
    assert len(index) == 2 and held[2] not in index
    assert index.match([1, 2, 3, 4, 5, 6]) == held[:2]
    assert [pages.count(page) for page in held] == [2, 2, 0]
    assert index.match([1, 2, 9, 9, 9]) == held[:1]
    assert index.match([2, 1, 3, 4, 5]) == []


@pytest.mark.parametrize(
    ("prompt", "num_matched"), [([], 0), ([1], 0), ([1, 2], 0), ([1, 2, 3], 1), ([1, 2, 3, 4], 1)]
)
def test_one_token_is_always_left_to_compute(prompt, num_matched):
    pages, index = new_index()
    remember(pages, index, [1, 2, 3, 4])
    assert len(index.match(prompt)) == num_matched


def test_equal_hashes_are_not_equal_tokens():
    twin = 2**61 - 1
    assert hash(twin) == hash(0) and hash((twin, 5)) == hash((0, 5))
    pages, index = new_index()
    remember(pages, index, [0, 5])
    assert index.match([twin, 5, 7]) == []


def test_salt_keeps_contexts_apart():
    pages, index = new_index()
    held = remember(pages, index, [1, 2], salt="tenant")
    assert index.match([1, 2, 3]) == []
    assert index.match([1, 2, 3], salt="other") == []
    assert index.match([1, 2, 3], salt="tenant") == held


def test_need_draft_stops_at_the_first_page_without_drafter_context():
    pages, index = new_index()
    held = remember(pages, index, [1, 2, 3, 4])
    assert index.match([1, 2, 3, 4, 5], need_draft=True) == []
    index.insert([1, 2], held[:1], draft_ready=True)
    assert index.match([1, 2, 3, 4, 5], need_draft=True) == held[:1]
    assert index.match([1, 2, 3, 4, 5]) == held


def test_a_copy_with_drafter_context_takes_the_place_of_one_without():
    pages, index = new_index()
    plain = remember(pages, index, [1, 2])
    other = pages.allocate(1)
    assert index.insert([1, 2], other, draft_ready=True) == 0
    assert index.match([1, 2, 3], need_draft=True) == other
    assert pages.count(plain[0]) == 0
    index.check()


def test_a_second_copy_is_not_remembered():
    pages, index = new_index()
    first = remember(pages, index, [1, 2], draft_ready=True)
    second = remember(pages, index, [1, 2], draft_ready=True)
    assert first[0] in index and pages.num_used == 1
    assert second[0] not in index


def test_one_page_cannot_stand_for_two_beginnings():
    pages, index = new_index()
    held = pages.allocate(1)
    index.insert([1, 2], held)
    with pytest.raises(PageError, match="two different"):
        index.insert([3, 4], held)


def test_idle_pages_count_as_available_and_are_evicted_on_demand():
    pages, index = new_index(4)
    remember(pages, index, [1, 2, 3, 4])
    assert (pages.num_free, index.num_evictable, pages.num_available) == (2, 2, 4)
    assert len(pages.allocate(3)) == 3
    assert index.match([1, 2, 9]) != [], "the leaf goes before the page in front of it"
    with pytest.raises(OutOfPages):
        pages.allocate(1)


def test_least_recently_used_goes_first():
    pages, index = new_index()
    old, new = remember(pages, index, [1, 2]), remember(pages, index, [3, 4])
    pages.release(index.match([1, 2, 9]))
    assert index.evict(1) == 1
    assert old[0] in index and new[0] not in index


def test_held_pages_are_not_evicted():
    pages, index = new_index()
    remember(pages, index, [1, 2, 3, 4])
    index.match([1, 2, 9])
    assert index.evict(5) == 1


def test_an_idle_page_in_front_of_a_held_one_can_still_be_freed():
    pages, index = new_index()
    first = remember(pages, index, [1, 2])
    own = pages.allocate(2)
    index.insert([1, 2, 3, 4], own)
    assert index.num_evictable == 1
    assert index.evict(1) == 1
    assert first[0] not in index and own[1] not in index
    pages.check([own])
    index.check()


def test_no_more_is_freed_than_asked_for():
    pages, index = new_index()
    remember(pages, index, [1, 2, 3, 4])
    own = pages.allocate(3)
    index.insert([1, 2, 3, 4, 5, 6], own)
    assert index.num_evictable == 2
    assert index.evict(1) == 1
    assert len(index.match([1, 2, 3, 4, 5])) == 1


def test_clear_forgets_all_but_takes_nothing_from_holders():
    pages, index = new_index()
    remember(pages, index, [1, 2, 3, 4])
    held = index.match([1, 2, 9])
    index.clear()
    pages.check([held])
    assert len(index) == index.num_evictable == 0 and index.match([1, 2, 9]) == []


def test_the_queue_of_leaves_does_not_grow_with_use():
    pages, index = new_index()
    remember(pages, index, [1, 2])
    for _ in range(500):
        pages.release(index.match([1, 2, 3]))
    assert len(index._idle_leaves) < 100
    index.check()


def test_page_sizes_must_agree():
    with pytest.raises(PageError, match="pages of 4"):
        PrefixIndex(4, PageAllocator(4, 2))


def test_a_late_reclaimer_is_refused():
    pages, _ = new_index()
    with pytest.raises(PageError, match="only one reclaimer"):
        PrefixIndex(SIZE, pages)


class Remembered:
    """What the naive model knows of one page."""

    def __init__(self, page: int, ready: bool) -> None:
        self.page, self.ready, self.idle_since = page, ready, 0


class PrefixWalk(RuleBasedStateMachine):
    """The model is a plain dict from whole prefixes to pages, searched from end to end for every question."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageAllocator(12, SIZE)
        self.index = PrefixIndex(SIZE, self.pages)
        self.known: dict[tuple[int, ...], Remembered] = {}
        self.rows: list[list[int]] = []
        self.clock = 0

    tokens = st.lists(st.integers(0, 1), max_size=9)

    def held(self, page: int) -> bool:
        return any(page in row for row in self.rows)

    def expected_match(self, prompt, need_draft):
        found = []
        for end in range(SIZE, len(prompt), SIZE):
            item = self.known.get(tuple(prompt[:end]))
            if item is None or (need_draft and not item.ready):
                break
            found.append(item.page)
        return found

    def evict_one(self):
        idle = {prefix: item for prefix, item in self.known.items() if not self.held(item.page)}
        leaves = {p: i for p, i in idle.items() if not any(q[: len(p)] == p and q != p for q in self.known)}
        if leaves:
            victim = min(leaves, key=lambda prefix: leaves[prefix].idle_since)
        else:
            deep = [p for p in idle if not any(q[: len(p)] == p and q != p for q in idle)]
            assert deep, "nothing to evict"
            return deep
        del self.known[victim]
        return None

    @rule(prompt=tokens, ready=st.booleans(), need_draft=st.booleans())
    def run_sequence(self, prompt, ready, need_draft):
        row = self.index.match(prompt, need_draft)
        assert row == self.expected_match(prompt, need_draft)
        self.rows.append(row)
        missing = self.pages.pages_for(len(prompt)) - len(row)
        if not self.reserve(missing):
            return
        row += self.pages.allocate(missing, after=row[-1] if row else None)
        self.index.insert(prompt, row, draft_ready=ready)
        self.learn(prompt, row, ready)

    def learn(self, prompt, row, ready):
        for place, end in enumerate(range(SIZE, len(prompt) + 1, SIZE)):
            item = self.known.setdefault(tuple(prompt[:end]), Remembered(row[place], ready))
            if ready and not item.ready:
                item.page = row[place]
                item.ready = True

    def reserve(self, count):
        """Follow the evictions that an allocation of `count` causes; False when it cannot be served."""
        idle = sum(not self.held(item.page) for item in self.known.values())
        if count > self.pages.num_free + idle:
            with pytest.raises(OutOfPages):
                self.pages.allocate(count)
            return False
        self.follow(count - self.pages.num_free)
        return True

    def follow(self, count):
        for _ in range(max(0, count)):
            deep = self.evict_one()
            if deep:
                self.index.evict(1)
                gone = [prefix for prefix in deep if self.known[prefix].page not in self.index]
                assert len(gone) == 1
                self.known = {p: i for p, i in self.known.items() if p[: len(gone[0])] != gone[0]}
            else:
                self.index.evict(1)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def leave(self, data):
        row = self.rows.pop(data.draw(st.integers(0, len(self.rows) - 1)))
        self.pages.release(row)
        for page in row:
            self.clock += 1
            for item in self.known.values():
                if item.page == page and not self.held(page):
                    item.idle_since = self.clock

    @rule(count=st.integers(0, 3))
    def evict(self, count):
        idle = sum(not self.held(item.page) for item in self.known.values())
        self.follow(min(count, idle))

    @rule()
    def forget_all(self):
        self.index.clear()
        self.known.clear()

    @invariant()
    def agree(self):
        self.pages.check([*self.rows, self.index.pages()])
        self.index.check()
        assert sorted(self.index.pages()) == sorted(item.page for item in self.known.values())
        assert self.index.num_evictable == sum(not self.held(item.page) for item in self.known.values())


TestPrefixWalk = PrefixWalk.TestCase
TestPrefixWalk.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
