"""A network's layers as a chain of kernels: nine launches per layer, without reading a value from the host.

All values that differ between passes are in device tables (`tables.py`), so a pass of a given size can be
captured once and replayed. The plain-torch layers use the same weight tensors. Products are the library's or
our own (`product_plan.py`), by the number of tokens. `target/` and `draft/` use this; it knows no rows and no
requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from wager.kvcache.pool import KVPool
from wager.nn.kernels.attention import AttentionPlan, attend
from wager.nn.kernels.device import INTERPRETER_INFO, PLAIN_LAUNCH, DeviceInfo, Launch
from wager.nn.kernels.gate import gate
from wager.nn.kernels.matmul import MAX_TOKENS, ProductConfig, gated_product, product, split_product
from wager.nn.kernels.norm import Norm, Normed, add_norm
from wager.nn.kernels.product_plan import CUBLAS_ONLY, ProductPlan, ProductRole, plan_products
from wager.nn.kernels.qkv import HeadTransform, TokenSlots, write_context, write_qkv
from wager.nn.kernels.quant_layers import QuantLayer, QuantLinear
from wager.nn.kernels.quant_linear import QuantKernelLinear
from wager.nn.kernels.tables import AttentionTables
from wager.nn.layers.attention import HeadShape
from wager.nn.layers.decoder_layer import LayerWeights, Linear


class KernelLinear:
    """A weight [out, in] and its bias, with its products."""

    def __init__(
        self, linear: Linear, ways: ProductPlan = CUBLAS_ONLY, launch: Launch = PLAIN_LAUNCH
    ) -> None:
        self.weight, self.bias = linear
        self._ways, self._launch = ways, launch

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Returns the whole product, in `out` [tokens, out] if it is given."""
        config = self._config(x)
        if config is not None:
            return product(x, self.weight, self.bias, config, None, self._launch, out)
        if out is None:
            return F.linear(x, self.weight, self.bias)
        if self.bias is None:
            return torch.mm(x, self.weight.t(), out=out)
        return torch.addmm(self.bias, x, self.weight.t(), out=out)

    def partial_sums(self, x: Tensor) -> Tensor:
        """Returns the product for `add_norm` and `write_qkv`: whole, or the parts of a split one."""
        config = self._config(x)
        if config is None or config.splits == 1 or self.bias is not None:
            return self(x)
        return split_product(x, self.weight, config, self._launch)

    def gated(self, x: Tensor) -> Tensor:
        """Returns SiLU of the product's first half times its second half."""
        config = self._config(x)
        if config is None or self.bias is not None:
            return gate(_dense(F.linear(x, self.weight, self.bias)), None, self._launch)
        return gated_product(x, self.weight, config, self._launch)

    def _config(self, x: Tensor) -> ProductConfig | None:
        return self._ways.config(x.shape[0]) if x.shape[0] <= MAX_TOKENS else None


AnyKernelLinear: TypeAlias = KernelLinear | QuantKernelLinear
Layers: TypeAlias = Sequence[LayerWeights | QuantLayer]


def kernel_linear(
    linear: Linear | QuantLinear, role: ProductRole, device_info: DeviceInfo
) -> AnyKernelLinear:
    """Returns the weight in its role, with the configurations for this device."""
    if isinstance(linear, QuantLinear):
        return QuantKernelLinear(linear, device_info.launch)
    return KernelLinear(linear, plan_products(linear, role, device_info), device_info.launch)


class KernelLayer(NamedTuple):
    """One layer, ready to launch."""

    input_norm: Norm
    qkv: AnyKernelLinear
    turn: HeadTransform
    out: AnyKernelLinear
    post_norm: Norm
    gate_up: AnyKernelLinear
    down: AnyKernelLinear
    window: int | None


class StackSpec(NamedTuple):
    """The values that all layers of a network share."""

    heads: HeadShape
    eps: float
    windows: Sequence[int | None]
    table: Tensor
    """The rotation by position (`qkv.rotation_table`)."""


class PassViews(NamedTuple):
    """The device tables of one pass, cut to its size, and the plan of its attention."""

    places: TokenSlots
    attention: AttentionTables
    plan: AttentionPlan


class KernelStack:
    """All layers of a network and its final norm."""

    def __init__(
        self, layers: Layers, norm: Tensor, frame: StackSpec, device_info: DeviceInfo = INTERPRETER_INFO
    ) -> None:
        self.frame, self._machine, self._launch = frame, device_info, device_info.launch
        self._norm = Norm(norm, frame.eps)
        self.layers = [
            self._layer(weights, window) for weights, window in zip(layers, frame.windows, strict=True)
        ]

    def _layer(self, weights: LayerWeights | QuantLayer, window: int | None) -> KernelLayer:
        frame, device_info = self.frame, self._machine
        return KernelLayer(
            Norm(weights.input_norm, frame.eps),
            kernel_linear(weights.qkv, ProductRole.SUMMED, device_info),
            HeadTransform(
                frame.heads,
                None if weights.qk_norm is None else weights.qk_norm.contiguous(),
                frame.eps,
                frame.table,
            ),
            kernel_linear(weights.out, ProductRole.SUMMED, device_info),
            Norm(weights.post_norm, frame.eps),
            kernel_linear(weights.gate_up, ProductRole.GATED, device_info),
            kernel_linear(weights.down, ProductRole.SUMMED, device_info),
            window,
        )

    def run(
        self,
        x: Tensor,
        views: PassViews,
        pool: KVPool,
        taps: Sequence[int] = (),
        features: Tensor | None = None,
        before: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Maps embeddings [tokens, hidden] to states after the final norm; K/V are written to the pool.

        The outputs of the layers in `taps` are written to `features` [tokens, taps * hidden], in their order.
        `before` is called with the number of every layer before its launch.
        """
        launch, hidden = self._launch, x.shape[1]
        state = add_norm(x, None, self.layers[0].input_norm, None, launch)
        for index, layer in enumerate(self.layers):
            if before is not None:
                before(index)
            store = pool.store[index]
            queries = write_qkv(
                layer.qkv.partial_sums(state.normed), layer.turn, views.places, store, None, launch
            )
            attended = attend(queries, store, views.attention, views.plan, layer.window, None, launch)
            state = add_norm(layer.out.partial_sums(attended), state.residual, layer.post_norm, None, launch)
            middle = layer.gate_up.gated(state.normed)
            last = index + 1 == len(self.layers)
            norm = self._norm if last else self.layers[index + 1].input_norm
            out = None
            if index in taps and features is not None:
                at = list(taps).index(index) * hidden
                out = Normed(features[:, at : at + hidden], state.normed.new_empty(state.normed.shape))
            state = add_norm(layer.down.partial_sums(middle), state.residual, norm, out, launch)
        return state.normed


class ContextIngest(NamedTuple):
    """Converts features to a block drafter's context: a product, a norm, and K/V of all layers at once."""

    fc: AnyKernelLinear
    norm: Norm
    context: AnyKernelLinear
    turn: HeadTransform
    """Key norms [layers * kv_heads, head_dim] and the rotation."""
    launch: Launch = PLAIN_LAUNCH

    def run(self, features: Tensor, places: TokenSlots, pool: KVPool) -> None:
        """Writes features [tokens, size] at their places; tokens with a negative slot are skipped."""
        shape = (len(features), len(self.norm.weight))
        out = Normed(features.new_empty(shape), features.new_empty(shape))
        state = add_norm(self.fc.partial_sums(features), None, self.norm, out, self.launch)
        write_context(self.context.partial_sums(state.normed), self.turn, places, pool.store, self.launch)


def _dense(x: Tensor) -> Tensor:
    return x if x.is_contiguous() else x.contiguous()
