"""Packs the rows of a step into the tables of a captured pass, all rows at once.

What differs from row to row is collected as plain numbers in one walk over the rows; positions, slots and
lines of the row table are computed for all tokens together. A single row and a step of plain rows with one
pending token each have faster code. Called by graphs.py; inputs.py does the same for passes without tables.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wager.errors import CapacityError
from wager.kvcache.pool import slot_list
from wager.nn.kernels.tables import HostTables, PassTables, TableRow, write_masks
from wager.target.inputs import RunRow, row_starts
from wager.tree.visibility import ancestor_words

_WORD = 64
"""Nodes per word of a mask."""


class PackedPass(NamedTuple):
    """A pass in the host's tables."""

    starts: list[int]
    """Packed index of each row's first token, and the total at the end."""
    lines: Sequence[TableRow] | npt.NDArray[np.int64]
    """The row table: a line per row, with the fields of a `TableRow`."""
    longest: int
    """Tokens of the longest context."""
    has_moved: bool
    """Whether the page table has changed."""


def pack_tables(
    rows: Sequence[RunRow], tables: PassTables, page_size: int, host_chains: Collection[int] | None = None
) -> PackedPass:
    """Tokens, positions, slots, masks and pages of these rows; raises CapacityError where pages are short.

    host_chains: places of the rows whose trees the host knows, all of them chains, while the device builds
    the others with their masks. None: the host knows every tree.
    """
    starts = row_starts(rows)
    has_moved = _write_pages(rows, starts, tables, page_size)
    if len(rows) == 1:
        line = _pack_one(rows[0], starts[1], tables.host, page_size, host_chains is None)
        return PackedPass(starts, [line], line.context_len, has_moved)
    longest = max([row.context_len for row in rows])
    return PackedPass(starts, _pack_several(rows, starts, tables, page_size, host_chains), longest, has_moved)


def _pack_several(
    rows: Sequence[RunRow],
    starts: Sequence[int],
    tables: PassTables,
    page_size: int,
    host_chains: Collection[int] | None,
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
    if host_chains is None:
        lines[:, 2] = _write_tokens(rows, starts, tables)
    else:
        lines[:, 2] = _write_blind_tokens(rows, starts, tables, host_chains)
    row = np.repeat(lines[:, 4], lines[:, 1])
    own = lines[row]
    host.positions[:num_tokens] += own[:, 3]
    places = own[:, 3] - own[:, 0] + np.arange(num_tokens)
    host.slots[:num_tokens] = tables.slots_at(row, places, page_size)
    return lines


def _pack_one(
    row: RunRow, num_tokens: int, host: HostTables, page_size: int, is_tree_known: bool = True
) -> TableRow:
    """Pack a row that is the whole pass."""
    pending, tree, context_len, pages, _, _ = row
    root, count = context_len + len(pending), len(pending)
    host.slots[:num_tokens] = slot_list(pages, page_size, context_len, context_len + num_tokens)
    host.token_ids[:count] = pending
    host.positions[:count] = range(context_len, root)
    if count < num_tokens:
        host.token_ids[count:num_tokens] = tree.token_ids
        host.positions[count:num_tokens] = tree.depths + (root - 1)
        if not tree.is_chain:
            host.masks[:count] = 0
            if is_tree_known:
                write_masks(ancestor_words(tree), host.masks[count:num_tokens])
            return TableRow(0, num_tokens, count, context_len, 0)
    return TableRow(0, num_tokens, num_tokens, context_len, 0)


def _write_pages(rows: Sequence[RunRow], starts: Sequence[int], tables: PassTables, page_size: int) -> bool:
    """Write all pages of every row, as far as the table is wide; returns whether any has changed."""
    has_moved, width = False, tables.limits.max_pages
    for index, row in enumerate(rows):
        pages, stop = row.pages, row.context_len + starts[index + 1] - starts[index]
        if len(pages) * page_size < stop:
            raise CapacityError(f"{len(pages)} pages of {page_size} do not cover {stop} tokens")
        own = pages if isinstance(pages, list) and len(pages) <= width else list(pages[:width])
        has_moved = tables.write_pages(index, own) or has_moved
    return has_moved


def _write_tokens(rows: Sequence[RunRow], starts: Sequence[int], tables: PassTables) -> list[int]:
    """Write tokens, masks, and the distance of each position from the end of its context.

    Returns for each row the number of tokens that see all tokens before them; nodes of a branching tree do
    not.
    """
    tokens: list[int] = []
    behind: list[int] = []
    causal: list[int] = []
    branching: list[int] = []
    for index, (pending, tree, _, _, _, _) in enumerate(rows):
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
        _write_masks(rows, starts, branching, host.masks[:num_tokens])
    return causal


def _write_blind_tokens(
    rows: Sequence[RunRow], starts: Sequence[int], tables: PassTables, host_chains: Collection[int]
) -> list[int]:
    """The same where the device writes the nodes, except for chains that the host knows."""
    tokens: list[int] = []
    behind: list[int] = []
    causal: list[int] = []
    for index, (pending, tree, _, _, _, _) in enumerate(rows):
        count, num_nodes = len(pending), tree.num_nodes
        tokens += pending
        behind += range(count)
        if index in host_chains:
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


def _write_masks(
    rows: Sequence[RunRow], starts: Sequence[int], branching: Sequence[int], masks: npt.NDArray[np.int64]
) -> None:
    """Write which nodes of these rows see which others; pending tokens see no node."""
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
        write_masks(ancestor_words(tree), masks[stop - tree.num_nodes : stop])
