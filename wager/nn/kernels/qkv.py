"""Norm and rotation of queries and keys, and the write of keys and values to the pool, in one kernel.

Fused because the plain way is a norm, a rotation and a scattered copy, each reading and writing what the
product before just wrote; bound by launch and latency. The rotation is looked up by position in a table of
cosines and sines, so that a pass computes no angles. A negative slot marks a padding token: nothing of it is
written. `write_context` is the same for a block drafter's context, keys and values of all its layers at once.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from wager.nn.kernels.device import (
    PLAIN,
    Launch,
    allow_next,
    fetch_ahead,
    is_rows,
    power_of_two,
    wait_for_input,
)
from wager.nn.layers.attention import HeadShape
from wager.nn.rope import RopeSpec, Rotary

_HEADS = 4  # heads that one program works on


class Turn(NamedTuple):
    """The heads of a product and what is done to them: norms [rotated heads, head_dim] or None, and rotation.

    The table is [positions, head_dim]: per position half cosines, half sines. Every position of a pass must
    lie in it.
    """

    heads: HeadShape
    norm: Tensor | None
    eps: float
    table: Tensor


class Places(NamedTuple):
    """Where tokens stand, each [tokens] int64: their positions, and their slots (negative: padding)."""

    positions: Tensor
    slots: Tensor


def rotation_table(
    spec: RopeSpec, num_positions: int, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """[positions, head_dim] in the model's dtype: the numbers `Rotary` would give, each pair once."""
    rotation = Rotary(spec, dtype, device).compute(torch.arange(num_positions, device=device))
    half = spec.head_dim // 2
    return torch.cat((rotation.cos[:, 0, :half], rotation.sin[:, 0, half:]), dim=1).contiguous()


def write_qkv(
    fused: Tensor,
    turn: Turn,
    places: Places,
    store: Tensor,
    queries: Tensor | None = None,
    launch: Launch = PLAIN,
) -> Tensor:
    """Of the product [tokens, (heads + 2 * kv_heads) * head_dim]: the queries, normed and rotated.

    The product may be the parts of a split one, [parts, tokens, ...], summed here in order.
    Keys (likewise) and values go to `store` [2, kv_heads, slots, head_dim], one layer of the pool. Returns
    queries [tokens, heads, head_dim]; those of padding tokens are left as they were.
    """
    heads = turn.heads
    shape = (fused.shape[-2], heads.num_heads, heads.head_dim)
    queries = fused.new_empty(shape, dtype=store.dtype) if queries is None else queries
    assert queries.shape == shape and queries.is_contiguous(), f"queries {tuple(queries.shape)}"
    assert store.dim() == 4 and store.shape[:2] == (2, heads.num_kv_heads), f"a layer of {tuple(store.shape)}"
    _run(fused, turn, places, store, queries, launch)
    return queries


def write_context(fused: Tensor, turn: Turn, places: Places, store: Tensor, launch: Launch = PLAIN) -> None:
    """Of the product [tokens, layers * 2 * kv_heads * head_dim]: keys, normed and rotated, and values, to the
    pool.

    `store` is the whole pool [layers, 2, kv_heads, slots, head_dim]; `turn.norm` [layers * kv_heads,
    head_dim].
    """
    kv_heads = turn.heads.num_kv_heads
    assert store.dim() == 5 and store.shape[1:3] == (2, kv_heads), f"a pool of {tuple(store.shape)}"
    turn = turn._replace(heads=turn.heads._replace(num_heads=0))
    _run(fused, turn, places, store, None, launch)


def _run(
    fused: Tensor, turn: Turn, places: Places, store: Tensor, queries: Tensor | None, launch: Launch
) -> None:
    num_queries, num_kv_heads, size = turn.heads
    parts = fused.unsqueeze(0) if fused.dim() == 2 else fused
    num_parts, num_tokens, width = parts.shape
    num_slots = store.shape[-2]
    num_all = num_queries + store.numel() // (num_slots * size)
    assert width == num_all * size and is_rows(parts), f"a product of {tuple(fused.shape)}"
    assert store.is_contiguous() and store.shape[-1] == size == turn.table.shape[1]
    assert turn.table.is_contiguous() and places.positions.shape == places.slots.shape == (num_tokens,)
    if turn.norm is not None:
        rows = num_queries + (num_all - num_queries) // 2
        assert turn.norm.shape == (rows, size) and turn.norm.is_contiguous(), (
            f"norms {tuple(turn.norm.shape)}"
        )
    if num_tokens:
        groups = triton.cdiv(num_all, _HEADS)
        _qkv[(num_tokens + triton.cdiv(launch.extra, groups), groups)](
            parts, turn.table if turn.norm is None else turn.norm, turn.table, places.positions, places.slots,
            store if queries is None else queries, store, num_tokens,
            parts.stride(0), parts.stride(1), num_slots, num_all, turn.eps, PARTS=num_parts,
            NUM_QUERIES=num_queries, NUM_KV_HEADS=num_kv_heads, HALF=size // 2,
            BLOCK=power_of_two(size // 2), HEADS=_HEADS, HAS_NORM=turn.norm is not None, num_warps=4,
            **launch.fetching(fused),
        )  # fmt: skip


def write_qkv_reference(fused: Tensor, turn: Turn, places: Places, store: Tensor) -> Tensor:
    """The same in plain torch; computes in the product's dtype."""
    num_heads, num_kv_heads, size = turn.heads
    both = fused.unflatten(1, (-1, size))
    rotated = _turned(both[:, : num_heads + num_kv_heads], turn, places.positions)
    _write(store, places.slots, rotated[:, num_heads:], both[:, num_heads + num_kv_heads :])
    return rotated[:, :num_heads]


def write_context_reference(fused: Tensor, turn: Turn, places: Places, store: Tensor) -> None:
    """The same in plain torch."""
    both = fused.unflatten(1, (store.shape[0], 2, turn.heads.num_kv_heads, turn.heads.head_dim))
    keys = _turned(both[:, :, 0].flatten(1, 2), turn, places.positions)
    keys = keys.unflatten(1, (store.shape[0], -1))
    for layer in range(store.shape[0]):
        _write(store[layer], places.slots, keys[:, layer], both[:, layer, 1])


def _turned(heads: Tensor, turn: Turn, positions: Tensor) -> Tensor:
    if turn.norm is not None:
        length = heads.pow(2).mean(dim=-1, keepdim=True) + turn.eps
        heads = heads * length.rsqrt() * turn.norm.to(heads.dtype)
    cos, sin = turn.table[positions.clamp_min(0)].to(heads.dtype).unsqueeze(1).chunk(2, dim=-1)
    low, high = heads.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def _write(layer: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
    real = slots >= 0
    layer[0][:, slots[real]] = keys[real].transpose(0, 1).to(layer.dtype)
    layer[1][:, slots[real]] = values[real].transpose(0, 1).to(layer.dtype)


@triton.jit(do_not_specialize=["num_tokens"])
def _qkv(
    parts, norm, table, positions, slots, queries, store, num_tokens,
    part_stride, token_stride, num_slots, num_all, eps, ahead, PARTS: tl.constexpr,
    NUM_QUERIES: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    HEADS: tl.constexpr, HAS_NORM: tl.constexpr, EARLY: tl.constexpr, FETCHES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    allow_next(EARLY)
    if FETCHES:  # noqa: SIM102
        if token >= num_tokens:
            groups = tl.num_programs(1)
            extra = (tl.num_programs(0) - num_tokens) * groups
            fetch_ahead(ahead, (tl.program_id(0) - num_tokens) * groups + tl.program_id(1), extra)
            return
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    half = tl.arange(0, BLOCK)
    inside = (head < num_all)[:, None] & (half < HALF)[None, :]
    # Behind the queries lie keys and values in turn, NUM_KV_HEADS of each, as in the store.
    behind = head - NUM_QUERIES
    is_query = behind < 0
    is_value = (behind >= 0) & ((behind // NUM_KV_HEADS) % 2 == 1)
    # What does not depend on the product in front is read before it ends.
    slot = tl.load(slots + token)
    angles = table + tl.load(positions + token) * (2 * HALF) + half
    cos = tl.load(angles, mask=half < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(angles + HALF, mask=half < HALF, other=0.0).to(tl.float32)[None, :]
    place = head[:, None] * (2 * HALF) + half[None, :]
    if HAS_NORM:
        key_row = NUM_QUERIES + behind // (2 * NUM_KV_HEADS) * NUM_KV_HEADS + behind % NUM_KV_HEADS
        weights = norm + tl.where(is_query, head, key_row)[:, None] * (2 * HALF) + half[None, :]
        turned = inside & ((is_value == 0)[:, None])
        low_weight = tl.load(weights, mask=turned, other=0.0).to(tl.float32)
        high_weight = tl.load(weights + HALF, mask=turned, other=0.0).to(tl.float32)
    wait_for_input(EARLY)
    if slot >= 0:
        source = parts + token * token_stride + place
        low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
        high = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
        for _ in tl.static_range(PARTS - 1):
            source += part_stride
            low += tl.load(source, mask=inside, other=0.0).to(tl.float32)
            high += tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
        new_low, new_high = low, high
        if HAS_NORM:
            squares = tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)
            factor = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
            new_low, new_high = low * factor * low_weight, high * factor * high_weight
        keep = is_value[:, None]
        low = tl.where(keep, low, new_low * cos - new_high * sin)
        high = tl.where(keep, high, new_high * cos + new_low * sin)
        asked = inside & is_query[:, None]
        target = queries + token * (2 * HALF * NUM_QUERIES) + place
        tl.store(target, low, mask=asked)
        tl.store(target + HALF, high, mask=asked)
        cached = inside & ((is_query == 0)[:, None])
        home = store + (behind.to(tl.int64) * num_slots + slot)[:, None] * (2 * HALF) + half[None, :]
        tl.store(home, low, mask=cached)
        tl.store(home + HALF, high, mask=cached)
