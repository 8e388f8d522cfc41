"""x @ W^T with W in 8 or 4 bits, for few tokens: fewer bytes to read, so less time than a wider product.

The scheme is that of `matmul.py`: a program takes some rows of W and, if those are too few to fill the
device, one split of the inner dimension. A byte is read once and widened in registers (`quant_unpack.py`).
The product of a group is exact integers times x, summed in float32, and its scale is applied to the sum.
Beyond MAX_TOKENS the time no longer depends on reading W: panels of it are dequantised for the library.
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
    prefetch_run,
    tile_product,
    wait_for_input,
)
from wager.nn.kernels.gate import gate, gate_reference, silu_product
from wager.nn.kernels.matmul import ProductSpace, product_space
from wager.nn.kernels.quant_unpack import four_of, two_of, unit, widen
from wager.nn.kernels.quant_weights import QuantWeight, dequantised

MAX_TOKENS = 128
_SHARED_BYTES = 200_000
_PANEL_BYTES = 16 << 20
_DIRECT, _LAST, _PARTS = 0, 1, 2


class QuantConfig(NamedTuple):
    """How a product is tiled: rows of W in a tile, and splits of the inner dimension."""

    rows: int = 64
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 5


QUANT_CONFIGS = (
    QuantConfig(32, 1, 2, 6),
    QuantConfig(32, 4, 2, 6),
    QuantConfig(64, 1, 4, 6),
    QuantConfig(64, 4, 4, 6),
    QuantConfig(64, 8, 4, 5),
    QuantConfig(128, 1, 4, 5),
    QuantConfig(128, 4, 4, 5),
    QuantConfig(128, 8, 4, 4),
)
"""Candidates that `bench/gpu/narrow.py` measures and the tests run.

Each warp has at least 16 rows; with fewer, two warps would widen the same words.
"""
GATED_CONFIGS = (QuantConfig(32, 1, 4, 6), QuantConfig(64, 1, 4, 5))
"""Candidates for gated products; a tile has as many rows of gates as rows of ups."""


def default_quant_config(num_tokens: int, num_rows: int) -> QuantConfig:
    """Returns a configuration that fills a large device; it is not measured."""
    if num_rows >= 16_384:
        return QuantConfig(128 if num_tokens <= 32 else 64, 1, 4, 5)
    return QuantConfig(64, 4, 4, 6)


def quant_product(
    x: Tensor,
    weight: QuantWeight,
    bias: Tensor | None = None,
    config: QuantConfig | None = None,
    space: ProductSpace | None = None,
    launch: Launch = PLAIN_LAUNCH,
    out: Tensor | None = None,
) -> Tensor:
    """Returns x [tokens, in] @ weight [out, in]^T (+ bias) in x's dtype, in `out` if it is given."""
    if x.shape[0] > MAX_TOKENS:
        return dequantised_product(x, weight, bias, out)
    config = config or default_quant_config(x.shape[0], weight.num_out)
    out = x.new_empty((x.shape[0], weight.num_out)) if out is None else out
    assert out.shape == (x.shape[0], weight.num_out) and out.is_contiguous(), f"into {tuple(out.shape)}"
    if config.splits > 1 and space is None:
        space = product_space(x.shape[0], weight.num_out, x.device, config.splits)
    cut = _Cut(config, _DIRECT if config.splits == 1 else _LAST, False)
    _run(x, weight, bias, out, cut, space, launch)
    return out


def quant_split_product(
    x: Tensor, weight: QuantWeight, config: QuantConfig, launch: Launch = PLAIN_LAUNCH
) -> Tensor:
    """Returns [splits, tokens, out] float32 parts whose sum is the product.

    For more than MAX_TOKENS tokens it returns the product itself, [1, tokens, out] in x's dtype.
    """
    if x.shape[0] > MAX_TOKENS:
        return dequantised_product(x, weight)[None]
    parts = x.new_empty((config.splits, x.shape[0], weight.num_out), dtype=torch.float32)
    _run(x, weight, None, parts, _Cut(config, _PARTS, False), ProductSpace(parts, parts), launch)
    return parts


def quant_gated_product(
    x: Tensor, weight: QuantWeight, config: QuantConfig | None = None, launch: Launch = PLAIN_LAUNCH
) -> Tensor:
    """Returns SiLU(gate) * up of the fused weight [2 * middle, in], gate first, as [tokens, middle]."""
    if x.shape[0] > MAX_TOKENS:
        return gate(dequantised_product(x, weight))
    config = (config or GATED_CONFIGS[x.shape[0] <= 32])._replace(splits=1)
    out = x.new_empty((x.shape[0], weight.num_out // 2))
    _run(x, weight, None, out, _Cut(config, _DIRECT, True), None, launch)
    return out


def dequantised_product(
    x: Tensor, weight: QuantWeight, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Returns the product of many tokens: panels of rows are dequantised into the cache, then the library
    multiplies.
    """
    num_out, inner = weight.shape
    out = x.new_empty((x.shape[0], num_out)) if out is None else out
    rows = min(num_out, max(128, _PANEL_BYTES // max(1, inner * x.itemsize)))
    scratch = x.new_empty((rows, inner))
    for start in range(0, num_out, rows):
        end = min(start + rows, num_out)
        panel = widen(weight, start, scratch[: end - start])
        torch.mm(x, panel.T, out=out[:, start:end])
    return out if bias is None else out.add_(bias)


def quant_product_reference(x: Tensor, weight: QuantWeight, bias: Tensor | None = None) -> Tensor:
    """Computes the same in plain torch, with the weight in x's dtype."""
    return F.linear(x, dequantised(weight, x.dtype), bias)


def quant_gated_product_reference(x: Tensor, weight: QuantWeight) -> Tensor:
    """Computes the same in plain torch."""
    return gate_reference(quant_product_reference(x, weight))


class _Cut(NamedTuple):
    config: QuantConfig
    ending: int
    is_gated: bool


def _run(
    x: Tensor, weight: QuantWeight, bias: Tensor | None, out: Tensor, cut: _Cut, space: ProductSpace | None,
    launch: Launch,
) -> None:  # fmt: skip
    (num_tokens, inner), config = x.shape, cut.config
    num_out = out.shape[-1]
    assert weight.shape == (num_out * (2 if cut.is_gated else 1), inner), f"{weight.shape} for {inner}"
    assert inner and is_rows(x) and (bias is None or bias.shape == (num_out,)), f"{tuple(x.shape)}"
    weight.check()
    tiles, rows = triton.cdiv(num_out, config.rows), config.rows * (2 if cut.is_gated else 1)
    if space is not None and cut.ending == _LAST:
        assert space.partial.numel() >= config.splits * num_tokens * num_out, "no room for the splits"
        assert len(space.counters) >= tiles, "more tiles than counters"
    if num_tokens and num_out:
        tokens = max(16, power_of_two(num_tokens))
        # The tiles in flight must fit into shared memory, so wide tiles have fewer stages.
        tile_bytes = rows * weight.group + tokens * weight.chunk * x.itemsize
        stages = max(1, min(config.num_stages, _SHARED_BYTES // tile_bytes))
        # The sums of a thread must fit into its registers: more warps, as long as each has rows of its own.
        is_wide = rows * tokens > 1024 * config.num_warps and rows >= 32 * config.num_warps
        warps = config.num_warps * (2 if is_wide else 1)
        _product[(tiles, config.splits)](
            x, weight.packed, weight.scale_words, x if bias is None else bias, out,
            x if space is None else space.partial, x if space is None else space.counters,
            num_tokens, num_out, inner, x.stride(0), weight.packed.stride(0), weight.scale_words.stride(0),
            TOKENS=tokens, ROWS=rows, WORDS=weight.group // 2, BITS=weight.bits,
            SPLITS=config.splits, HAS_BIAS=bias is not None, ENDING=cut.ending, GATED=cut.is_gated,
            WHOLE=inner % weight.chunk == 0, FIRST=stages - 1 if launch.pdl else 0,
            num_warps=warps, num_stages=stages, **launch.options,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_tokens"])
def _product(
    x, packed, scales, bias, out, partial, counters,
    num_tokens, num_out, inner, x_stride, chunk_stride, scale_stride,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr, BITS: tl.constexpr,
    SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr, ENDING: tl.constexpr, GATED: tl.constexpr,
    WHOLE: tl.constexpr, FIRST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    launch_dependents(PDL)
    CHUNK: tl.constexpr = WORDS * 16 // BITS
    # A gated tile has as many rows of gates as rows of ups, so that one product computes both.
    HALF: tl.constexpr = ROWS // 2 if GATED else ROWS
    num_chunks = tl.cdiv(inner, CHUNK)
    each = tl.cdiv(num_chunks, SPLITS)
    low = split * each
    high = tl.minimum(low + each, num_chunks)
    num_bytes = tl.minimum(HALF, num_out - tile * HALF) * WORDS * 2
    for index in tl.static_range(FIRST):
        if low + index < high:
            _fetch(packed + (low + index).to(tl.int64) * chunk_stride + tile * HALF * WORDS, num_bytes,
                   num_out * WORDS, GATED)  # fmt: skip
    token, word, line = tl.arange(0, TOKENS), tl.arange(0, WORDS), tl.arange(0, ROWS)
    # Rows beyond the end repeat the last one: their results are not written.
    own_row = tl.minimum(tile * HALF + line % HALF, num_out - 1) + line // HALF * num_out
    place = own_row[:, None] * WORDS + word[None, :]
    known = x + token[None, :] * x_stride + word[:, None]
    is_token = (token < num_tokens)[None, :]
    total = tl.zeros((ROWS, TOKENS), tl.float32)
    # Scales are loaded one chunk ahead, because the compiler prefetches only operands of a product.
    scale_lines = scales + own_row + tl.minimum(low, num_chunks - 1) * scale_stride
    scale = tl.load(scale_lines)
    wait_for_input(PDL)
    for chunk in range(low, high):
        start = packed + tl.cast(chunk, tl.int64) * chunk_stride
        own = tl.load(start + place, eviction_policy="evict_first")
        at, none = chunk * CHUNK, tl.zeros_like(total)
        near = _inputs(known, at, word, is_token, inner, WHOLE)
        far = _inputs(known, at + WORDS, word, is_token, inner, WHOLE)
        if BITS == 8:
            first, second = two_of(own, near.dtype)
            total += _group(first, second, near, far, none, scale)
        else:
            first, second, third, fourth = four_of(own, near.dtype)
            total += _group(first, second, near, far, none, scale << 16)
            near = _inputs(known, at + 2 * WORDS, word, is_token, inner, WHOLE)
            far = _inputs(known, at + 3 * WORDS, word, is_token, inner, WHOLE)
            total += _group(third, fourth, near, far, none, scale & -65536)
        if chunk < high - 1:
            scale_lines += scale_stride
        scale = tl.load(scale_lines)
    total *= unit(x.dtype.element_ty)
    row = tile * HALF + tl.arange(0, HALF)
    if GATED:
        gated, up = tl.split(tl.permute(tl.reshape(total, (2, HALF, TOKENS)), (1, 2, 0)))
        total = silu_product(gated, up)
    wanted = (row < num_out)[:, None] & is_token
    target = token[None, :] * num_out + row[:, None]
    if ENDING == 0:
        _finish(total, bias, out, row, target, wanted, num_out, HAS_BIAS)
    else:
        size = num_tokens.to(tl.int64) * num_out
        tl.store(partial + split * size + target, total, mask=wanted)
        if ENDING == 1:
            # NOTE: all threads must pass the barrier with their stores before one of them counts this split.
            tl.debug_barrier()
            if tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu") == SPLITS - 1:
                whole = tl.zeros((HALF, TOKENS), tl.float32)
                for one in range(SPLITS):
                    source = partial + one * size + target
                    whole += tl.load(source, mask=wanted, other=0.0, cache_modifier=".cg")
                _finish(whole, bias, out, row, target, wanted, num_out, HAS_BIAS)
                tl.store(counters + tile, 0)


@triton.jit
def _fetch(place, num_bytes, to_up, GATED: tl.constexpr):
    """Prefetches a tile's rows of a chunk, which depend on no earlier kernel."""
    prefetch_run(place, num_bytes)
    if GATED:
        prefetch_run(place + to_up, num_bytes)


@triton.jit
def _group(first, second, near, far, none, scale_bits):
    """Returns the product of a group, from both of its halves, times its scale."""
    part = tile_product(second, far, tile_product(first, near, none))
    return part * scale_bits.to(tl.float32, bitcast=True)[:, None]


@triton.jit
def _inputs(known, at, word, is_token, inner, WHOLE: tl.constexpr):
    """Returns a part of x, [WORDS, TOKENS]; positions beyond the end are zero and not read."""
    mask = is_token if WHOLE else is_token & (word < inner - at)[:, None]
    return tl.load(known + at, mask=mask, other=0.0, eviction_policy="evict_last")


@triton.jit
def _finish(total, bias, out, row, target, wanted, num_out, HAS_BIAS: tl.constexpr):
    if HAS_BIAS:
        total += tl.load(bias + row, mask=row < num_out, other=0.0).to(tl.float32)[:, None]
    tl.store(out + target, total, mask=wanted)
