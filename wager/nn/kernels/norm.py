"""Residual add and RMS norm in one read: the sum goes back to memory, its norm to the next product.

Fused because each half alone would read and write the whole stream again; bound by launch and latency at a
few tokens (one program per token holds its row in registers), by bandwidth beyond. The addend may be the
parts of a split product, summed here in order, and the new residual may lie in a strided buffer, so that a
drafter's features land where they are wanted. Called once or twice per layer.
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
    PLAIN,
    Launch,
    allow_next,
    fetch_ahead,
    is_rows,
    power_of_two,
    wait_for_input,
)

_MAX_SIZE = 32_768


class Normed(NamedTuple):
    """The stream, and its norm for the next product, each [tokens, hidden]."""

    residual: Tensor
    normed: Tensor


class Norm(NamedTuple):
    """An RMS norm's weight [hidden] and epsilon."""

    weight: Tensor
    eps: float


def add_norm(
    addend: Tensor, residual: Tensor | None, norm: Norm, out: Normed | None = None, launch: Launch = PLAIN
) -> Normed:
    """residual + addend, rounded to the stream's dtype, and the norm of that.

    `addend` is [tokens, hidden] or [parts, tokens, hidden]; residual None adds nothing. `out` may hold
    `residual` itself. Results have the residual's dtype, without one the addend's.
    """
    parts = addend.unsqueeze(0) if addend.dim() == 2 else addend
    num_parts, num_tokens, size = parts.shape
    like = addend if residual is None else residual
    if out is None:
        shape = (num_tokens, size)
        out = Normed(like.new_empty(shape), like.new_empty(shape))
    assert norm.weight.shape == (size,) and size <= _MAX_SIZE, f"a norm of {size}"
    for one in (like if residual is not None else out.normed, *out):
        assert one.shape == (num_tokens, size) and is_rows(one), (
            f"{tuple(one.shape)} for {tuple(addend.shape)}"
        )
    assert is_rows(addend)
    if num_tokens:
        block = power_of_two(size)
        _add_norm[(num_tokens + launch.extra,)](
            parts, like, norm.weight, out.residual, out.normed,
            num_tokens, parts.stride(0), parts.stride(1), like.stride(-2),
            out.residual.stride(0), out.normed.stride(0), size, norm.eps,
            PARTS=num_parts, HAS_RESIDUAL=residual is not None, BLOCK=block,
            num_warps=max(1, min(16, block // 512)), **launch.fetching(norm.weight),
        )  # fmt: skip
    return out


def add_norm_reference(addend: Tensor, residual: Tensor | None, norm: Norm) -> Normed:
    """The same in plain torch."""
    whole = addend if addend.dim() == 2 else addend.sum(dim=0)
    stream = (
        whole if residual is None else (whole.to(torch.promote_types(whole.dtype, residual.dtype)) + residual)
    )
    stream = stream.to(addend.dtype if residual is None else residual.dtype)
    return Normed(stream, F.rms_norm(stream, norm.weight.shape, norm.weight, norm.eps))


@triton.jit(do_not_specialize=["num_tokens"])
def _add_norm(
    parts, residual, weight, new_residual, normed, num_tokens,
    part_stride, token_stride, residual_stride, new_stride, normed_stride, size, eps, ahead,
    PARTS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
    FETCHES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    allow_next(EARLY)
    if FETCHES:  # noqa: SIM102
        if token >= num_tokens:
            fetch_ahead(ahead, tl.program_id(0) - num_tokens, tl.num_programs(0) - num_tokens)
            return
    at = tl.arange(0, BLOCK)
    inside = at < size
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    wait_for_input(EARLY)
    stream = tl.zeros((BLOCK,), tl.float32)
    if HAS_RESIDUAL:
        stream = tl.load(residual + token * residual_stride + at, mask=inside, other=0.0).to(tl.float32)
    source = parts + token * token_stride + at
    for _ in tl.static_range(PARTS):  # so that the loads are all under way at once
        stream += tl.load(source, mask=inside, other=0.0).to(tl.float32)
        source += part_stride
    # What the next layer adds to is what is normed: the rounded sum.
    rounded = stream.to(new_residual.dtype.element_ty)
    tl.store(new_residual + token * new_stride + at, rounded, mask=inside)
    stream = rounded.to(tl.float32)
    factor = tl.rsqrt(tl.sum(stream * stream, axis=0) / size + eps)
    tl.store(normed + token * normed_stride + at, stream * factor * scale, mask=inside)
