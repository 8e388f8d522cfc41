"""Residual addition and RMS norm in one read: the sum is written to memory, and its norm for the next
product.

It is fused because each half alone would read and write the whole stream again. The speed is limited by
launch and latency for a few tokens (one program per token holds its row in registers), by bandwidth beyond.
The addend may be the parts of a split product, which are summed here in order. The new residual may be in a
strided buffer, so that a drafter's features need no copy. It runs once or twice per layer.
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
    prefetch_share,
    wait_for_input,
)
from wager.nn.kernels.support import MAX_HIDDEN_SIZE


class Normed(NamedTuple):
    """The residual stream, and its norm for the next product, each [tokens, hidden]."""

    residual: Tensor
    normed: Tensor


class Norm(NamedTuple):
    """An RMS norm's weight [hidden] and epsilon."""

    weight: Tensor
    eps: float


def add_norm(
    addend: Tensor,
    residual: Tensor | None,
    norm: Norm,
    out: Normed | None = None,
    launch: Launch = PLAIN_LAUNCH,
) -> Normed:
    """Returns residual + addend, rounded to the stream's dtype, and its norm.

    `addend` is [tokens, hidden] or [parts, tokens, hidden]; a residual of None adds nothing. `out` may hold
    `residual` itself. Results have the dtype of the residual, or without one that of the addend.
    """
    parts = addend.unsqueeze(0) if addend.dim() == 2 else addend
    num_parts, num_tokens, size = parts.shape
    like = addend if residual is None else residual
    if out is None:
        shape = (num_tokens, size)
        out = Normed(like.new_empty(shape), like.new_empty(shape))
    assert norm.weight.shape == (size,) and size <= MAX_HIDDEN_SIZE, f"a norm of {size}"
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
    """Computes the same in plain torch."""
    whole = addend if addend.dim() == 2 else addend.sum(dim=0)
    stream = (
        whole if residual is None else (whole.to(torch.promote_types(whole.dtype, residual.dtype)) + residual)
    )
    stream = stream.to(addend.dtype if residual is None else residual.dtype)
    return Normed(stream, F.rms_norm(stream, norm.weight.shape, norm.weight, norm.eps))


@triton.jit(do_not_specialize=["num_tokens"])
def _add_norm(
    parts, residual, weight, new_residual, normed, num_tokens,
    part_stride, token_stride, residual_stride, new_stride, normed_stride, size, eps, prefetch,
    PARTS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
    PREFETCHES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    launch_dependents(PDL)
    if PREFETCHES:  # noqa: SIM102
        if token >= num_tokens:
            prefetch_share(prefetch, tl.program_id(0) - num_tokens, tl.num_programs(0) - num_tokens)
            return
    at = tl.arange(0, BLOCK)
    inside = at < size
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    wait_for_input(PDL)
    stream = tl.zeros((BLOCK,), tl.float32)
    if HAS_RESIDUAL:
        stream = tl.load(residual + token * residual_stride + at, mask=inside, other=0.0).to(tl.float32)
    source = parts + token * token_stride + at
    for _ in tl.static_range(PARTS):  # so that all loads are in flight at once
        stream += tl.load(source, mask=inside, other=0.0).to(tl.float32)
        source += part_stride
    # The norm is computed from the rounded sum, which the next layer adds to.
    rounded = stream.to(new_residual.dtype.element_ty)
    tl.store(new_residual + token * new_stride + at, rounded, mask=inside)
    stream = rounded.to(tl.float32)
    factor = tl.rsqrt(tl.sum(stream * stream, axis=0) / size + eps)
    tl.store(normed + token * normed_stride + at, stream * factor * scale, mask=inside)
