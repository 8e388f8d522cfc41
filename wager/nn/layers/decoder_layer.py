"""One decoder layer at inference, in two halves: `project` before attention and `finish` after it.

Weights are fused (qkv in one product, gate and up in one) and residuals are added inside the products,
because the time of one token depends on the number of operations. The caller computes attention: a decoder
over its cache, a block drafter over its context and its block. This module knows no file format and no model
type.
"""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from wager.nn.layers.attention import HeadShape
from wager.nn.layers.linear import Layout, Projection
from wager.nn.layers.norm import RmsNorm
from wager.nn.rope import Rotation, rotate


class Linear(NamedTuple):
    """A weight [out, in] and its bias, before a layout is chosen."""

    weight: Tensor
    bias: Tensor | None = None

    def in_layout(self, layout: Layout) -> Projection:
        shape = (self.weight.shape[0], self.weight.shape[1])
        return Projection(self.weight, self.bias, layout.of(shape))


class LayerWeights(NamedTuple):
    """The fused weights of a layer; `qk_norm` is [heads + kv_heads, head_dim], or None without such
    a norm.
    """

    input_norm: Tensor
    qkv: Linear
    qk_norm: Tensor | None
    out: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        return (self.qkv.weight, self.out.weight, self.gate_up.weight, self.down.weight)


class DecoderLayer:
    """Norm, qkv and rotary before the caller's attention; output projection, norm and gated MLP after it."""

    def __init__(self, weights: LayerWeights, heads: HeadShape, eps: float, layout: Layout) -> None:
        self.heads = heads
        self._num_rotated = heads.num_heads + heads.num_kv_heads
        self._num_all = heads.num_heads + 2 * heads.num_kv_heads
        self._middle = weights.gate_up.weight.shape[0] // 2
        self.input_norm = RmsNorm(weights.input_norm, eps)
        self.post_norm = RmsNorm(weights.post_norm, eps)
        self.qk_norm = None if weights.qk_norm is None else RmsNorm(weights.qk_norm, eps)
        self.qkv = weights.qkv.in_layout(layout)
        self.out = weights.out.in_layout(layout)
        self.gate_up = weights.gate_up.in_layout(layout)
        self.down = weights.down.in_layout(layout)

    def project(self, x: Tensor, rotation: Rotation) -> Tensor:
        """Returns rotated queries, rotated keys and values of [tokens, hidden]: [tokens, heads + 2 *
        kv_heads, head_dim].
        """
        fused = self.qkv(self.input_norm(x)).view(x.shape[0], self._num_all, self.heads.head_dim)
        rotated = fused[:, : self._num_rotated]
        source = rotated if self.qk_norm is None else self.qk_norm(rotated)
        rotate(source, rotation, out=rotated)
        return fused

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Computes the rest of the layer from the result of attention."""
        x = self.out.add_to(x, attended)
        both = self.gate_up(self.post_norm(x))
        middle = F.silu(both[:, : self._middle]).mul_(both[:, self._middle :])
        return self.down.add_to(x, middle)
