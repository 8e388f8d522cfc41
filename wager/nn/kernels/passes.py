"""A network's layers as a chain of kernels: nine launches a layer, no host value read on the way.

Everything that differs between passes lies in device tables (`tables.py`), so a pass of a given size can be
captured once and replayed. Weights stay where they are: the plain-torch layers beside this use the same
tensors. Products are the library's or our own (`ways.py`), by number of tokens. Used by `target/graphs.py`
and `draft/block_device.py`; knows no rows and no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from wager.kvcache.pool import KVPool
from wager.nn.kernels.attention import AttentionPlan, attend
from wager.nn.kernels.device import INTERPRETER, PLAIN, Launch, Machine
from wager.nn.kernels.gate import gate
from wager.nn.kernels.matmul import MAX_TOKENS, ProductConfig, gated_product, product, split_product
from wager.nn.kernels.narrow_layers import NarrowLayer, NarrowLinear
from wager.nn.kernels.narrow_matrix import NarrowMatrix
from wager.nn.kernels.norm import Norm, Normed, add_norm
from wager.nn.kernels.qkv import Places, Turn, write_context, write_qkv
from wager.nn.kernels.tables import AttentionTables
from wager.nn.kernels.ways import LIBRARY, Role, Ways, choose_ways
from wager.nn.layers.attention import HeadShape
from wager.nn.layers.decoder_layer import LayerWeights, Linear


class Matrix:
    """A weight [out, in] and its bias, and the products with it."""

    def __init__(self, linear: Linear, ways: Ways = LIBRARY, launch: Launch = PLAIN) -> None:
        self.weight, self.bias = linear
        self._ways, self._launch = ways, launch

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The whole product, into `out` [tokens, out] where it is given."""
        config = self._config(x)
        if config is not None:
            return product(x, self.weight, self.bias, config, None, self._launch, out)
        if out is None:
            return F.linear(x, self.weight, self.bias)
        if self.bias is None:
            return torch.mm(x, self.weight.t(), out=out)
        return torch.addmm(self.bias, x, self.weight.t(), out=out)

    def summed(self, x: Tensor) -> Tensor:
        """The product as `add_norm` and `write_qkv` take it: whole, or the parts of a split one."""
        config = self._config(x)
        if config is None or config.splits == 1 or self.bias is not None:
            return self(x)
        return split_product(x, self.weight, config, self._launch)

    def gated(self, x: Tensor) -> Tensor:
        """SiLU of the product's first half times its second."""
        config = self._config(x)
        if config is None or self.bias is not None:
            return gate(_dense(F.linear(x, self.weight, self.bias)), None, self._launch)
        return gated_product(x, self.weight, config, self._launch)

    def _config(self, x: Tensor) -> ProductConfig | None:
        return self._ways.config(x.shape[0]) if x.shape[0] <= MAX_TOKENS else None


AnyMatrix: TypeAlias = Matrix | NarrowMatrix
Layers: TypeAlias = Sequence[LayerWeights | NarrowLayer]


def matrix(linear: Linear | NarrowLinear, role: Role, machine: Machine) -> AnyMatrix:
    """The weight in its role, its products taken the way that suits the machine."""
    if isinstance(linear, NarrowLinear):
        return NarrowMatrix(linear, machine.launch)
    return Matrix(linear, choose_ways(linear, role, machine), machine.launch)


class KernelLayer(NamedTuple):
    """One layer, ready to launch."""

    input_norm: Norm
    qkv: AnyMatrix
    turn: Turn
    out: AnyMatrix
    post_norm: Norm
    gate_up: AnyMatrix
    down: AnyMatrix
    window: int | None


class Frame(NamedTuple):
    """What the layers of a network share."""

    heads: HeadShape
    eps: float
    windows: Sequence[int | None]
    table: Tensor
    """The rotation by position (`qkv.rotation_table`)."""


class PassViews(NamedTuple):
    """The device tables of one pass, cut to its size, and how its attention is planned."""

    places: Places
    attention: AttentionTables
    plan: AttentionPlan


class KernelStack:
    """All layers of a network and its final norm."""

    def __init__(self, layers: Layers, norm: Tensor, frame: Frame, machine: Machine = INTERPRETER) -> None:
        self.frame, self._machine, self._launch = frame, machine, machine.launch
        self._norm = Norm(norm, frame.eps)
        self.layers = [
            self._layer(weights, window) for weights, window in zip(layers, frame.windows, strict=True)
        ]

    def _layer(self, weights: LayerWeights | NarrowLayer, window: int | None) -> KernelLayer:
        frame, machine = self.frame, self._machine
        return KernelLayer(
            Norm(weights.input_norm, frame.eps),
            matrix(weights.qkv, Role.SUMMED, machine),
            Turn(
                frame.heads,
                None if weights.qk_norm is None else weights.qk_norm.contiguous(),
                frame.eps,
                frame.table,
            ),
            matrix(weights.out, Role.SUMMED, machine),
            Norm(weights.post_norm, frame.eps),
            matrix(weights.gate_up, Role.GATED, machine),
            matrix(weights.down, Role.SUMMED, machine),
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
        """Embeddings [tokens, hidden] -> states after the final norm; K/V go to the pool.

        What the layers in `taps` hand on lands in `features` [tokens, taps * hidden], in their order.
        `before` is called with the number of every layer before it is launched.
        """
        launch, hidden = self._launch, x.shape[1]
        state = add_norm(x, None, self.layers[0].input_norm, None, launch)
        for index, layer in enumerate(self.layers):
            if before is not None:
                before(index)
            store = pool.store[index]
            queries = write_qkv(layer.qkv.summed(state.normed), layer.turn, views.places, store, None, launch)
            attended = attend(queries, store, views.attention, views.plan, layer.window, None, launch)
            state = add_norm(layer.out.summed(attended), state.residual, layer.post_norm, None, launch)
            middle = layer.gate_up.gated(state.normed)
            last = index + 1 == len(self.layers)
            norm = self._norm if last else self.layers[index + 1].input_norm
            out = None
            if index in taps and features is not None:
                at = list(taps).index(index) * hidden
                out = Normed(features[:, at : at + hidden], state.normed.new_empty(state.normed.shape))
            state = add_norm(layer.down.summed(middle), state.residual, norm, out, launch)
        return state.normed


class ContextEntry(NamedTuple):
    """How features become a block drafter's context: a product, a norm, and K/V of all layers at once."""

    fc: AnyMatrix
    norm: Norm
    context: AnyMatrix
    turn: Turn
    """Key norms [layers * kv_heads, head_dim]."""
    launch: Launch = PLAIN

    def run(self, features: Tensor, places: Places, pool: KVPool) -> None:
        """Features [tokens, size] at their places; a negative slot is left out."""
        shape = (len(features), len(self.norm.weight))
        out = Normed(features.new_empty(shape), features.new_empty(shape))
        state = add_norm(self.fc.summed(features), None, self.norm, out, self.launch)
        write_context(self.context.summed(state.normed), self.turn, places, pool.store, self.launch)


def _dense(x: Tensor) -> Tensor:
    return x if x.is_contiguous() else x.contiguous()
