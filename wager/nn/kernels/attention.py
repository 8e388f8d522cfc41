"""Paged attention of rows of pending tokens and a tree, or of a block, over their context and themselves.

One kernel serves all rows. A program takes one work item (`tables.py`) and one key head. The query heads that
share this key head are folded into the tile, so keys and values are read once per tile. The splits of a tile
are merged in order, by the split that ends last or by a second kernel (`merge="after"`). All values that
differ between passes come from device tables: the grid is fixed, and padding costs one load. The speed is
limited by reading keys and values once, by arithmetic for many tokens over a long context, and by latency at
a short context. So page ids are read some tiles before their keys, and an early launch prefetches the context
before the previous kernel has written the row's own keys.

Windows count positions, as in `layers/attention.py`, whose plain implementation is the model for the
reference.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from wager.nn.kernels.attention_merge import ITEM, key_range, merge_by_last_split, merge_kernel, store_split
from wager.nn.kernels.device import (
    PLAIN_LAUNCH,
    Launch,
    launch_dependents,
    power_of_two,
    prefetch_run,
    prefetch_share,
    tile_product,
    wait_for_input,
)
from wager.nn.kernels.support import MAX_POOL_VALUES
from wager.nn.kernels.tables import MERGE_SPLITS, AttentionTables, Tiling
from wager.nn.layers.attention import HeadShape


class AttentionSpace(NamedTuple):
    """Memory for the splits of a pass, which every layer reuses; `counters` are zero between launches."""

    partial: Tensor
    stats: Tensor
    counters: Tensor


class AttentionPlan(NamedTuple):
    """The values that all layers of a pass share: see `plan_attention`."""

    heads: HeadShape
    tiling: Tiling
    page_size: int
    space: AttentionSpace
    merge: str
    block_keys: int = 64
    num_warps: int = 4
    num_stages: int = 3


def plan_attention(
    heads: HeadShape, tiling: Tiling, page_size: int, device: torch.device | str, merge: str = "after"
) -> AttentionPlan:
    """Allocates the memory of a pass. `merge` is "last" (by a tile's last split) or "after" (by a second
    kernel).

    With "last" one program reads all splits of a tile; with "after" there is one program per token and head.
    """
    assert merge in ("last", "after"), merge
    assert tiling.tile_tokens * heads.group <= tiling.tile_rows
    shape = (tiling.max_items, heads.num_kv_heads)
    space = AttentionSpace(
        torch.empty((*shape, tiling.tile_rows, heads.head_dim), dtype=torch.float32, device=device),
        torch.empty((*shape, 2, tiling.tile_rows), dtype=torch.float32, device=device),
        torch.zeros(shape, dtype=torch.int32, device=device),
    )
    return AttentionPlan(heads, tiling, page_size, space, merge, num_warps=4 if tiling.tile_rows <= 64 else 8)


def attend(
    queries: Tensor,
    layer: Tensor,
    tables: AttentionTables,
    plan: AttentionPlan,
    window: int | None = None,
    out: Tensor | None = None,
    launch: Launch = PLAIN_LAUNCH,
) -> Tensor:
    """Returns the attention of queries [tokens, heads, head_dim] as [tokens, heads * head_dim].

    `layer` is [2, kv_heads, slots, head_dim]. Rows, pages, masks and positions come from the tables. The
    rows' own keys and values must be in the pool behind their contexts, in pass order. Tokens of no row stay
    unchanged in `out`.
    """
    num_heads, num_kv_heads, size = plan.heads
    out = queries.new_empty((queries.shape[0], num_heads * size)) if out is None else out
    assert queries.shape[1:] == (num_heads, size) and queries.is_contiguous(), f"{tuple(queries.shape)}"
    assert out.shape == (queries.shape[0], num_heads * size) and out.is_contiguous(), f"{tuple(out.shape)}"
    assert layer.shape[:2] == (2, num_kv_heads) and layer.shape[3] == size and layer.is_contiguous()
    assert layer.shape[2] * size < MAX_POOL_VALUES, "slots beyond 32-bit offsets"
    assert len(tables.items) <= len(plan.space.counters), "more items than the plan has room for"
    if queries.shape[0] == 0 or len(tables.items) == 0:
        return out
    shape = {
        "NUM_KV_HEADS": num_kv_heads, "GROUP": plan.heads.group, "HEAD_DIM": size,
        "BLOCK_D": max(16, power_of_two(size)), "LINES": plan.tiling.tile_rows, "KEYS": plan.block_keys,
        "HAS_WINDOW": window is not None,
    }  # fmt: skip
    splits, merges = power_of_two(plan.tiling.max_splits), plan.merge == "last"
    num_items = len(tables.items)
    _attend[(num_items + triton.cdiv(launch.extra, num_kv_heads), num_kv_heads)](
        queries, layer, tables.items, tables.pages, tables.masks, tables.positions, out, *plan.space,
        num_items, layer.stride(0), layer.stride(1), tables.pages.stride(0), tables.masks.stride(0),
        window or 0, math.log2(math.e) / math.sqrt(size), PAGE=plan.page_size, WORDS=tables.masks.shape[1],
        MERGES=merges, SPLITS=splits if merges else 1, num_warps=plan.num_warps,
        num_stages=plan.num_stages, **shape, **launch.fetching(out),
    )  # fmt: skip
    if not merges and splits > 1:
        merge_kernel[(queries.shape[0], num_heads)](
            tables.items, tables.first_items, out, plan.space.partial, plan.space.stats, window or 0,
            # One warp needs no barriers, and there are enough programs.
            MERGE_SPLITS=min(MERGE_SPLITS, splits), num_warps=1, **shape, **launch.options,
        )  # fmt: skip
    return out


def attend_reference(
    queries: Tensor, layer: Tensor, tables: AttentionTables, page_size: int, window: int | None = None
) -> Tensor:
    """Computes the same in plain torch, row by row, in the queries' dtype; tokens of no row are NaN."""
    num_tokens, num_heads, size = queries.shape
    group = num_heads // layer.shape[1]
    out = queries.new_full((num_tokens, num_heads * size), math.nan)
    for row in tables.rows.tolist():
        start, count, _, context_len, _, page_row = row
        if not count:
            continue
        places = torch.arange(context_len + count, device=queries.device)
        slots = tables.pages[page_row].long()[places // page_size] * page_size + places % page_size
        keys = layer[0][:, slots].to(queries.dtype).repeat_interleave(group, dim=0)
        values = layer[1][:, slots].to(queries.dtype).repeat_interleave(group, dim=0)
        own = queries[start : start + count].transpose(0, 1)
        seen = _seen(tables, row, window)
        scores = (own @ keys.transpose(1, 2) / math.sqrt(size)).masked_fill(~seen, -math.inf)
        out[start : start + count] = (scores.softmax(dim=-1) @ values).transpose(0, 1).reshape(count, -1)
    return out


def _seen(tables: AttentionTables, row: list[int], window: int | None) -> Tensor:
    """Returns [tokens, keys]: which tokens see which keys in one row, from its tables."""
    start, count, num_causal, context_len = row[:4]
    token = torch.arange(count, device=tables.masks.device)
    own = token[None, :] <= token[:, None]
    own &= token[None, :] < num_causal
    bit = (token - num_causal).clamp_min(0)
    words = tables.masks[start : start + count][:, bit // 64]
    own |= (token[None, :] >= num_causal) & ((words >> (bit % 64)) & 1).bool()
    seen = torch.cat((own.new_ones(count, context_len), own), dim=1)
    if window is not None:
        positions = tables.positions[start : start + count]
        behind = torch.cat((torch.arange(context_len, device=positions.device), positions))
        seen &= positions[:, None] - behind[None, :] < window
    return seen


@triton.jit(do_not_specialize=["num_items"])
def _attend(
    queries, layer, items, pages, masks, positions, out, partial, stats, counters, num_items,
    value_offset, head_stride, page_stride, mask_stride, window, scale, prefetch,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    LINES: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, HAS_WINDOW: tl.constexpr,
    PAGE: tl.constexpr, WORDS: tl.constexpr, MERGES: tl.constexpr, PDL: tl.constexpr,
    PREFETCHES: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    head = tl.program_id(1)
    launch_dependents(PDL)
    if PREFETCHES:  # noqa: SIM102
        if item >= num_items:
            extra = (tl.num_programs(0) - num_items) * NUM_KV_HEADS
            prefetch_share(prefetch, (item - num_items) * NUM_KV_HEADS + head, extra)
            return
    # The tables and the context are older than the previous kernel: only queries and own keys must wait.
    fields = items + item * ITEM
    start, num_tokens, num_causal = tl.load(fields), tl.load(fields + 1), tl.load(fields + 2)
    context_len, page_line = tl.load(fields + 3), pages + tl.load(fields + 5) * page_stride
    first, split = tl.load(fields + 6), tl.load(fields + 7)
    begin, end, length = key_range(fields, window, LINES // GROUP, KEYS, HAS_WINDOW)
    used = tl.cdiv(end - begin, length)
    if (start < 0) | (split >= used):
        wait_for_input(PDL)
        return
    low = begin + split * length
    high = tl.minimum(low + length, end)
    keys = layer + head.to(tl.int64) * head_stride
    page_0 = _page(page_line, low, high, KEYS, PAGE)
    page_1 = _page(page_line, low + KEYS, high, KEYS, PAGE)
    page_2 = _page(page_line, low + 2 * KEYS, high, KEYS, PAGE)
    page_3 = _page(page_line, low + 3 * KEYS, high, KEYS, PAGE)
    if PDL:
        _fetch_tile(keys, value_offset, page_0, low, high, KEYS, PAGE, HEAD_DIM)
        _fetch_tile(keys, value_offset, page_1, low + KEYS, high, KEYS, PAGE, HEAD_DIM)
        _fetch_tile(keys, value_offset, page_2, low + 2 * KEYS, high, KEYS, PAGE, HEAD_DIM)
        _fetch_tile(keys, value_offset, page_3, low + 3 * KEYS, high, KEYS, PAGE, HEAD_DIM)
    line = tl.arange(0, LINES)
    token, member = first + line // GROUP, line % GROUP
    real = (line < LINES // GROUP * GROUP) & (token < num_tokens)
    dim = tl.arange(0, BLOCK_D)
    packed = (start + token).to(tl.int64)
    target = ((packed * NUM_KV_HEADS + head) * GROUP + member)[:, None] * HEAD_DIM + dim[None, :]
    words = masks + packed * mask_stride
    word = tl.load(words, mask=real, other=0)
    place = tl.load(positions + packed, mask=real, other=0).to(tl.int32) if HAS_WINDOW else token
    wait_for_input(PDL)
    query = tl.load(queries + target, mask=real[:, None] & (dim < HEAD_DIM)[None, :], other=0.0)
    total = tl.zeros((LINES, BLOCK_D), tl.float32)
    top = tl.full((LINES,), float("-inf"), tl.float32)
    weight = tl.zeros((LINES,), tl.float32)
    for key in range(low, high, KEYS):
        at = key + tl.arange(0, KEYS)
        slot = page_0 * PAGE + at % PAGE
        tile = keys + slot[:, None] * HEAD_DIM + dim[None, :]
        inside = (at < high)[:, None] & (dim < HEAD_DIM)[None, :]
        key_tile = tl.load(tile, mask=inside, other=0.0)
        value_tile = tl.load(tile + value_offset, mask=inside, other=0.0)
        # A page id is read some tiles ahead; read in the same iteration it would delay its keys.
        # NOTE: a value that is passed on unchanged prevents the compiler from pipelining the loop.
        page_0, page_1, page_2 = tl.maximum(page_1, 0), tl.maximum(page_2, 0), tl.maximum(page_3, 0)
        page_3 = _page(page_line, key + 4 * KEYS, high, KEYS, PAGE)
        zero = tl.zeros((LINES, KEYS), tl.float32)
        scores = tile_product(query, tl.trans(key_tile), zero)
        if HAS_WINDOW:
            near = (place[:, None] - at[None, :] < window) | (at >= context_len)[None, :]
            scores = tl.where(near, scores, float("-inf"))
        if key + KEYS > context_len:  # tiles with context only do not need the masks
            own = at - context_len
            seen = _own_seen(words, word, token, real, own, num_causal, WORDS) & (at < high)[None, :]
            if HAS_WINDOW:
                behind = tl.load(positions + start + own, mask=(own >= 0) & (at < high), other=0).to(tl.int32)
                seen = seen & ((place[:, None] - behind[None, :] < window) | (own < 0)[None, :])
            scores = tl.where(seen, scores, float("-inf"))
        total, top, weight = _add_keys(scores, scale, value_tile, total, top, weight)
    if used == 1:
        tl.store(out + target, total / weight[:, None], mask=real[:, None] & (dim < HEAD_DIM)[None, :])
    else:
        store_split(
            total, top, weight, partial, stats, item, head, line, real, dim, NUM_KV_HEADS, HEAD_DIM, LINES
        )  # fmt: skip
        if MERGES:
            merge_by_last_split(
                out + target, partial, stats, counters, item - split, used, head, line, real, dim,
                NUM_KV_HEADS, HEAD_DIM, LINES, SPLITS,
            )  # fmt: skip


@triton.jit
def _page(page_line, key, high, KEYS: tl.constexpr, PAGE: tl.constexpr):
    """Returns the page of the keys from `key` on: one if all of them are in one page, else one for each."""
    if PAGE % KEYS == 0:  # and splits begin at multiples of KEYS
        return tl.load(page_line + key // PAGE, mask=key < high, other=0)
    else:
        at = key + tl.arange(0, KEYS)
        return tl.load(page_line + at // PAGE, mask=at < high, other=0)


@triton.jit
def _fetch_tile(
    keys, value_offset, page, key, high, KEYS: tl.constexpr, PAGE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    """Prefetches a tile's keys and values into the cache if they are contiguous."""
    if PAGE % KEYS == 0:  # noqa: SIM102
        if key < high:
            tile = keys + (page * PAGE + key % PAGE) * HEAD_DIM
            num_bytes = KEYS * HEAD_DIM * (keys.dtype.element_ty.primitive_bitwidth // 8)
            prefetch_run(tile, num_bytes)
            prefetch_run(tile + value_offset, num_bytes)


@triton.jit
def _own_seen(words, word, token, real, own, num_causal, WORDS: tl.constexpr):
    """Returns [lines, KEYS]: whether a line's token sees the row's own token `own`; negative ones are
    context.
    """
    bit = own - num_causal
    seen = (own < num_causal)[None, :] & (own[None, :] <= token[:, None])
    shift = (bit & 63).to(tl.int64)[None, :]
    for index in tl.static_range(WORDS):
        marks = word if index == 0 else tl.load(words + index, mask=real, other=0)
        seen = seen | ((bit >> 6 == index)[None, :] & (((marks[:, None] >> shift) & 1) != 0))
    return seen


@triton.jit
def _add_keys(scores, scale, value_tile, total, top, weight):
    """Computes one step of the running softmax from scores, their scale to base 2, and values."""
    new_top = tl.maximum(top, tl.max(scores, axis=1) * scale)
    # A line without any key so far stays at -inf, and -inf - -inf is not a number.
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    shares = tl.exp2(scores * scale - base[:, None])
    kept = tl.exp2(top - base)
    total = tile_product(shares.to(value_tile.dtype), value_tile, total * kept[:, None])
    return total, new_top, weight * kept + tl.sum(shares, axis=1)
