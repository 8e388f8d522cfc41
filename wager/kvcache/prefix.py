"""Remembers which full pages hold which token prefix, so that a later prompt reuses computed pages.

The index is a trie: a page is found by its parent and its own token ids, so different tokens with equal
hashes never match. It holds one reference to each remembered page and frees idle pages, least recently used
first, when the allocator needs pages. It does not know tensors or sequences. The scheduler matches prompts
and inserts full pages.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from wager.errors import PageError
from wager.kvcache.pages import PageAllocator

Key = tuple[int | str, ...]


@dataclass(eq=False, slots=True)
class PrefixNode:
    """One remembered page; the root has neither a page nor a parent.

    `key` identifies the node among its siblings: its token ids and, for the first page, the salt.
    """

    key: Key = ()
    page: int = -1
    parent: "PrefixNode | None" = None
    children: dict[Key, "PrefixNode"] = field(default_factory=dict)
    draft_ready: bool = False
    idle: bool = False
    idle_since: int = 0


class PrefixIndex:
    """The trie of the remembered pages of one allocator.

    The `salt` of a call separates contexts with equal tokens that must not be shared, for example those of
    another drafter, adapter or tenant.
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
        allocator.attach(self)

    def __len__(self) -> int:
        return len(self._by_page)

    def __contains__(self, page: int) -> bool:
        return page in self._by_page

    @property
    def num_evictable(self) -> int:
        """Number of remembered pages without another holder."""
        return self._num_idle

    def match(self, token_ids: Sequence[int], need_draft: bool = False, salt: str = "") -> list[int]:
        """Returns the pages of the longest remembered prefix of `token_ids`, retained for the caller.

        At least one token is left to compute, because the pass must return logits. With `need_draft` the
        match ends at the first page without the drafter's context.
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
        return pages

    def insert(
        self, token_ids: Sequence[int], pages: Sequence[int], draft_ready: bool = False, salt: str = ""
    ) -> int:
        """Remembers the full pages of a sequence whose tokens are in `pages`, and returns the number of new
        pages.

        The caller must hold `pages` and must not write to the full ones afterwards. If the same tokens are
        already remembered in another page, that page stays, unless only the new page has the drafter's
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

    def evict(self, num_pages: int) -> int:
        """Frees up to `num_pages` idle pages, least recently used leaves first, and returns the number of
        freed pages.

        An idle page can have a descendant that a sequence holds, because this sequence computed its own copy
        of the prefix. Such a page is freed only if no idle leaf is left, and its descendants are forgotten
        with it.
        """
        freed: list[int] = []
        while len(freed) < num_pages and self._num_idle:
            node = self._oldest_idle_leaf() or self._oldest_idle()
            freed += self._forget(node)
        return len(freed)

    def clear(self) -> None:
        """Forgets every page; pages that sequences hold stay in use."""
        pages = list(self._by_page)
        self._by_page.clear()
        self._root = PrefixNode()
        self._idle_leaves.clear()
        self._num_idle = 0
        self._allocator.release(pages)

    def pages(self) -> list[int]:
        """Returns the pages to which the index holds a reference."""
        return list(self._by_page)

    def check(self) -> None:
        """Raises PageError unless the trie, the page table, the idle marks and the allocator agree."""
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
        """Marks a page as idle: the index is now its only holder."""
        node = self._by_page.get(page)
        if node is None:
            return
        self._clock += 1
        node.idle, node.idle_since = True, self._clock
        self._num_idle += 1
        self._queue_for_eviction(node)

    def became_busy(self, page: int) -> None:
        """Marks a page as busy: it has a holder besides the index."""
        node = self._by_page.get(page)
        if node is not None:
            node.idle = False
            self._num_idle -= 1

    def _keys(self, token_ids: Sequence[int], num_pages: int, salt: str) -> Iterator[Key]:
        """Yields the keys of the first `num_pages` pages."""
        size = self.page_size
        for start in range(0, num_pages * size, size):
            key: Key = tuple(token_ids[start : start + size])
            yield key if start else (salt, *key)

    def _hold(self, node: PrefixNode, page: int) -> None:
        if page in self._by_page:
            raise PageError(f"page {page} is inserted under two different prefixes")
        self._allocator.retain([page])
        node.page, node.idle = page, False
        self._by_page[page] = node

    def _replace(self, node: PrefixNode, page: int) -> None:
        """Replaces the page of a node by another page with the same tokens."""
        old, was_idle = node.page, node.idle
        self._hold(node, page)
        del self._by_page[old]
        self._num_idle -= was_idle
        self._allocator.release([old])

    def _forget(self, node: PrefixNode) -> list[int]:
        """Removes a node and its descendants; returns the pages that became free."""
        dropped = list(subtree(node))
        parent = node.parent
        assert parent is not None, "a root is never forgotten"
        del parent.children[node.key]
        for each in dropped:
            del self._by_page[each.page]
            self._num_idle -= each.idle
        self._allocator.release(each.page for each in dropped)
        self._queue_for_eviction(parent)
        return [each.page for each in dropped if each.idle]

    def _queue_for_eviction(self, node: PrefixNode) -> None:
        """Queues a node for eviction if it is an idle leaf; outdated entries are dropped when they are
        reached.
        """
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
        """Returns the least recently used idle node that has no idle descendant."""
        candidates = [node for node in self._by_page.values() if node.idle]
        while candidates:
            node = min(candidates, key=lambda node: node.idle_since)
            candidates = [below for below in subtree(node) if below.idle and below is not node]
        return node


def subtree(node: PrefixNode) -> Iterator[PrefixNode]:
    """Yields the node and all its descendants."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children.values()
