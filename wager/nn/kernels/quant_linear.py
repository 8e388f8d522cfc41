"""A quantised weight in a pass: the interface of `passes.KernelLinear` with the products of
`quant_matmul.py`.

Few tokens use our own product, with a configuration by the number of tokens and rows. Many tokens, as in
prompts, use panels that are dequantised for the library. This module knows no layers; `passes.kernel_linear`
creates it.
"""

from __future__ import annotations

from torch import Tensor

from wager.nn.kernels.device import PLAIN_LAUNCH, Launch
from wager.nn.kernels.gate import gate
from wager.nn.kernels.quant_layers import QuantLinear
from wager.nn.kernels.quant_matmul import (
    MAX_TOKENS,
    QuantConfig,
    default_quant_config,
    quant_gated_product,
    quant_product,
    quant_split_product,
)


class QuantKernelLinear:
    """A quantised weight [out, in] and its bias, with its products."""

    def __init__(self, linear: QuantLinear, launch: Launch = PLAIN_LAUNCH) -> None:
        self.weight, self.bias = linear
        self._launch = launch

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Returns the whole product, in `out` [tokens, out] if it is given; it is never split."""
        config = self._config(x)._replace(splits=1)
        return quant_product(x, self.weight, self.bias, config, None, self._launch, out)

    def partial_sums(self, x: Tensor) -> Tensor:
        """Returns the product for `add_norm` and `write_qkv`: whole, or the parts of a split one."""
        config = self._config(x)
        if x.shape[0] > MAX_TOKENS or config.splits == 1 or self.bias is not None:
            return self(x)
        return quant_split_product(x, self.weight, config, self._launch)

    def gated(self, x: Tensor) -> Tensor:
        """Returns SiLU of the product's first half times its second half."""
        if self.bias is not None or x.shape[0] > MAX_TOKENS:
            return gate(self(x), None, self._launch)
        return quant_gated_product(x, self.weight, None, self._launch)

    def _config(self, x: Tensor) -> QuantConfig:
        return default_quant_config(x.shape[0], self.weight.num_out)
