"""What a pass reads on the device, in tensors of fixed size and place: it can be captured and replayed.

The host fills one flat buffer (tokens, positions, slots, masks, rows, work items) and sends it in one copy;
the page table, larger and seldom changed, has its own. Attention's work is cut here: an item is a tile of a
row's tokens over one split of its keys, and splits are as long for every row, so that a long context does not
hold up a batch. Everything unused is marked as padding: item -1, slot -1.

Filled by whoever packs a pass; read by `qkv.py` and `attention.py`. Knows no requests.
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
"""start, num_tokens, num_causal, context_len, num_splits, page_row: a line of the row table."""
ITEM_FIELDS = 8
"""The fields of its row, the first token of its tile in the row, and its split: a line of the item table.

All that a program must know before it can ask for its first key is one load away.
"""
AT_ONCE = 32
"""Splits that a program of the second kernel reads at once."""
MIN_KEYS = 128
"""A shorter split is not worth a program and its share of the merging; nor is one of fewer than two keys per
line of a tile, whose result would be as large as its keys.
"""


_STRETCH = np.array((1.0, 1.125, 1.25, 1.5, 2.0))  # of the shortest split, lengths to weigh


class TableRow(NamedTuple):
    """One row of a pass as attention sees it.

    Its first `num_causal` tokens see themselves and what is before them; the others, a tree's nodes or a
    block, see those and whatever their mask says. `page_row` is the line of the page table with its pages.
    """

    start: int
    num_tokens: int
    num_causal: int
    context_len: int
    page_row: int


class Tiling(NamedTuple):
    """How attention's work is cut: fixed for a captured pass."""

    tile_rows: int
    """Lines of a tile: one per token and query head of a group."""
    tile_tokens: int
    max_splits: int
    """Splits over all keys of a pass that fill the device; also the most that one tile may have."""
    max_items: int
    min_keys: int
    """Keys of the shortest split."""


def choose_tiling(
    heads: HeadShape, max_rows: int, max_tokens: int, num_programs: int = 264, most_lines: int = 64
) -> Tiling:
    """A tiling for passes of that size at most; `num_programs` is how many fill the device."""
    wanted = -(-max_tokens // max_rows) * heads.group
    lines = max(16, power_of_two(heads.group), min(most_lines, power_of_two(wanted)))
    tile_tokens = lines // heads.group
    max_tiles = (max_tokens + max_rows * (tile_tokens - 1)) // tile_tokens
    max_splits = max(1, num_programs // heads.num_kv_heads)
    if max_splits > AT_ONCE and max_splits % AT_ONCE < AT_ONCE // 4:
        max_splits -= max_splits % AT_ONCE  # a few more would cost whoever merges another round
    return Tiling(lines, tile_tokens, max_splits, max_tiles + max_splits, max(MIN_KEYS, 2 * lines))


@dataclass(frozen=True)
class TableLimits:
    """The largest pass that tables hold."""

    max_tokens: int
    max_rows: int
    max_pages: int
    page_rows: int
    max_items: int
    mask_words: int = 1


class AttentionTables(NamedTuple):
    """What attention reads of a pass: see `PassTables` for the shapes."""

    rows: Tensor
    items: Tensor
    pages: Tensor
    masks: Tensor
    positions: Tensor
    homes: Tensor

    def first(self, num_tokens: int, num_items: int) -> "AttentionTables":
        """The same, cut to a pass of that size."""
        return self._replace(
            items=self.items[:num_items],
            masks=self.masks[:num_tokens],
            positions=self.positions[:num_tokens],
            homes=self.homes[:num_tokens],
        )


class HostTables(NamedTuple):
    """Views of the host's buffer, to be filled before `push`."""

    token_ids: Int64Array
    positions: Int64Array
    slots: Int64Array
    masks: Int64Array
    rows: Int32Array
    items: Int32Array
    homes: Int32Array


class _Laid(NamedTuple):
    """What of a pass stays the same while its contexts grow: its rows, with splits in place of those."""

    rows: bytes
    tile_tokens: int


class _Alone(NamedTuple):
    """The same of a pass of one row."""

    start: int
    num_tokens: int
    splits: int
    tile_tokens: int


class PassTables:
    """The tables of a pass, twice: in host memory to fill, on the device to read.

    token_ids, positions, slots [max_tokens] and masks [max_tokens, mask_words] int64; rows [max_rows, 6],
    items [max_items, 8], homes [max_tokens] and pages [page_rows, max_pages] int32. A token's home is the
    first item of its tile, -1 for padding.
    """

    def __init__(self, limits: TableLimits, device: torch.device | str) -> None:
        self.limits = limits
        self._laid: _Laid | _Alone | None = None
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
        """[page_rows, max_pages]: a sequence's pages stay in one line for as long as it runs."""
        self.host = HostTables(*(view.numpy() for view in _carve(self._flat_host, limits)))
        views = _carve(self._flat, limits)
        self.token_ids, self.positions, self.slots, self.masks, self.rows, self.items, self.homes = views
        self.clear()

    def attention(self) -> AttentionTables:
        return AttentionTables(self.rows, self.items, self.pages, self.masks, self.positions, self.homes)

    def clear(self) -> None:
        """Mark everything as padding, in host memory."""
        host = self.host
        host.token_ids[:], host.positions[:], host.slots[:] = 0, 0, -1
        host.rows[:], host.items[:], host.homes[:] = 0, -1, -1
        self._laid = None

    def lay_rows(self, rows: Sequence[TableRow] | Int64Array, tiling: Tiling) -> None:
        """Fill the tables of rows, items and homes; a pass beyond the limits is the caller's mistake.

        `rows` may also be an array [rows, 5] with the fields of a `TableRow` in each line.
        """
        host = self.host
        assert len(rows) <= len(host.rows), "a pass beyond its tables"
        if len(rows) == 1:
            return self._lay_one(TableRow(*rows[0]), tiling)
        lines = np.asarray(rows, np.int64).reshape(-1, 5)
        splits, contexts, fixed = num_splits(lines, tiling), lines[:, 3], lines.copy()
        fixed[:, 3] = splits
        laid = _Laid(fixed.tobytes(), tiling.tile_tokens)
        if laid != self._laid:
            self._lay_several(lines, splits, tiling)
            self._laid = laid
        host.rows[: len(lines), 3] = contexts
        host.items[: len(self._item_rows), 3] = contexts[self._item_rows]

    def _lay_several(self, lines: Int64Array, splits: Int64Array, tiling: Tiling) -> None:
        host = self.host
        host.rows[len(lines) :], host.homes[:] = 0, -1
        laid = host.rows[: len(lines)]
        laid[:, :4], laid[:, 4], laid[:, 5] = lines[:, :4], splits, lines[:, 4]
        tiles = -(-lines[:, 1] // tiling.tile_tokens)
        row, within = _places(tiles * splits)
        assert len(row) <= len(host.items), "a pass beyond its tables"
        self._item_rows = row
        items = host.items[: len(row)]
        items[:, :ROW_FIELDS] = laid[row]
        tile, items[:, ROW_FIELDS + 1] = np.divmod(within, splits[row])
        items[:, ROW_FIELDS] = tile * tiling.tile_tokens
        host.items[len(row) :] = -1
        before = np.cumsum(tiles * splits) - tiles * splits
        row, token = _places(lines[:, 1])
        host.homes[lines[row, 0] + token] = before[row] + token // tiling.tile_tokens * splits[row]

    def pad_tokens(self, start: int, stop: int) -> None:
        """Mark the places from `start` on as padding; a pass reads those before `stop`."""
        host = self.host
        host.token_ids[start:stop], host.positions[start:stop], host.slots[start:stop] = 0, 0, -1

    def lay_pages(self, line: int, pages: Sequence[int]) -> bool:
        """Write a sequence's pages to a line of the page table; whether that changed anything."""
        known = self._known_pages[line]
        if known == pages or known[: len(pages)] == pages:
            return False
        self.host_pages[line, : len(pages)] = pages
        self._known_pages[line] = list(pages)
        return True

    def slots_at(self, lines: Int64Array, positions: Int64Array, page_size: int) -> Int64Array:
        """The slots of tokens at these positions, by the lines of the page table that are laid."""
        page, offset = np.divmod(positions, page_size)
        return self.host_pages[lines, page].astype(np.int64) * page_size + offset

    def _lay_one(self, row: TableRow, tiling: Tiling) -> None:
        """A pass of one row, as most are where somebody waits: what is as it was is not written again."""
        start, count, _, context_len, _ = row
        splits = splits_of_one(context_len + count, count, tiling)
        laid, host = _Alone(start, count, splits, tiling.tile_tokens), self.host
        num_items = -(-count // tiling.tile_tokens) * splits
        assert num_items <= len(host.items), "a pass beyond its tables"
        if laid != self._laid:
            host.rows[:], host.items[:], host.homes[:] = 0, -1, -1
            item, token = np.arange(num_items), np.arange(count)
            host.items[:num_items, ROW_FIELDS] = item // splits * tiling.tile_tokens
            host.items[:num_items, ROW_FIELDS + 1] = item % splits
            host.homes[start : start + count] = token // tiling.tile_tokens * splits
            self._laid = laid
        host.rows[0] = *row[:4], splits, row.page_row
        host.items[:num_items, :ROW_FIELDS] = host.rows[0]

    def push(self, with_pages: bool = True) -> None:
        """Send the host's tables to the device, without waiting.

        NOTE: the copy may still be under way; before filling the next pass, wait for this one's result.
        """
        self._flat.copy_(self._flat_host, non_blocking=True)
        if with_pages:
            self.pages.copy_(self._pages_host, non_blocking=True)


def _words(limits: TableLimits) -> tuple[int, ...]:
    """The length in int64 words of each part of the flat buffer, in the order of `HostTables`."""
    tokens = limits.max_tokens
    small = (limits.max_rows * ROW_FIELDS, limits.max_items * ITEM_FIELDS, tokens)
    return (tokens, tokens, tokens, tokens * limits.mask_words, *(-(-count // 2) for count in small))


def _carve(flat: Tensor, limits: TableLimits) -> tuple[Tensor, ...]:
    token_ids, positions, slots, masks, rows, items, homes = flat.split(_words(limits))
    rows = rows.view(torch.int32)[: limits.max_rows * ROW_FIELDS].view(limits.max_rows, ROW_FIELDS)
    items = items.view(torch.int32)[: limits.max_items * ITEM_FIELDS].view(limits.max_items, ITEM_FIELDS)
    masks = masks.view(limits.max_tokens, limits.mask_words)
    return token_ids, positions, slots, masks, rows, items, homes.view(torch.int32)[: limits.max_tokens]


def num_splits(lines: Int64Array, tiling: Tiling) -> Int64Array:
    """Into how many splits the keys of each row (lines of `TableRow`) are cut, all of about the same length.

    Of a few lengths from the shortest on that fills the device, the one that ends soonest: splits that no
    longer fit at once begin when others end, half a split late on the average.
    """
    keys = lines[:, 3] + lines[:, 1]
    tiles = -(-lines[:, 1] // tiling.tile_tokens)
    total = int(tiles @ keys)
    shortest = max(tiling.min_keys, -(-total // tiling.max_splits))
    first = -(-keys // shortest)
    if int(first @ tiles) <= tiling.max_splits or int(keys.max(initial=0)) <= shortest:
        return first  # all at once, and longer ones end later; or there is nothing to split
    splits = -(-keys // (shortest * _STRETCH)[:, None].astype(np.int64))
    longest = (-(-keys // np.maximum(splits, 1))).max(axis=1, initial=0)
    late = total / tiling.max_splits + longest / 2
    ends = np.where(splits @ tiles <= tiling.max_splits, longest, np.maximum(late, longest))
    return splits[int(ends.argmin())]


def splits_of_one(keys: int, num_tokens: int, tiling: Tiling) -> int:
    """`num_splits` of a pass that is one row."""
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
            break  # all at once, and longer ones end later
    return best


def _places(counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """For each of every row's `counts` things: its row, and which of them it is."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - (np.cumsum(counts) - counts)[row]


def mask_words(mask: npt.NDArray[np.bool_], num_causal: int, num_words: int = 1) -> Int64Array:
    """A row's bool mask [tokens, tokens] as words [tokens, num_words]: bit i is token num_causal + i.

    Precondition: the mask is causal in its first `num_causal` columns, and there are at most 64 * num_words
    others.
    """
    own = mask[:, num_causal:]
    assert own.shape[1] <= 64 * num_words, f"{own.shape[1]} nodes in {num_words} words"
    bits = np.zeros((len(mask), 64 * num_words), np.bool_)
    bits[:, : own.shape[1]] = own
    return np.packbits(bits, axis=1, bitorder="little").view("<i8").astype(np.int64)


def lay_masks(masks: Sequence[int], lines: Int64Array) -> None:
    """Masks of as many tokens, as numbers, to lines [masks, words], the lowest bits first."""
    if len(masks) <= 64:
        lines[:, 0], lines[:, 1:] = array("Q", masks), 0
        return
    raw = b"".join([mask.to_bytes(8 * lines.shape[1], "little") for mask in masks])
    lines[:] = np.frombuffer(raw, "<i8").reshape(lines.shape)
