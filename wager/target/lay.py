"""Lay the rows of a step into the tables of a captured pass, all rows at once.

What differs from row to row is gathered as plain numbers in one walk over them; positions, slots and lines of
the row table follow for all tokens together. One row by itself and a step of plain rows, one pending token
each, take shorter ways. Called by graphs.py; inputs.py does the same for passes without tables.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wager.errors import CapacityError
from wager.kvcache.pool import slot_list
from wager.nn.kernels.tables import HostTables, PassTables, TableRow, lay_masks
from wager.target.inputs import RunRow, row_starts
from wager.tree.visibility import ancestor_words

_WORD = 64  # nodes that one word of a mask holds


class Laid(NamedTuple):
    """A pass that lies in the host's tables."""

    starts: list[int]
    """Packed index of each row's first token, and the total at the end."""
    lines: Sequence[TableRow] | npt.NDArray[np.int64]
    """The row table: a line per row, with the fields of a `TableRow`."""
    longest: int
    """The longest context."""
    has_moved: bool
    """Whether the page table has changed."""


def lay_pass(
    rows: Sequence[RunRow], tables: PassTables, page_size: int, known: Collection[int] | None = None
) -> Laid:
    """Tokens, positions, slots, masks and pages of these rows; raises CapacityError where pages are short.

    known: places of the rows whose trees are known, chains all of them; None: every tree is. Those that are
    not are laid on the device, masks and all.
    """
    starts = row_starts(rows)
    has_moved = _lay_pages(rows, starts, tables, page_size)
    if len(rows) == 1:
        line = _lay_one(rows[0], starts[1], tables.host, page_size, known is None)
        return Laid(starts, [line], line.context_len, has_moved)
    longest = max([row.context_len for row in rows])
    return Laid(starts, _lay_several(rows, starts, tables, page_size, known), longest, has_moved)


def _lay_several(
    rows: Sequence[RunRow],
    starts: Sequence[int],
    tables: PassTables,
    page_size: int,
    known: Collection[int] | None,
) -> npt.NDArray[np.int64]:
    """Returns the lines of the row table."""
    num_rows, num_tokens, host = len(rows), starts[-1], tables.host
    contexts = [row.context_len for row in rows]
    lines = np.empty((num_rows, 5), np.int64)
    lines[:, 0], lines[:, 3], lines[:, 4] = starts[:-1], contexts, range(num_rows)
    if num_tokens == num_rows:
        lines[:, 1:3] = 1
        host.token_ids[:num_rows] = [row.pending[0] for row in rows]
        host.positions[:num_rows] = lines[:, 3]
        host.slots[:num_rows] = tables.slots_at(lines[:, 4], lines[:, 3], page_size)
        return lines
    lines[:, 1] = np.diff(starts)
    if known is None:
        lines[:, 2] = _lay_tokens(rows, starts, tables)
    else:
        lines[:, 2] = _lay_unseen(rows, starts, tables, known)
    row = np.repeat(lines[:, 4], lines[:, 1])
    own = lines[row]
    host.positions[:num_tokens] += own[:, 3]
    places = own[:, 3] - own[:, 0] + np.arange(num_tokens)
    host.slots[:num_tokens] = tables.slots_at(row, places, page_size)
    return lines


def _lay_one(
    row: RunRow, num_tokens: int, host: HostTables, page_size: int, is_seen: bool = True
) -> TableRow:
    """A row that is the whole pass: a few assignments."""
    pending, tree, context_len, pages, _ = row
    root, count = context_len + len(pending), len(pending)
    host.slots[:num_tokens] = slot_list(pages, page_size, context_len, context_len + num_tokens)
    host.token_ids[:count] = pending
    host.positions[:count] = range(context_len, root)
    if count < num_tokens:
        host.token_ids[count:num_tokens] = tree.token_ids
        host.positions[count:num_tokens] = tree.depths + (root - 1)
        if not tree.is_chain:
            host.masks[:count] = 0
            if is_seen:
                lay_masks(ancestor_words(tree), host.masks[count:num_tokens])
            return TableRow(0, num_tokens, count, context_len, 0)
    return TableRow(0, num_tokens, num_tokens, context_len, 0)


def _lay_pages(rows: Sequence[RunRow], starts: Sequence[int], tables: PassTables, page_size: int) -> bool:
    """All pages a row has, as far as the table is wide: they grow seldom."""
    has_moved, width = False, tables.limits.max_pages
    for index, row in enumerate(rows):
        pages, stop = row.pages, row.context_len + starts[index + 1] - starts[index]
        if len(pages) * page_size < stop:
            raise CapacityError(f"{len(pages)} pages of {page_size} do not cover {stop} tokens")
        own = pages if isinstance(pages, list) and len(pages) <= width else list(pages[:width])
        has_moved = tables.lay_pages(index, own) or has_moved
    return has_moved


def _lay_tokens(rows: Sequence[RunRow], starts: Sequence[int], tables: PassTables) -> list[int]:
    """Tokens, masks, and how far each position is behind its context.

    Returns how many tokens of each row see all before them: nodes that branch do not.
    """
    tokens: list[int] = []
    behind: list[int] = []
    causal: list[int] = []
    branching: list[int] = []
    for index, (pending, tree, _, _, _) in enumerate(rows):
        count = len(pending)
        tokens += pending
        behind += range(count)
        if tree.num_nodes:
            depths: list[int] = tree.depths.tolist()
            tokens += tree.token_ids.tolist()
            behind += depths if count == 1 else [count - 1 + depth for depth in depths]
            if depths[-1] < len(depths):  # not a chain
                branching.append(index)
                causal.append(count)
                continue
        causal.append(starts[index + 1] - starts[index])
    host, num_tokens = tables.host, starts[-1]
    host.token_ids[:num_tokens], host.positions[:num_tokens] = tokens, behind
    if branching:
        _lay_masks(rows, starts, branching, host.masks[:num_tokens])
    return causal


def _lay_unseen(
    rows: Sequence[RunRow], starts: Sequence[int], tables: PassTables, known: Collection[int]
) -> list[int]:
    """The same where nodes are laid on the device, but for known chains: pending tokens see no node."""
    tokens: list[int] = []
    behind: list[int] = []
    causal: list[int] = []
    for index, (pending, tree, _, _, _) in enumerate(rows):
        count, num_nodes = len(pending), tree.num_nodes
        tokens += pending
        behind += range(count)
        if index in known:
            tokens += tree.token_ids.tolist()
            behind += range(count, count + num_nodes)
        else:
            tokens += [0] * num_nodes
            behind += [0] * num_nodes
        causal.append(starts[index + 1] - starts[index] if tree.is_chain else count)
    host, num_tokens = tables.host, starts[-1]
    host.token_ids[:num_tokens], host.positions[:num_tokens] = tokens, behind
    host.masks[:num_tokens] = 0
    return causal


def _lay_masks(
    rows: Sequence[RunRow], starts: Sequence[int], branching: Sequence[int], masks: npt.NDArray[np.int64]
) -> None:
    """Who sees whom among the nodes of these rows; pending tokens see none."""
    words = [0] * len(masks)
    large = []
    for index in branching:
        stop, tree = starts[index + 1], rows[index].tree
        if tree.num_nodes > _WORD:
            large.append(index)
        else:
            words[stop - tree.num_nodes : stop] = ancestor_words(tree)
    masks[:, 0], masks[:, 1:] = array("Q", words), 0
    for index in large:
        stop, tree = starts[index + 1], rows[index].tree
        lay_masks(ancestor_words(tree), masks[stop - tree.num_nodes : stop])
