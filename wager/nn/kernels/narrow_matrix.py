"""A weight in few bits as a pass uses it: the face of `passes.Matrix`, with the products of `narrow.py`.

Few tokens go through our own product, which configuration by their number and the weight's rows; many, as in
prompts, through panels that are widened for the library. Knows no layers; made by `passes.matrix`.
"""

from __future__ import annotations

from torch import Tensor

from wager.nn.kernels.device import PLAIN, Launch
from wager.nn.kernels.gate import gate
from wager.nn.kernels.narrow import (
    MAX_TOKENS,
    NarrowConfig,
    default_narrow_config,
    narrow_gated_product,
    narrow_product,
    narrow_split_product,
)
from wager.nn.kernels.narrow_layers import NarrowLinear


class NarrowMatrix:
    """A narrow weight [out, in] and its bias, and the products with it."""

    def __init__(self, linear: NarrowLinear, launch: Launch = PLAIN) -> None:
        self.weight, self.bias = linear
        self._launch = launch

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The whole product, into `out` [tokens, out] where it is given; not split, since nobody sums."""
        config = self._config(x)._replace(splits=1)
        return narrow_product(x, self.weight, self.bias, config, None, self._launch, out)

    def summed(self, x: Tensor) -> Tensor:
        """The product as `add_norm` and `write_qkv` take it: whole, or the parts of a split one."""
        config = self._config(x)
        if x.shape[0] > MAX_TOKENS or config.splits == 1 or self.bias is not None:
            return self(x)
        return narrow_split_product(x, self.weight, config, self._launch)

    def gated(self, x: Tensor) -> Tensor:
        """SiLU of the product's first half times its second."""
        if self.bias is not None or x.shape[0] > MAX_TOKENS:
            return gate(self(x), None, self._launch)
        return narrow_gated_product(x, self.weight, None, self._launch)

    def _config(self, x: Tensor) -> NarrowConfig:
        return default_narrow_config(x.shape[0], self.weight.num_out)
