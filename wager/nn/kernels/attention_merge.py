"""The splits of a tile in paged attention: the keys of each split, and the merge of their results.

A split stores weighted sums over its keys, the top score that they are scaled by, and the sum of weights. The
merge processes a tile's splits in order, in the split that ends last or in a kernel with one program per
token and head. These functions are parts of the kernel in `attention.py`, which explains the names.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

import triton
import triton.language as tl

from wager.nn.kernels.device import launch_dependents, wait_for_input
from wager.nn.kernels.tables import ITEM_FIELDS

ITEM = tl.constexpr(ITEM_FIELDS)


@triton.jit
def key_range(item, window, TILE: tl.constexpr, KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """Returns a tile's keys [begin, end), and the length of a split; `item` points to a line of the table."""
    num_tokens, num_causal, context_len = tl.load(item + 1), tl.load(item + 2), tl.load(item + 3)
    stop = tl.minimum(tl.load(item + 6) + TILE, num_tokens)
    end = context_len + tl.where(stop <= num_causal, stop, num_tokens)
    begin = 0
    if HAS_WINDOW:
        # Every query has position context_len or more, so keys before this are outside all windows.
        begin = tl.maximum(context_len - window + 1, 0) // KEYS * KEYS
    length = tl.cdiv(tl.cdiv(end - begin, tl.load(item + 4)), KEYS) * KEYS
    return begin, end, length


@triton.jit
def store_split(
    total, top, weight, partial, stats, item, head, line, real, dim,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Writes one split's sums, the top score of each line and its sum of weights."""
    cell = (item.to(tl.int64) * NUM_KV_HEADS + head) * LINES
    wanted = real[:, None] & (dim < HEAD_DIM)[None, :]
    tl.store(partial + (cell + line)[:, None] * HEAD_DIM + dim[None, :], total, mask=wanted)
    tl.store(stats + cell * 2 + line, top, mask=real)
    tl.store(stats + cell * 2 + LINES + line, weight, mask=real)


@triton.jit
def merge_by_last_split(
    target, partial, stats, counters, item, used, head, line, real, dim,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, LINES: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Counts a finished split; the last one of its tile, whose first is `item`, merges all of them."""
    # NOTE: all threads must pass the barrier with their stores before one of them counts this split.
    tl.debug_barrier()
    counter = counters + item * NUM_KV_HEADS + head
    if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == used - 1:
        merged = _merged_tile(
            partial, stats, item, used, head, line, real, dim, NUM_KV_HEADS, HEAD_DIM, LINES, SPLITS
        )
        tl.store(target, merged, mask=real[:, None] & (dim < HEAD_DIM)[None, :])
        tl.store(counter, 0)


@triton.jit
def _merged_tile(
    partial, stats, item, used, head, line, real, dim,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, LINES: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Returns a tile's attention from its splits, which are the items from `item` on."""
    split = tl.arange(0, SPLITS)
    cell = ((item + split).to(tl.int64) * NUM_KV_HEADS + head) * (2 * LINES)
    there = (split < used)[:, None] & real[None, :]
    marks = stats + cell[:, None] + line[None, :]
    tops = tl.load(marks, mask=there, other=float("-inf"), cache_modifier=".cg")
    weights = tl.load(marks + LINES, mask=there, other=0.0, cache_modifier=".cg")
    top = tl.max(tops, axis=0)
    base = tl.where(top == float("-inf"), 0.0, top)
    weight = tl.sum(weights * tl.exp2(tops - base[None, :]), axis=0)
    total = tl.zeros((LINES, dim.shape[0]), tl.float32)
    wanted = real[:, None] & (dim < HEAD_DIM)[None, :]
    for one in range(used):
        place = ((item + one).to(tl.int64) * NUM_KV_HEADS + head) * LINES
        mark = tl.load(stats + place * 2 + line, mask=real, other=float("-inf"), cache_modifier=".cg")
        tile = partial + (place + line)[:, None] * HEAD_DIM + dim[None, :]
        part = tl.load(tile, mask=wanted, other=0.0, cache_modifier=".cg")
        total += part * tl.exp2(mark - base)[:, None]
    return total / weight[:, None]


@triton.jit
def merge_kernel(
    items, first_items, out, partial, stats, window,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    LINES: tl.constexpr, KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr, MERGE_SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Computes one token's attention for one query head from the splits of its tile."""
    token, query = tl.program_id(0), tl.program_id(1)
    launch_dependents(PDL)
    home = tl.load(first_items + token)
    item = items + tl.maximum(home, 0) * ITEM
    begin, end, length = key_range(item, window, LINES // GROUP, KEYS, HAS_WINDOW)
    used = tl.cdiv(end - begin, length)
    # NOTE: the next kernel waits for this kernel only, so every program here waits for the previous kernel.
    wait_for_input(PDL)
    if (home < 0) | (used <= 1):
        return
    line = (token - tl.load(item) - tl.load(item + 6)) * GROUP + query % GROUP
    dim = tl.arange(0, BLOCK_D)
    lines = home.to(tl.int64) * NUM_KV_HEADS + query // GROUP
    top = tl.full((), float("-inf"), tl.float32)
    weight = tl.full((), 0.0, tl.float32)
    total = tl.zeros((BLOCK_D,), tl.float32)
    for first in range(0, used, MERGE_SPLITS):
        split = first + tl.arange(0, MERGE_SPLITS)
        cell = (lines + split * NUM_KV_HEADS) * LINES
        there = split < used
        tops = tl.load(stats + cell * 2 + line, mask=there, other=float("-inf"))
        weights = tl.load(stats + cell * 2 + LINES + line, mask=there, other=0.0)
        parts = tl.load(
            partial + (cell + line)[:, None] * HEAD_DIM + dim[None, :],
            mask=there[:, None] & (dim < HEAD_DIM)[None, :], other=0.0,
        )  # fmt: skip
        new_top = tl.maximum(top, tl.max(tops, axis=0))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        shares, kept = tl.exp2(tops - base), tl.exp2(top - base)
        weight = weight * kept + tl.sum(weights * shares, axis=0)
        total = total * kept + tl.sum(parts * shares[:, None], axis=0)
        top = new_top
    target = (token.to(tl.int64) * NUM_KV_HEADS * GROUP + query) * HEAD_DIM
    tl.store(out + target + dim, total / weight, mask=dim < HEAD_DIM)
