"""The input of a pass on the device, in tensors of fixed size and address, so that it can be captured and
replayed.

The host fills one flat buffer (tokens, positions, slots, masks, rows, work items) and sends it in one copy.
The page table is larger and rarely changes, so it is separate. The work of attention is divided here: an item
is a tile of a row's tokens over one split of its keys. Splits have the same length for every row, so that a
long context does not delay a batch. Unused entries are marked as padding: item -1, slot -1. `qkv.py` and
`attention.py` read the tables. This module knows no requests.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.nn.kernels.device import power_of_two
from wager.nn.layers.attention import HeadShape

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

ROW_FIELDS = 6
"""A line of the row table: start, num_tokens, num_causal, context_len, num_splits, page_row."""
ITEM_FIELDS = 8
"""A line of the item table: the fields of its row, the first token of its tile in the row, and its split.

So a program reads everything that it needs for its first key with one load.
"""
MERGE_SPLITS = 32
"""Number of splits that a program of the second kernel reads at once."""
MIN_KEYS = 128
"""Length in keys below which another split does not pay for its program and its share of the merge.

A split also needs two keys per line of its tile, because otherwise its result is as large as its keys.
"""


_STRETCH = np.array((1.0, 1.125, 1.25, 1.5, 2.0))  # candidate lengths, relative to the shortest split


class TableRow(NamedTuple):
    """One row of a pass, as attention sees it.

    Its first `num_causal` tokens see themselves and everything before them. The others, a tree's nodes or a
    block, see those and what their mask allows. `page_row` is the line of the page table with its pages.
    """

    start: int
    num_tokens: int
    num_causal: int
    context_len: int
    page_row: int


class Tiling(NamedTuple):
    """How the work of attention is divided; fixed for a captured pass."""

    tile_rows: int
    """Number of lines of a tile: one per token and query head of a group."""
    tile_tokens: int
    max_splits: int
    """Number of splits over all keys of a pass that fill the device; also the maximum for one tile."""
    max_items: int
    min_keys: int
    """Number of keys of the shortest split."""


def choose_tiling(
    heads: HeadShape, max_rows: int, max_tokens: int, num_programs: int = 264, max_tile_rows: int = 64
) -> Tiling:
    """Returns a tiling for passes up to this size; `num_programs` is the number of programs that fill the
    device.
    """
    wanted = -(-max_tokens // max_rows) * heads.group
    lines = max(16, power_of_two(heads.group), min(max_tile_rows, power_of_two(wanted)))
    tile_tokens = lines // heads.group
    max_tiles = (max_tokens + max_rows * (tile_tokens - 1)) // tile_tokens
    max_splits = max(1, num_programs // heads.num_kv_heads)
    if max_splits > MERGE_SPLITS and max_splits % MERGE_SPLITS < MERGE_SPLITS // 4:
        max_splits -= max_splits % MERGE_SPLITS  # a few more would need another round of merging
    return Tiling(lines, tile_tokens, max_splits, max_tiles + max_splits, max(MIN_KEYS, 2 * lines))


@dataclass(frozen=True)
class TableLimits:
    """The largest pass that the tables can hold."""

    max_tokens: int
    max_rows: int
    max_pages: int
    page_rows: int
    max_items: int
    mask_words: int = 1


class AttentionTables(NamedTuple):
    """The tables that attention reads: see `PassTables` for the shapes."""

    rows: Tensor
    items: Tensor
    pages: Tensor
    masks: Tensor
    positions: Tensor
    first_items: Tensor

    def first(self, num_tokens: int, num_items: int) -> "AttentionTables":
        """Returns the same tables, cut to a pass of this size."""
        return self._replace(
            items=self.items[:num_items],
            masks=self.masks[:num_tokens],
            positions=self.positions[:num_tokens],
            first_items=self.first_items[:num_tokens],
        )


class HostTables(NamedTuple):
    """Views of the host's buffer, to be filled before `push`."""

    token_ids: Int64Array
    positions: Int64Array
    slots: Int64Array
    masks: Int64Array
    rows: Int32Array
    items: Int32Array
    first_items: Int32Array


class _WrittenRows(NamedTuple):
    """The part of a pass that stays the same while its contexts grow: its rows, with splits instead of
    contexts.
    """

    rows: bytes
    tile_tokens: int


class _WrittenRow(NamedTuple):
    """The part of a pass of one row that stays the same while its context grows."""

    start: int
    num_tokens: int
    splits: int
    tile_tokens: int


class PassTables:
    """The tables of a pass, twice: in host memory to fill, on the device to read.

    token_ids, positions, slots [max_tokens] and masks [max_tokens, mask_words] are int64; rows [max_rows, 6],
    items [max_items, 8], first_items [max_tokens] and pages [page_rows, max_pages] are int32. A token's first
    item is that of its tile, -1 for padding.
    """

    def __init__(self, limits: TableLimits, device: torch.device | str) -> None:
        self.limits = limits
        self._written: _WrittenRows | _WrittenRow | None = None
        self._item_rows = np.empty(0, np.int64)
        """The row of each item, of a pass of several."""
        self._known_pages: list[list[int]] = [[] for _ in range(limits.page_rows)]
        pin = torch.device(device).type == "cuda"
        size = sum(_words(limits))
        self._flat_host = torch.zeros(size, dtype=torch.int64, pin_memory=pin)
        self._flat = torch.zeros(size, dtype=torch.int64, device=device)
        pages = (limits.page_rows, limits.max_pages)
        self._pages_host = torch.zeros(pages, dtype=torch.int32, pin_memory=pin)
        self.pages = torch.zeros(pages, dtype=torch.int32, device=device)
        self.host_pages: Int32Array = self._pages_host.numpy()
        """[page_rows, max_pages]: the pages of a sequence stay in one line while it runs."""
        self.host = HostTables(*(view.numpy() for view in _carve(self._flat_host, limits)))
        views = _carve(self._flat, limits)
        self.token_ids, self.positions, self.slots, self.masks, self.rows, self.items, self.first_items = (
            views
        )
        self.clear()

    def attention(self) -> AttentionTables:
        return AttentionTables(
            self.rows, self.items, self.pages, self.masks, self.positions, self.first_items
        )

    def clear(self) -> None:
        """Marks everything as padding, in host memory."""
        host = self.host
        host.token_ids[:], host.positions[:], host.slots[:] = 0, 0, -1
        host.rows[:], host.items[:], host.first_items[:] = 0, -1, -1
        self._written = None

    def write_rows(self, rows: Sequence[TableRow] | Int64Array, tiling: Tiling) -> None:
        """Fills the tables of rows and items. Precondition: the pass is within the limits.

        `rows` may also be an array [rows, 5] with the fields of a `TableRow` in each line.
        """
        host = self.host
        assert len(rows) <= len(host.rows), "a pass larger than its tables"
        if len(rows) == 1:
            return self._write_one_row(TableRow(*rows[0]), tiling)
        lines = np.asarray(rows, np.int64).reshape(-1, 5)
        splits, contexts, fixed = num_splits(lines, tiling), lines[:, 3], lines.copy()
        fixed[:, 3] = splits
        laid = _WrittenRows(fixed.tobytes(), tiling.tile_tokens)
        if laid != self._written:
            self._write_several_rows(lines, splits, tiling)
            self._written = laid
        host.rows[: len(lines), 3] = contexts
        host.items[: len(self._item_rows), 3] = contexts[self._item_rows]

    def _write_several_rows(self, lines: Int64Array, splits: Int64Array, tiling: Tiling) -> None:
        host = self.host
        host.rows[len(lines) :], host.first_items[:] = 0, -1
        laid = host.rows[: len(lines)]
        laid[:, :4], laid[:, 4], laid[:, 5] = lines[:, :4], splits, lines[:, 4]
        tiles = -(-lines[:, 1] // tiling.tile_tokens)
        row, within = _places(tiles * splits)
        assert len(row) <= len(host.items), "a pass larger than its tables"
        self._item_rows = row
        items = host.items[: len(row)]
        items[:, :ROW_FIELDS] = laid[row]
        tile, items[:, ROW_FIELDS + 1] = np.divmod(within, splits[row])
        items[:, ROW_FIELDS] = tile * tiling.tile_tokens
        host.items[len(row) :] = -1
        before = np.cumsum(tiles * splits) - tiles * splits
        row, token = _places(lines[:, 1])
        host.first_items[lines[row, 0] + token] = before[row] + token // tiling.tile_tokens * splits[row]

    def pad_tokens(self, start: int, stop: int) -> None:
        """Marks the tokens from `start` on as padding; a pass reads those before `stop`."""
        host = self.host
        host.token_ids[start:stop], host.positions[start:stop], host.slots[start:stop] = 0, 0, -1

    def write_pages(self, line: int, pages: Sequence[int]) -> bool:
        """Writes a sequence's pages to a line of the page table, and returns whether that changed
        anything.
        """
        known = self._known_pages[line]
        if known == pages or known[: len(pages)] == pages:
            return False
        self.host_pages[line, : len(pages)] = pages
        self._known_pages[line] = list(pages)
        return True

    def slots_at(self, lines: Int64Array, positions: Int64Array, page_size: int) -> Int64Array:
        """Returns the slots of tokens at these positions, by lines of the page table."""
        page, offset = np.divmod(positions, page_size)
        return self.host_pages[lines, page].astype(np.int64) * page_size + offset

    def _write_one_row(self, row: TableRow, tiling: Tiling) -> None:
        """Fills the tables for a pass of one row, and writes only what has changed."""
        start, count, _, context_len, _ = row
        splits = num_splits_single_row(context_len + count, count, tiling)
        laid, host = _WrittenRow(start, count, splits, tiling.tile_tokens), self.host
        num_items = -(-count // tiling.tile_tokens) * splits
        assert num_items <= len(host.items), "a pass larger than its tables"
        if laid != self._written:
            host.rows[:], host.items[:], host.first_items[:] = 0, -1, -1
            item, token = np.arange(num_items), np.arange(count)
            host.items[:num_items, ROW_FIELDS] = item // splits * tiling.tile_tokens
            host.items[:num_items, ROW_FIELDS + 1] = item % splits
            host.first_items[start : start + count] = token // tiling.tile_tokens * splits
            self._written = laid
        host.rows[0] = *row[:4], splits, row.page_row
        host.items[:num_items, :ROW_FIELDS] = host.rows[0]

    def push(self, with_pages: bool = True) -> None:
        """Sends the host's tables to the device, without waiting.

        NOTE: The copy may still be in flight; before filling the next pass, wait for the result of this one.
        """
        self._flat.copy_(self._flat_host, non_blocking=True)
        if with_pages:
            self.pages.copy_(self._pages_host, non_blocking=True)


def _words(limits: TableLimits) -> tuple[int, ...]:
    """Returns the length in int64 words of each part of the flat buffer, in the order of `HostTables`."""
    tokens = limits.max_tokens
    small = (limits.max_rows * ROW_FIELDS, limits.max_items * ITEM_FIELDS, tokens)
    return (tokens, tokens, tokens, tokens * limits.mask_words, *(-(-count // 2) for count in small))


def _carve(flat: Tensor, limits: TableLimits) -> tuple[Tensor, ...]:
    token_ids, positions, slots, masks, rows, items, first_items = flat.split(_words(limits))
    rows = rows.view(torch.int32)[: limits.max_rows * ROW_FIELDS].view(limits.max_rows, ROW_FIELDS)
    items = items.view(torch.int32)[: limits.max_items * ITEM_FIELDS].view(limits.max_items, ITEM_FIELDS)
    masks = masks.view(limits.max_tokens, limits.mask_words)
    return token_ids, positions, slots, masks, rows, items, first_items.view(torch.int32)[: limits.max_tokens]


def num_splits(lines: Int64Array, tiling: Tiling) -> Int64Array:
    """Returns the number of splits of each row's keys (lines of `TableRow`), all of about the same length.

    Of a few lengths, from the shortest that fills the device, it takes the one that ends soonest. Splits that
    do not fit at once begin when others end, half a split late on average.
    """
    keys = lines[:, 3] + lines[:, 1]
    tiles = -(-lines[:, 1] // tiling.tile_tokens)
    total = int(tiles @ keys)
    shortest = max(tiling.min_keys, -(-total // tiling.max_splits))
    first = -(-keys // shortest)
    if int(first @ tiles) <= tiling.max_splits or int(keys.max(initial=0)) <= shortest:
        return first  # all splits fit at once, and longer ones end later; or there is nothing to split
    splits = -(-keys // (shortest * _STRETCH)[:, None].astype(np.int64))
    longest = (-(-keys // np.maximum(splits, 1))).max(axis=1, initial=0)
    late = total / tiling.max_splits + longest / 2
    ends = np.where(splits @ tiles <= tiling.max_splits, longest, np.maximum(late, longest))
    return splits[int(ends.argmin())]


def num_splits_single_row(keys: int, num_tokens: int, tiling: Tiling) -> int:
    """Returns `num_splits` of a pass with one row."""
    tiles = -(-num_tokens // tiling.tile_tokens)
    shortest = max(tiling.min_keys, -(-tiles * keys // tiling.max_splits))
    best, soonest = 1, float("inf")
    for stretch in _STRETCH.tolist():
        splits = -(-keys // int(shortest * stretch))
        longest = -(-keys // max(splits, 1))
        fits = splits * tiles <= tiling.max_splits
        ends = longest if fits else max(tiles * keys / tiling.max_splits + longest / 2, longest)
        if ends < soonest:
            best, soonest = splits, ends
        if fits:
            break  # all splits fit at once, and longer ones end later
    return best


def _places(counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Returns for each of every row's `counts` entries: its row, and its index in the row."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - (np.cumsum(counts) - counts)[row]


def mask_words(mask: npt.NDArray[np.bool_], num_causal: int, num_words: int = 1) -> Int64Array:
    """Returns a row's bool mask [tokens, tokens] as words [tokens, num_words]: bit i is token num_causal + i.

    Precondition: the mask is causal in its first `num_causal` columns, and there are at most 64 * num_words
    others.
    """
    own = mask[:, num_causal:]
    assert own.shape[1] <= 64 * num_words, f"{own.shape[1]} nodes in {num_words} words"
    bits = np.zeros((len(mask), 64 * num_words), np.bool_)
    bits[:, : own.shape[1]] = own
    return np.packbits(bits, axis=1, bitorder="little").view("<i8").astype(np.int64)


def write_masks(masks: Sequence[int], lines: Int64Array) -> None:
    """Writes the masks of tokens, given as integers, to lines [masks, words], the lowest bits first."""
    if len(masks) <= 64:
        lines[:, 0], lines[:, 1:] = array("Q", masks), 0
        return
    raw = b"".join([mask.to_bytes(8 * lines.shape[1], "little") for mask in masks])
    lines[:] = np.frombuffer(raw, "<i8").reshape(lines.shape)
