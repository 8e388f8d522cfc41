"""Norm and rotation of queries and keys, and the write of keys and values to the pool, in one kernel.

It is fused because the plain way is a norm, a rotation and a scattered copy, each of which reads and writes
the result of the previous product. The speed is limited by launch and latency. The rotation comes from a
table of cosines and sines by position, so a pass computes no angles. A negative slot marks a padding token,
which is not written. `write_context` does the same for a block drafter's context, for keys and values of all
its layers at once.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from wager.nn.kernels.device import (
    PLAIN_LAUNCH,
    Launch,
    is_rows,
    launch_dependents,
    power_of_two,
    prefetch_share,
    wait_for_input,
)
from wager.nn.layers.attention import HeadShape
from wager.nn.rope import RopeSpec, Rotary

_HEADS = 4  # heads that one program works on


class HeadTransform(NamedTuple):
    """The heads of a product, with their norms [rotated heads, head_dim] or None, and their rotation.

    The table is [positions, head_dim]: half cosines, half sines per position. It must have every position of
    a pass.
    """

    heads: HeadShape
    norm: Tensor | None
    eps: float
    table: Tensor


class TokenSlots(NamedTuple):
    """The positions and slots of tokens, each [tokens] int64; a negative slot is padding."""

    positions: Tensor
    slots: Tensor


def rotation_table(
    spec: RopeSpec, num_positions: int, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """Returns [positions, head_dim] in the model's dtype: the values of `Rotary`, each pair once."""
    rotation = Rotary(spec, dtype, device).compute(torch.arange(num_positions, device=device))
    half = spec.head_dim // 2
    return torch.cat((rotation.cos[:, 0, :half], rotation.sin[:, 0, half:]), dim=1).contiguous()


def write_qkv(
    fused: Tensor,
    turn: HeadTransform,
    places: TokenSlots,
    store: Tensor,
    queries: Tensor | None = None,
    launch: Launch = PLAIN_LAUNCH,
) -> Tensor:
    """Returns the normed and rotated queries of the product [tokens, (heads + 2 * kv_heads) * head_dim].

    The product may be the parts of a split one, [parts, tokens, ...], which are summed here in order. Keys,
    normed and rotated, and values are written to `store` [2, kv_heads, slots, head_dim], one layer of the
    pool. The queries are [tokens, heads, head_dim]; those of padding tokens stay unchanged.
    """
    heads = turn.heads
    shape = (fused.shape[-2], heads.num_heads, heads.head_dim)
    queries = fused.new_empty(shape, dtype=store.dtype) if queries is None else queries
    assert queries.shape == shape and queries.is_contiguous(), f"queries {tuple(queries.shape)}"
    assert store.dim() == 4 and store.shape[:2] == (2, heads.num_kv_heads), f"a layer of {tuple(store.shape)}"
    _run(fused, turn, places, store, queries, launch)
    return queries


def write_context(
    fused: Tensor, turn: HeadTransform, places: TokenSlots, store: Tensor, launch: Launch = PLAIN_LAUNCH
) -> None:
    """Writes the keys, normed and rotated, and values of [tokens, layers * 2 * kv_heads * head_dim] to the
    pool.

    `store` is the whole pool [layers, 2, kv_heads, slots, head_dim]; `turn.norm` is [layers * kv_heads,
    head_dim].
    """
    kv_heads = turn.heads.num_kv_heads
    assert store.dim() == 5 and store.shape[1:3] == (2, kv_heads), f"a pool of {tuple(store.shape)}"
    turn = turn._replace(heads=turn.heads._replace(num_heads=0))
    _run(fused, turn, places, store, None, launch)


def _run(
    fused: Tensor,
    turn: HeadTransform,
    places: TokenSlots,
    store: Tensor,
    queries: Tensor | None,
    launch: Launch,
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


def write_qkv_reference(fused: Tensor, turn: HeadTransform, places: TokenSlots, store: Tensor) -> Tensor:
    """Computes the same in plain torch, in the product's dtype."""
    num_heads, num_kv_heads, size = turn.heads
    both = fused.unflatten(1, (-1, size))
    rotated = _turned(both[:, : num_heads + num_kv_heads], turn, places.positions)
    _write(store, places.slots, rotated[:, num_heads:], both[:, num_heads + num_kv_heads :])
    return rotated[:, :num_heads]


def write_context_reference(fused: Tensor, turn: HeadTransform, places: TokenSlots, store: Tensor) -> None:
    """Computes the same in plain torch."""
    both = fused.unflatten(1, (store.shape[0], 2, turn.heads.num_kv_heads, turn.heads.head_dim))
    keys = _turned(both[:, :, 0].flatten(1, 2), turn, places.positions)
    keys = keys.unflatten(1, (store.shape[0], -1))
    for layer in range(store.shape[0]):
        _write(store[layer], places.slots, keys[:, layer], both[:, layer, 1])


def _turned(heads: Tensor, turn: HeadTransform, positions: Tensor) -> Tensor:
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
    part_stride, token_stride, num_slots, num_all, eps, prefetch, PARTS: tl.constexpr,
    NUM_QUERIES: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    HEADS: tl.constexpr, HAS_NORM: tl.constexpr, PDL: tl.constexpr, PREFETCHES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    launch_dependents(PDL)
    if PREFETCHES:  # noqa: SIM102
        if token >= num_tokens:
            groups = tl.num_programs(1)
            extra = (tl.num_programs(0) - num_tokens) * groups
            prefetch_share(prefetch, (tl.program_id(0) - num_tokens) * groups + tl.program_id(1), extra)
            return
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    half = tl.arange(0, BLOCK)
    inside = (head < num_all)[:, None] & (half < HALF)[None, :]
    # After the queries come NUM_KV_HEADS keys, then as many values, as in the store.
    behind = head - NUM_QUERIES
    is_query = behind < 0
    is_value = (behind >= 0) & ((behind // NUM_KV_HEADS) % 2 == 1)
    # Everything that does not depend on the previous product is read before it ends.
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
    wait_for_input(PDL)
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
