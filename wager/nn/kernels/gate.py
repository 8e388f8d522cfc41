"""SiLU(gate) * up over the fused product [tokens, 2 * middle], with one read of both halves and one write.

It is fused because the two plain operations write and read the activation once more. The speed is limited by
bandwidth, for a few tokens by the launch. It runs once per layer, between the two products of the MLP.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from wager.nn.kernels.device import (
    PLAIN_LAUNCH,
    Launch,
    is_rows,
    launch_dependents,
    prefetch_share,
    wait_for_input,
)

_BLOCK = 1024


def gate(both: Tensor, out: Tensor | None = None, launch: Launch = PLAIN_LAUNCH) -> Tensor:
    """Maps [tokens, 2 * middle] to [tokens, middle]; computed in float32 and rounded once."""
    num_tokens, middle = both.shape[0], both.shape[1] // 2
    assert both.shape[1] == 2 * middle and is_rows(both), f"gate of {tuple(both.shape)}"
    out = both.new_empty((num_tokens, middle)) if out is None else out
    assert out.shape == (num_tokens, middle) and is_rows(out), f"gate into {tuple(out.shape)}"
    if num_tokens and middle:
        blocks = triton.cdiv(middle, _BLOCK)
        _gate[(num_tokens + triton.cdiv(launch.extra, blocks), blocks)](
            both, out, num_tokens, both.stride(0), out.stride(0), middle,
            BLOCK=_BLOCK, **launch.fetching(both),
        )  # fmt: skip
    return out


def gate_reference(both: Tensor) -> Tensor:
    """Computes the same in plain torch."""
    middle = both.shape[1] // 2
    return F.silu(both[:, :middle]) * both[:, middle:]


@triton.jit
def silu_product(gated, up):
    """Returns gated * sigmoid(gated) * up of float32 tiles."""
    return gated / (1.0 + tl.exp(-gated)) * up


@triton.jit(do_not_specialize=["num_tokens"])
def _gate(
    both, out, num_tokens, both_stride, out_stride, middle, prefetch,
    BLOCK: tl.constexpr, PDL: tl.constexpr, PREFETCHES: tl.constexpr,
):  # fmt: skip
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    launch_dependents(PDL)
    if PREFETCHES:  # noqa: SIM102
        if token >= num_tokens:
            blocks = tl.num_programs(1)
            extra = (tl.num_programs(0) - num_tokens) * blocks
            prefetch_share(prefetch, (tl.program_id(0) - num_tokens) * blocks + block, extra)
            return
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < middle
    wait_for_input(PDL)
    source = both + token * both_stride + at
    gated = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + middle, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * out_stride + at, silu_product(gated, up), mask=inside)
