"""A network's weights in few bits: what stands for its layers, and how they are made, one layer at a time.

Only so much is ever held in full width as is being rounded. Norms and biases stay as they are, and so does
the embedding, which is looked up, not multiplied by. The head is never under 8 bits: its errors are the
scores' own, and no later layer evens them out.

Plain torch; the models read through it, `narrow_matrix.py` multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wager.errors import ConfigError
from wager.nn.kernels.narrow_weights import DEFAULT_GROUP, NarrowWeight, quantise
from wager.nn.layers.decoder_layer import LayerWeights, Linear

HEAD_BITS = 8
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class NarrowLinear(NamedTuple):
    """A narrow weight [out, in] and its bias."""

    weight: NarrowWeight
    bias: Tensor | None = None


class NarrowLayer(NamedTuple):
    """The fused weights of a layer, as `LayerWeights`."""

    input_norm: Tensor
    qkv: NarrowLinear
    qk_norm: Tensor | None
    out: NarrowLinear
    post_norm: Tensor
    gate_up: NarrowLinear
    down: NarrowLinear

    @property
    def num_bytes(self) -> int:
        return sum([linear.weight.nbytes for linear in (self.qkv, self.out, self.gate_up, self.down)])


class Narrowing(NamedTuple):
    """How a network's weights are rounded."""

    bits: int

    def weight(self, weight: Tensor) -> NarrowWeight:
        return quantise(weight, self.bits)

    def linear(self, linear: Linear) -> NarrowLinear:
        return NarrowLinear(self.weight(linear.weight), linear.bias)

    def layer(self, layer: LayerWeights) -> NarrowLayer:
        return NarrowLayer(
            layer.input_norm,
            self.linear(layer.qkv),
            layer.qk_norm,
            self.linear(layer.out),
            layer.post_norm,
            self.linear(layer.gate_up),
            self.linear(layer.down),
        )

    def head(self, weight: Tensor) -> NarrowWeight:
        return quantise(weight, max(self.bits, HEAD_BITS))

    def __str__(self) -> str:
        head = "" if self.bits >= HEAD_BITS else f", head int{HEAD_BITS}"
        return f"int{self.bits} in groups of {DEFAULT_GROUP[self.bits]}{head}"


def check_dtype(dtype: torch.dtype) -> None:
    """Raise ConfigError where narrow weights cannot meet numbers of this kind."""
    if dtype not in DTYPES:
        names = ", ".join(str(one).removeprefix("torch.") for one in DTYPES)
        raise ConfigError("dtype", str(dtype).removeprefix("torch."), f"{names} with narrow weights")


def linear_of(weight: Tensor | NarrowWeight) -> Linear | NarrowLinear:
    """A weight without a bias."""
    return NarrowLinear(weight) if isinstance(weight, NarrowWeight) else Linear(weight)


def stacked(parts: Sequence[NarrowLinear], first_row: int) -> NarrowLinear:
    """Rows `first_row` onwards of several weights of one kind, one below the other."""
    one = parts[0].weight
    weight = one._replace(
        packed=torch.cat([part.weight.packed[:, first_row:] for part in parts], dim=1),
        scales=torch.cat([part.weight.scales[:, first_row:] for part in parts], dim=1),
    )
    biases = [part.bias[first_row:] for part in parts if part.bias is not None]
    return NarrowLinear(weight, torch.cat(biases) if biases else None)
