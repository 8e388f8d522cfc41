"""A network's layers with quantised weights, created one layer at a time.

Only the weight that is being rounded is held in full width. Norms, biases and the embedding are not
quantised. The head has at least 8 bits, because its errors directly change the scores. This is plain torch;
the models use it to read weights, and `quant_linear.py` multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wager.errors import ConfigError
from wager.nn.kernels.quant_weights import DEFAULT_GROUP, QuantWeight, quantise
from wager.nn.layers.decoder_layer import LayerWeights, Linear

HEAD_BITS = 8
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class QuantLinear(NamedTuple):
    """A quantised weight [out, in] and its bias."""

    weight: QuantWeight
    bias: Tensor | None = None


class QuantLayer(NamedTuple):
    """The fused weights of a layer, like `LayerWeights`."""

    input_norm: Tensor
    qkv: QuantLinear
    qk_norm: Tensor | None
    out: QuantLinear
    post_norm: Tensor
    gate_up: QuantLinear
    down: QuantLinear

    @property
    def num_bytes(self) -> int:
        return sum([linear.weight.nbytes for linear in (self.qkv, self.out, self.gate_up, self.down)])


class Quantisation(NamedTuple):
    """How a network's weights are rounded."""

    bits: int

    def weight(self, weight: Tensor) -> QuantWeight:
        return quantise(weight, self.bits)

    def linear(self, linear: Linear) -> QuantLinear:
        return QuantLinear(self.weight(linear.weight), linear.bias)

    def layer(self, layer: LayerWeights) -> QuantLayer:
        return QuantLayer(
            layer.input_norm,
            self.linear(layer.qkv),
            layer.qk_norm,
            self.linear(layer.out),
            layer.post_norm,
            self.linear(layer.gate_up),
            self.linear(layer.down),
        )

    def head(self, weight: Tensor) -> QuantWeight:
        return quantise(weight, max(self.bits, HEAD_BITS))

    def __str__(self) -> str:
        head = "" if self.bits >= HEAD_BITS else f", head int{HEAD_BITS}"
        return f"int{self.bits} in groups of {DEFAULT_GROUP[self.bits]}{head}"


def check_dtype(dtype: torch.dtype) -> None:
    """Raises ConfigError if quantised weights do not support this dtype."""
    if dtype not in DTYPES:
        names = ", ".join(str(one).removeprefix("torch.") for one in DTYPES)
        raise ConfigError("dtype", str(dtype).removeprefix("torch."), f"{names} with quantised weights")


def linear_of(weight: Tensor | QuantWeight) -> Linear | QuantLinear:
    """Returns a weight without a bias."""
    return QuantLinear(weight) if isinstance(weight, QuantWeight) else Linear(weight)


def stacked(parts: Sequence[QuantLinear], first_row: int) -> QuantLinear:
    """Returns rows `first_row` onwards of several weights of one kind, concatenated."""
    one = parts[0].weight
    weight = one._replace(
        packed=torch.cat([part.weight.packed[:, first_row:] for part in parts], dim=1),
        scales=torch.cat([part.weight.scales[:, first_row:] for part in parts], dim=1),
    )
    biases = [part.bias[first_row:] for part in parts if part.bias is not None]
    return QuantLinear(weight, torch.cat(biases) if biases else None)
