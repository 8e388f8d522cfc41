"""Hands out pages by number, counts their references, and keeps a sequence in one consecutive run if
possible.

It does not know tensors, sequences or tokens. The scheduler allocates and releases pages. The prefix index
attaches itself to learn which of its pages have no other holder, and frees those when pages are needed.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol

from wager.errors import ConfigError, OutOfPages, PageError


class Reclaimer(Protocol):
    """A holder of pages that frees pages without another holder on request.

    `became_idle` and `became_busy` are called for every page whose count falls to one or rises from one; a
    reclaimer ignores pages that it does not hold. They must not call the allocator.
    """

    @property
    def num_evictable(self) -> int: ...

    def evict(self, num_pages: int) -> int: ...

    def became_idle(self, page: int) -> None: ...

    def became_busy(self, page: int) -> None: ...


class FreeRuns:
    """The free pages as maximal runs, indexed by start, by end and by length."""

    def __init__(self) -> None:
        self._length_at: dict[int, int] = {}
        self._start_before: dict[int, int] = {}
        self._by_length: list[tuple[int, int]] = []
        self.num_pages = 0

    def __len__(self) -> int:
        return len(self._by_length)

    def runs(self) -> list[tuple[int, int]]:
        """Returns every run as (start, length), in page order."""
        return sorted(self._length_at.items())

    def length_at(self, start: int) -> int:
        """Returns the length of the run that begins at `start`, or 0 if none begins there."""
        return self._length_at.get(start, 0)

    def best_fit(self, length: int) -> int | None:
        """Returns the start of the shortest run of at least `length` pages, or None."""
        place = bisect_left(self._by_length, (length, -1))
        return self._by_length[place][1] if place < len(self._by_length) else None

    def longest(self) -> int:
        """Returns the start of the longest run. Precondition: there is a free page."""
        return self._by_length[-1][1]

    def add(self, start: int, length: int) -> None:
        """Marks `length` pages from `start` as free and merges them with adjacent runs."""
        self.num_pages += length
        before = self._start_before.get(start)
        if before is not None:
            length += self._remove(before)
            start = before
        after = start + length
        if after in self._length_at:
            length += self._remove(after)
        self._insert(start, length)

    def take(self, run: int, length: int, offset: int = 0) -> list[int]:
        """Takes `length` pages, beginning `offset` pages into the run that starts at `run`."""
        left_over = self._remove(run) - offset - length
        assert left_over >= 0, "more pages are taken than the run has"
        start = run + offset
        if offset:
            self._insert(run, offset)
        if left_over:
            self._insert(start + length, left_over)
        self.num_pages -= length
        return list(range(start, start + length))

    def check(self) -> None:
        """Raises PageError unless the three indexes agree and no two runs touch."""
        runs = self.runs()
        if self._by_length != sorted((length, start) for start, length in runs):
            raise PageError("free runs: the index by length differs from the index by start")
        if self._start_before != {start + length: start for start, length in runs}:
            raise PageError("free runs: the index by end differs from the index by start")
        if self.num_pages != sum(length for _, length in runs):
            raise PageError("free runs: the number of pages is not the sum of the runs")
        for (start, length), (following, _) in pairwise(runs):
            if start + length >= following:
                raise PageError(f"free runs: the runs at {start} and {following} touch or overlap")

    def _insert(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._start_before[start + length] = start
        insort(self._by_length, (length, start))

    def _remove(self, start: int) -> int:
        length = self._length_at.pop(start)
        del self._start_before[start + length]
        del self._by_length[bisect_left(self._by_length, (length, start))]
        return length


class PageAllocator:
    """Counts the references to `num_pages` pages of `page_size` positions each."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 1:
            raise ConfigError("num_pages", num_pages, "at least 1")
        if page_size < 1:
            raise ConfigError("page_size", page_size, "at least 1")
        self.num_pages = num_pages
        self.page_size = page_size
        self._counts = [0] * num_pages
        self._free = FreeRuns()
        self._free.add(0, num_pages)
        self._reclaimer: Reclaimer | None = None

    def attach(self, reclaimer: Reclaimer) -> None:
        """Registers the only reclaimer. Precondition: no page has been handed out."""
        if self._reclaimer is not None or self.num_used:
            raise PageError("only one reclaimer may be attached, before the first page is handed out")
        self._reclaimer = reclaimer

    @property
    def num_free(self) -> int:
        return self._free.num_pages

    @property
    def num_used(self) -> int:
        return self.num_pages - self._free.num_pages

    @property
    def num_available(self) -> int:
        """Number of free pages plus pages that an allocation could evict."""
        reclaimer = self._reclaimer
        return self._free.num_pages + (reclaimer.num_evictable if reclaimer is not None else 0)

    @property
    def longest_run(self) -> int:
        """Length of the longest run of free pages."""
        return self._free.length_at(self._free.longest()) if self.num_free else 0

    def count(self, page: int) -> int:
        """Returns the number of references to `page`; 0 means free."""
        return self._counts[page]

    def pages_for(self, num_positions: int) -> int:
        """Returns the number of pages that `num_positions` positions need."""
        return -(-num_positions // self.page_size)

    def allocate(self, num_pages: int, after: int | None = None, reserve: int = 0) -> list[int]:
        """Hands out `num_pages` pages with one reference each, in few runs and in the order to fill them.

        `after` is the last page of a growing sequence: the pages that follow it are preferred. For a new
        sequence, `reserve` is the number of pages it may grow by. It is a hint for the position: no page is
        reserved. If pages are short, idle pages of the reclaimer are evicted. Raises OutOfPages, without
        taking a page, if that is not enough.
        """
        self._make_room(num_pages)
        pages = self._extend(after, num_pages) if after is not None else []
        if reserve > 0 and len(pages) < num_pages:
            pages += self._spread(num_pages - len(pages), reserve)
        if len(pages) < num_pages:
            pages += self._gather(num_pages - len(pages))
        for page in pages:
            self._counts[page] = 1
        return pages

    def retain(self, pages: Iterable[int]) -> None:
        """Adds a reference to each of `pages`. Precondition: they are in use."""
        for page in pages:
            count = self._count_in_use(page)
            self._counts[page] = count + 1
            if count == 1 and self._reclaimer is not None:
                self._reclaimer.became_busy(page)

    def release(self, pages: Iterable[int]) -> None:
        """Drops a reference to each of `pages`; pages without a reference become free."""
        freed: list[int] = []
        try:
            for page in pages:
                self._drop(page, freed)
        finally:
            for start, length in consecutive_runs(sorted(freed)):
                self._free.add(start, length)

    def check(self, holders: Iterable[Sequence[int]] | None = None) -> None:
        """Raises PageError on an inconsistency; with `holders`, also if a count differs from their
        references.
        """
        self._free.check()
        free = {page for start, length in self._free.runs() for page in range(start, start + length)}
        if not free <= set(range(self.num_pages)):
            raise PageError("pages outside the pool are free")
        for page, count in enumerate(self._counts):
            if (count == 0) != (page in free):
                raise PageError(f"page {page} has count {count} and is {'' if page in free else 'not '}free")
        if holders is None:
            return
        held = Counter(page for pages in holders for page in pages)
        for page, count in enumerate(self._counts):
            if held[page] != count:
                raise PageError(f"page {page} has count {count} but {held[page]} holders")

    def _count_in_use(self, page: int) -> int:
        count = self._counts[page] if 0 <= page < self.num_pages else 0
        if count == 0:
            raise PageError(f"page {page} is not in use")
        return count

    def _drop(self, page: int, freed: list[int]) -> None:
        count = self._count_in_use(page)
        self._counts[page] = count - 1
        if count == 1:
            freed.append(page)
        elif count == 2 and self._reclaimer is not None:
            self._reclaimer.became_idle(page)

    def _make_room(self, num_pages: int) -> None:
        if num_pages < 0:
            raise PageError(f"{num_pages} pages cannot be allocated")
        short = num_pages - self.num_free
        if short <= 0:
            return
        if self._reclaimer is None or self.num_available < num_pages:
            raise OutOfPages(num_pages, self.num_available)
        self._reclaimer.evict(short)
        if self.num_free < num_pages:
            raise PageError(f"the reclaimer promised {short} pages and did not free them")

    def _extend(self, after: int, num_pages: int) -> list[int]:
        """Takes the free pages directly behind `after`, up to `num_pages`.

        Fewer pages are taken too: the sequence continues in another run in any case, and no small gap
        remains.
        """
        length = min(self._free.length_at(after + 1), num_pages)
        return self._free.take(after + 1, length) if length else []

    def _spread(self, num_pages: int, reserve: int) -> list[int]:
        """Takes pages in the middle of the longest run, nearer to its start if `reserve` would not fit behind
        them.
        """
        run = self._free.longest()
        room = self._free.length_at(run) - num_pages
        if room < 0:
            return []
        offset = 0 if run == 0 else max(0, min(room // 2, room - reserve))
        return self._free.take(run, num_pages, offset)

    def _gather(self, num_pages: int) -> list[int]:
        """Takes the shortest run that fits, else the longest runs until there are enough pages."""
        pages: list[int] = []
        while len(pages) < num_pages:
            wanted = num_pages - len(pages)
            run = self._free.best_fit(wanted)
            if run is None:
                run = self._free.longest()
            pages += self._free.take(run, min(wanted, self._free.length_at(run)))
        return pages


def consecutive_runs(pages: Iterable[int]) -> list[tuple[int, int]]:
    """Splits page ids, in their order, into runs (start, length) of consecutive ids."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and page == runs[-1][0] + runs[-1][1]:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((page, 1))
    return runs
