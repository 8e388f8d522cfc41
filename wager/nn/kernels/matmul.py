"""x @ W^T for few tokens, with every weight read once; an alternative to the library's product.

A program takes some rows of W and, if those are too few to fill the device, one split of the inner dimension.
The split that ends last sums the splits of a tile in order, so a result does not depend on timing.
`split_product` leaves the sum to the next kernel (`norm.add_norm` and `qkv.write_qkv`), and `gated_product`
applies SiLU(gate) * up before anything is written. The speed is limited by reading W: an early launch
prefetches the first weights while the previous kernel still writes x. `bench/gpu/kernels.py` measured the
configurations.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from wager.nn.kernels.device import (
    PLAIN_LAUNCH,
    Launch,
    is_rows,
    launch_dependents,
    power_of_two,
    prefetch_runs,
    tile_product,
    wait_for_input,
)
from wager.nn.kernels.gate import silu_product

MAX_TOKENS = 128
_SHARED_BYTES = 200_000
_DIRECT, _LAST, _PARTS = 0, 1, 2


class ProductConfig(NamedTuple):
    """How a product is tiled: rows of W and inner length of a tile, and splits of the inner dimension."""

    rows: int = 64
    inner: int = 128
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 4
    prefetch: int = 2
    """Number of inner tiles that an early launch prefetches before it waits for x."""


CONFIGS = (
    ProductConfig(16, 256, 1, 4, 5),
    ProductConfig(32, 256, 1, 4, 4),
    ProductConfig(64, 128, 1, 4, 5),
    ProductConfig(64, 128, 4, 4, 4),
    ProductConfig(128, 64, 4, 4, 5),
    ProductConfig(128, 128, 8, 8, 4),
)
"""Candidates that `bench/gpu/kernels.py` measures and the tests run."""


class ProductSpace(NamedTuple):
    """Memory for the splits of the largest product; `counters` are zero between launches."""

    partial: Tensor
    counters: Tensor


def product_space(
    max_tokens: int, max_out: int, device: torch.device | str, max_splits: int = 8
) -> ProductSpace:
    partial = torch.empty(max_splits * max_tokens * max_out, dtype=torch.float32, device=device)
    counters = torch.zeros(triton.cdiv(max_out, 16), dtype=torch.int32, device=device)
    return ProductSpace(partial, counters)


def default_config(num_tokens: int, num_rows: int) -> ProductConfig:
    """Returns a configuration that fills a large device; it is not measured."""
    if num_rows >= 16_384:
        return ProductConfig(64, 128, 1, 4, 4)
    return ProductConfig(32, 256, 1, 4, 4) if num_tokens <= 16 else ProductConfig(64, 128, 4, 4, 4)


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    config: ProductConfig | None = None,
    space: ProductSpace | None = None,
    launch: Launch = PLAIN_LAUNCH,
    out: Tensor | None = None,
) -> Tensor:
    """Returns x [tokens, in] @ weight [out, in]^T (+ bias) in x's dtype; at most MAX_TOKENS tokens."""
    config = config or default_config(x.shape[0], weight.shape[0])
    shape = (x.shape[0], weight.shape[0])
    out = x.new_empty(shape) if out is None else out
    assert out.shape == shape and out.is_contiguous(), f"{tuple(out.shape)} for {shape}"
    if config.splits > 1 and space is None:
        space = product_space(x.shape[0], weight.shape[0], x.device, config.splits)
    _run(x, weight, bias, out, _Cut(config, _DIRECT if config.splits == 1 else _LAST, False), space, launch)
    return out


def split_product(x: Tensor, weight: Tensor, config: ProductConfig, launch: Launch = PLAIN_LAUNCH) -> Tensor:
    """Returns [splits, tokens, out] float32 parts whose sum over the first dimension is the product."""
    parts = x.new_empty((config.splits, x.shape[0], weight.shape[0]), dtype=torch.float32)
    space = ProductSpace(parts, parts)
    _run(x, weight, None, parts, _Cut(config, _PARTS, False), space, launch)
    return parts


def gated_product(
    x: Tensor, weight: Tensor, config: ProductConfig | None = None, launch: Launch = PLAIN_LAUNCH
) -> Tensor:
    """Returns SiLU(gate) * up of the fused weight [2 * middle, in], gate first, as [tokens, middle]."""
    config = (config or ProductConfig(32, 128, 1, 4, 4))._replace(splits=1)
    out = x.new_empty((x.shape[0], weight.shape[0] // 2))
    _run(x, weight, None, out, _Cut(config, _DIRECT, True), None, launch)
    return out


class _Cut(NamedTuple):
    config: ProductConfig
    ending: int
    is_gated: bool


def _run(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, cut: _Cut, space: ProductSpace | None,
    launch: Launch,
) -> None:  # fmt: skip
    (num_tokens, inner), config = x.shape, cut.config
    num_out = out.shape[-1]
    assert weight.shape == (num_out * (2 if cut.is_gated else 1), inner), f"{tuple(weight.shape)} for {inner}"
    assert num_tokens <= MAX_TOKENS and is_rows(x) and is_rows(weight), f"a product of {tuple(x.shape)}"
    assert x.dtype == weight.dtype and (bias is None or bias.shape == (num_out,))
    tiles, rows = triton.cdiv(num_out, config.rows), config.rows * (2 if cut.is_gated else 1)
    if space is not None and cut.ending == _LAST:
        assert space.partial.numel() >= config.splits * num_tokens * num_out, "no room for the splits"
        assert len(space.counters) >= tiles, "more tiles than counters"
    if num_tokens and num_out:
        tokens = max(16, power_of_two(num_tokens))
        # The tiles in flight must fit into shared memory, so wide tiles have fewer stages.
        tile_bytes = (rows + tokens) * config.inner * x.itemsize
        stages = max(1, min(config.num_stages, _SHARED_BYTES // tile_bytes))
        _product[(tiles, config.splits)](
            x, weight, x if bias is None else bias, out,
            x if space is None else space.partial, x if space is None else space.counters,
            num_tokens, num_out, inner, x.stride(0), weight.stride(0),
            TOKENS=tokens, ROWS=rows, INNER=config.inner,
            SPLITS=config.splits, HAS_BIAS=bias is not None, ENDING=cut.ending, GATED=cut.is_gated,
            PIECE=_piece(weight, rows, config) if launch.pdl else 0, WARPS=config.num_warps,
            num_warps=config.num_warps, num_stages=stages, **launch.options,
        )  # fmt: skip


def _piece(weight: Tensor, rows: int, config: ProductConfig) -> int:
    """Returns how many weights of a row each thread prefetches; 0 if they are not runs of 16 bytes."""
    prefetch = config.inner * config.prefetch
    piece = prefetch // max(1, 32 * config.num_warps // rows)
    is_even = all(count * weight.itemsize % 16 == 0 for count in (piece, config.inner, weight.stride(0)))
    steps = triton.cdiv(triton.cdiv(weight.shape[1], config.inner), config.splits) * config.inner
    shortest = weight.shape[1] - (config.splits - 1) * steps
    return piece if is_even and weight.data_ptr() % 16 == 0 and prefetch <= shortest else 0


def product_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes the same in plain torch."""
    return F.linear(x, weight, bias)


@triton.jit(do_not_specialize=["num_tokens"])
def _product(
    x, weight, bias, out, partial, counters, num_tokens, num_out, inner, x_stride, weight_stride,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr, ENDING: tl.constexpr, GATED: tl.constexpr, PIECE: tl.constexpr,
    WARPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    launch_dependents(PDL)
    # A gated tile has as many rows of gates as rows of ups, so that one product computes both.
    HALF: tl.constexpr = ROWS // 2 if GATED else ROWS
    token = tl.arange(0, TOKENS)
    step = tl.arange(0, INNER)
    steps = tl.cdiv(tl.cdiv(inner, INNER), SPLITS) * INNER
    low = split * steps
    high = tl.minimum(low + steps, inner)
    if PIECE > 0:
        _fetch_rows(weight, tile, low, num_out, weight_stride, ROWS, HALF, PIECE, WARPS)
    known = x + token[None, :] * x_stride + step[:, None]
    # Lines without a token are not read: reading the last token instead would be a hot spot for all programs.
    is_token = (token < num_tokens)[None, :]
    lines = weight + _lines(tile, tl.arange(0, ROWS), num_out, HALF)[:, None] * weight_stride + step[None, :]
    total = tl.zeros((ROWS, TOKENS), tl.float32)
    wait_for_input(PDL)
    for at in range(low, high, INNER):
        inside = step < high - at
        near = tl.load(known + at, mask=inside[:, None] & is_token, other=0.0, eviction_policy="evict_last")
        own = tl.load(lines + at, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
        total = tile_product(own, near, total)
    row = tile * HALF + tl.arange(0, HALF)
    if GATED:
        gated, up = tl.split(tl.permute(tl.reshape(total, (2, HALF, TOKENS)), (1, 2, 0)))
        total = silu_product(gated, up)
    wanted = (row < num_out)[:, None] & is_token
    target = token[None, :] * num_out + row[:, None]
    if ENDING != 0:
        size = num_tokens.to(tl.int64) * num_out
        tl.store(partial + split * size + target, total, mask=wanted)
        if ENDING == 1:
            # NOTE: all threads must pass the barrier with their stores before one of them counts this split.
            tl.debug_barrier()
            if tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu") == SPLITS - 1:
                whole = tl.zeros((HALF, TOKENS), tl.float32)
                for part in tl.static_range(SPLITS):
                    source = partial + part * size + target
                    whole += tl.load(source, mask=wanted, other=0.0, cache_modifier=".cg")
                _finish(whole, bias, out, row, target, wanted, num_out, HAS_BIAS)
                tl.store(counters + tile, 0)
    else:
        _finish(total, bias, out, row, target, wanted, num_out, HAS_BIAS)


@triton.jit
def _lines(tile, line, num_out, HALF: tl.constexpr):
    """Returns the row of W for each line of a tile; lines beyond the end repeat the last and are not
    written.
    """
    row = tl.minimum(tile * HALF + line % HALF, num_out - 1)
    return (row + line // HALF * num_out).to(tl.int64)


@triton.jit
def _fetch_rows(
    weight, tile, low, num_out, weight_stride,
    ROWS: tl.constexpr, HALF: tl.constexpr, PIECE: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Prefetches the first weights of every row of a tile, one piece per thread."""
    PIECES: tl.constexpr = (32 * WARPS) // ROWS if ROWS < 32 * WARPS else 1
    thread = tl.arange(0, ROWS * PIECES)
    row = _lines(tile, thread // PIECES, num_out, HALF)
    place = weight + row * weight_stride + low + thread % PIECES * PIECE
    prefetch_runs(place, PIECE * (weight.dtype.element_ty.primitive_bitwidth // 8))


@triton.jit
def _finish(total, bias, out, row, target, wanted, num_out, HAS_BIAS: tl.constexpr):
    if HAS_BIAS:
        total += tl.load(bias + row, mask=row < num_out, other=0.0).to(tl.float32)[:, None]
    tl.store(out + target, total, mask=wanted)
