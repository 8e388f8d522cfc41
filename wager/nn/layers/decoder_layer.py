"""One decoder layer at inference, in two halves around attention: `project` before it, `finish` after it.

Weights are fused (qkv in one product, gate and up in one) and residuals are added inside the products,
because at one token the number of operations is the price. Attention itself belongs to the caller: a decoder
reads its cache, a block drafter its context and its block. Knows no file format and no model type.
"""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from wager.nn.layers.attention import HeadShape
from wager.nn.layers.linear import Layout, Projection
from wager.nn.layers.norm import RmsNorm
from wager.nn.rope import Rotation, rotate


class Linear(NamedTuple):
    """A weight [out, in] and its bias, not yet laid out."""

    weight: Tensor
    bias: Tensor | None = None

    def laid_out(self, layout: Layout) -> Projection:
        shape = (self.weight.shape[0], self.weight.shape[1])
        return Projection(self.weight, self.bias, layout.of(shape))


class LayerWeights(NamedTuple):
    """The fused weights of a layer; `qk_norm` is [heads + kv_heads, head_dim], or None where there is no such
    norm.
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
    """Norm, qkv, rotary | attention by the caller | output, norm, gated MLP."""

    def __init__(self, weights: LayerWeights, heads: HeadShape, eps: float, layout: Layout) -> None:
        self.heads = heads
        self._num_rotated = heads.num_heads + heads.num_kv_heads
        self._num_all = heads.num_heads + 2 * heads.num_kv_heads
        self._middle = weights.gate_up.weight.shape[0] // 2
        self.input_norm = RmsNorm(weights.input_norm, eps)
        self.post_norm = RmsNorm(weights.post_norm, eps)
        self.qk_norm = None if weights.qk_norm is None else RmsNorm(weights.qk_norm, eps)
        self.qkv = weights.qkv.laid_out(layout)
        self.out = weights.out.laid_out(layout)
        self.gate_up = weights.gate_up.laid_out(layout)
        self.down = weights.down.laid_out(layout)

    def project(self, x: Tensor, rotation: Rotation) -> Tensor:
        """[tokens, hidden] -> [tokens, heads + 2 * kv_heads, head_dim]: queries, keys, values, the first two
        rotated.
        """
        fused = self.qkv(self.input_norm(x)).view(x.shape[0], self._num_all, self.heads.head_dim)
        rotated = fused[:, : self._num_rotated]
        source = rotated if self.qk_norm is None else self.qk_norm(rotated)
        rotate(source, rotation, out=rotated)
        return fused

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The rest of the layer, given what attention returned."""
        x = self.out.add_to(x, attended)
        both = self.gate_up(self.post_norm(x))
        middle = F.silu(both[:, : self._middle]).mul_(both[:, self._middle :])
        return self.down.add_to(x, middle)
