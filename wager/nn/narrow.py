"""A decoder whose matrices keep the quantised form of their file, for native passes.

A matrix that its file does not quantise stays a plain tensor; so do norms and biases. Native passes multiply
the narrow form, and only the embeddings of the tokens of a pass are dequantised. Plain torch gets the same
weights dequantised by `widened`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from wager.nn.gguf_blocks import GroupedWeight
from wager.nn.layers.decoder_layer import LayerWeights, Linear

__all__ = ["AnyWeight", "NarrowDecoder", "NarrowLayer", "NarrowLinear", "dense"]

AnyWeight = Tensor | GroupedWeight


def dense(weight: AnyWeight) -> Tensor:
    """Returns a weight as a plain tensor."""
    return weight.weight if isinstance(weight, GroupedWeight) else weight


class NarrowLinear(NamedTuple):
    """A weight [out, in], quantised or not, and its bias."""

    weight: AnyWeight
    bias: Tensor | None = None

    @property
    def widened(self) -> Linear:
        return Linear(dense(self.weight), self.bias)


class NarrowLayer(NamedTuple):
    """The fused weights of a layer, like `LayerWeights`."""

    input_norm: Tensor
    qkv: NarrowLinear
    qk_norm: Tensor | None
    out: NarrowLinear
    post_norm: Tensor
    gate_up: NarrowLinear
    down: NarrowLinear

    @property
    def widened(self) -> LayerWeights:
        return LayerWeights(
            self.input_norm,
            self.qkv.widened,
            self.qk_norm,
            self.out.widened,
            self.post_norm,
            self.gate_up.widened,
            self.down.widened,
        )


class NarrowDecoder(NamedTuple):
    """All tensors of a decoder; a tied head is the embedding."""

    embedding: AnyWeight
    layers: Sequence[NarrowLayer]
    norm: Tensor
    head: AnyWeight

    @property
    def num_bytes(self) -> int:
        """The bytes of the same weights in float32, by which networks are compared."""
        return sum(4 * matrix.shape[0] * matrix.shape[1] for matrix in self._matrices)

    @property
    def is_quantised(self) -> bool:
        """Whether any matrix is."""
        return any(isinstance(matrix, GroupedWeight) for matrix in self._matrices)

    @property
    def _matrices(self) -> list[AnyWeight]:
        matrices = [self.head]
        for layer in self.layers:
            matrices += [one.weight for one in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        return matrices
