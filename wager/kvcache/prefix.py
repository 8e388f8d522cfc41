"""Remembers which full pages hold which token prefix, so that a later prompt starts from computed pages.

A trie: a page is found by its parent and its own token ids, so equal hashes of different tokens never match.
The index holds one reference to each page it remembers and gives up idle ones, least recently used first,
when the allocator runs short. It does not know tensors or sequences. The scheduler matches prompts and
inserts what is full.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wager.errors import PageError
from wager.kvcache.pages import PageAllocator

Key = tuple[int | str, ...]


class PrefixStats(NamedTuple):
    """Totals since the index was made; `num_pages` and `num_evictable` are as of now."""

    num_lookups: int
    num_hits: int
    num_tokens_asked: int
    num_tokens_reused: int
    num_evicted: int
    num_pages: int
    num_evictable: int


@dataclass(eq=False, slots=True)
class PrefixNode:
    """One remembered page. The root has no page of its own and no parent.

    `key` is what its parent knows it by: its token ids, and on the first page also the salt.
    """

    key: Key = ()
    page: int = -1
    parent: "PrefixNode | None" = None
    children: dict[Key, "PrefixNode"] = field(default_factory=dict)
    draft_ready: bool = False
    idle: bool = False
    idle_since: int = 0


class PrefixIndex:
    """The trie of remembered pages over one allocator.

    The `salt` of a call keeps apart contexts that must not mix although their tokens are equal: another
    drafter, another adapter, another tenant.
    """

    def __init__(self, page_size: int, allocator: PageAllocator) -> None:
        if page_size != allocator.page_size:
            raise PageError(f"the index has pages of {page_size}, the allocator of {allocator.page_size}")
        self.page_size = page_size
        self._allocator = allocator
        self._root = PrefixNode()
        self._by_page: dict[int, PrefixNode] = {}
        self._idle_leaves: list[tuple[int, int]] = []
        self._num_idle = 0
        self._clock = 0
        self._num_lookups = self._num_hits = self._num_asked = self._num_reused = self._num_evicted = 0
        allocator.attach(self)

    def __len__(self) -> int:
        return len(self._by_page)

    def __contains__(self, page: int) -> bool:
        return page in self._by_page

    @property
    def num_evictable(self) -> int:
        """Remembered pages that nobody else holds."""
        return self._num_idle

    @property
    def num_available(self) -> int:
        """Pages an allocation can get: free or evictable."""
        return self._allocator.num_available

    @property
    def stats(self) -> PrefixStats:
        return PrefixStats(
            self._num_lookups,
            self._num_hits,
            self._num_asked,
            self._num_reused,
            self._num_evicted,
            len(self._by_page),
            self._num_idle,
        )

    def match(self, token_ids: Sequence[int], need_draft: bool = False, salt: str = "") -> list[int]:
        """The pages of the longest remembered beginning of `token_ids`, retained for the caller.

        At least one token is always left to compute, or there would be no logits to go on from. With
        `need_draft` the match ends at the first page that lacks the drafter's context.
        """
        node = self._root
        pages: list[int] = []
        for key in self._keys(token_ids, (len(token_ids) - 1) // self.page_size, salt):
            child = node.children.get(key)
            if child is None or (need_draft and not child.draft_ready):
                break
            pages.append(child.page)
            node = child
        self._allocator.retain(pages)
        self._count_lookup(len(token_ids), len(pages))
        return pages

    def insert(
        self, token_ids: Sequence[int], pages: Sequence[int], draft_ready: bool = False, salt: str = ""
    ) -> int:
        """Remember the full pages of a sequence whose tokens lie in `pages`; returns how many are new.

        The caller must hold `pages`, and must not write into the full ones again. Where the same tokens are
        already remembered in another page, that page stays, unless only the new one has the drafter's
        context.
        """
        node = self._root
        num_new = 0
        for key, page in zip(
            self._keys(token_ids, len(token_ids) // self.page_size, salt), pages, strict=False
        ):
            child = node.children.get(key)
            if child is None:
                child = PrefixNode(key, parent=node)
                self._hold(child, page)
                node.children[key] = child
                num_new += 1
            elif draft_ready and not child.draft_ready and child.page != page:
                self._replace(child, page)
            child.draft_ready |= draft_ready
            node = child
        return num_new

    def mark_draft_ready(self, pages: Iterable[int]) -> None:
        """Say that the drafter's context of these pages is complete; pages not remembered are passed over."""
        for page in pages:
            node = self._by_page.get(page)
            if node is not None:
                node.draft_ready = True

    def evict(self, num_pages: int) -> int:
        """Free up to `num_pages` idle pages, least recently used leaves first; returns how many were freed.

        An idle page may lie in front of one that a sequence holds (which computed its own copy of that
        beginning). Only when no idle leaf is left is such a page freed, and what lies behind it is forgotten
        with it.
        """
        freed: list[int] = []
        while len(freed) < num_pages and self._num_idle:
            node = self._oldest_idle_leaf() or self._oldest_idle()
            freed += self._forget(node)
        self._num_evicted += len(freed)
        return len(freed)

    def clear(self) -> None:
        """Forget every page; those that sequences hold stay theirs."""
        pages = list(self._by_page)
        self._by_page.clear()
        self._root = PrefixNode()
        self._idle_leaves.clear()
        self._num_idle = 0
        self._allocator.release(pages)

    def pages(self) -> list[int]:
        """The pages the index holds a reference to."""
        return list(self._by_page)

    def check(self) -> None:
        """Raise PageError unless trie, page table and idle marks agree with one another and the allocator."""
        reached = [node for node in subtree(self._root) if node is not self._root]
        if {node.page: node for node in reached} != self._by_page or len(reached) != len(self._by_page):
            raise PageError("prefix index: the trie and the page table differ")
        if self._num_idle != sum(node.idle for node in reached):
            raise PageError("prefix index: the number of idle pages is wrong")
        queued = set(self._idle_leaves)
        for node in reached:
            if node.idle != (self._allocator.count(node.page) == 1):
                raise PageError(f"prefix index: page {node.page} is wrongly marked idle or busy")
            if node.idle and not node.children and (node.idle_since, node.page) not in queued:
                raise PageError(f"prefix index: idle leaf page {node.page} can never be evicted")

    def became_idle(self, page: int) -> None:
        """The allocator saw the last holder beside the index go."""
        node = self._by_page.get(page)
        if node is None:
            return
        self._clock += 1
        node.idle, node.idle_since = True, self._clock
        self._num_idle += 1
        self._offer(node)

    def became_busy(self, page: int) -> None:
        """The allocator saw somebody join the index in holding the page."""
        node = self._by_page.get(page)
        if node is not None:
            node.idle = False
            self._num_idle -= 1

    def _keys(self, token_ids: Sequence[int], num_pages: int, salt: str) -> Iterator[Key]:
        """The keys of the first `num_pages` pages."""
        size = self.page_size
        for start in range(0, num_pages * size, size):
            key: Key = tuple(token_ids[start : start + size])
            yield key if start else (salt, *key)

    def _count_lookup(self, num_tokens: int, num_pages: int) -> None:
        self._num_lookups += 1
        self._num_hits += num_pages > 0
        self._num_asked += num_tokens
        self._num_reused += num_pages * self.page_size

    def _hold(self, node: PrefixNode, page: int) -> None:
        if page in self._by_page:
            raise PageError(f"page {page} is inserted under two different beginnings")
        self._allocator.retain([page])
        node.page, node.idle = page, False
        self._by_page[page] = node

    def _replace(self, node: PrefixNode, page: int) -> None:
        """Let `page` stand for the node's tokens instead of the page that did."""
        old, was_idle = node.page, node.idle
        self._hold(node, page)
        del self._by_page[old]
        self._num_idle -= was_idle
        self._allocator.release([old])

    def _forget(self, node: PrefixNode) -> list[int]:
        """Drop a node with all behind it; returns the pages that became free."""
        dropped = list(subtree(node))
        parent = node.parent
        assert parent is not None, "a root is never forgotten"
        del parent.children[node.key]
        for each in dropped:
            del self._by_page[each.page]
            self._num_idle -= each.idle
        self._allocator.release(each.page for each in dropped)
        self._offer(parent)
        return [each.page for each in dropped if each.idle]

    def _offer(self, node: PrefixNode) -> None:
        """Queue a node for eviction if it is an idle leaf; entries go stale and are dropped when met."""
        if node.idle and not node.children:
            heapq.heappush(self._idle_leaves, (node.idle_since, node.page))
        if len(self._idle_leaves) > 2 * len(self._by_page) + 64:
            self._idle_leaves = sorted(set(filter(self._is_current, self._idle_leaves)))

    def _is_current(self, entry: tuple[int, int]) -> bool:
        node = self._by_page.get(entry[1])
        return node is not None and node.idle and not node.children and node.idle_since == entry[0]

    def _oldest_idle_leaf(self) -> PrefixNode | None:
        while self._idle_leaves:
            entry = heapq.heappop(self._idle_leaves)
            if self._is_current(entry):
                return self._by_page[entry[1]]
        return None

    def _oldest_idle(self) -> PrefixNode:
        """The idle node to give up with all behind it: as old as can be, but with no idle one behind it."""
        candidates = [node for node in self._by_page.values() if node.idle]
        while candidates:
            node = min(candidates, key=lambda node: node.idle_since)
            candidates = [below for below in subtree(node) if below.idle and below is not node]
        return node


def subtree(node: PrefixNode) -> Iterator[PrefixNode]:
    """The node and all behind it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children.values()
