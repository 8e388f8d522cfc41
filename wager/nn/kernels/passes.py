"""A network's layers as a chain of kernels: nine launches a layer, no host value read on the way.

Everything that differs between passes lies in device tables (`tables.py`), so a pass of a given size can be
captured once and replayed. Weights stay where they are: the plain-torch layers beside this use the same
tensors. Products are the library's or our own (`matmul.py`), by number of tokens. Used by `target/graphs.py`
and `draft/block_device.py`; knows no rows and no requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from wager.kvcache.pool import KVPool
from wager.nn.kernels.attention import AttentionPlan, attend
from wager.nn.kernels.device import PLAIN, Launch
from wager.nn.kernels.gate import gate
from wager.nn.kernels.matmul import MAX_TOKENS, ProductConfig, ProductSpace, product, split_product
from wager.nn.kernels.norm import Norm, Normed, add_norm
from wager.nn.kernels.qkv import Places, Turn, write_context, write_qkv
from wager.nn.kernels.tables import AttentionTables
from wager.nn.layers.attention import HeadShape
from wager.nn.layers.decoder_layer import LayerWeights, Linear


class Ways(NamedTuple):
    """How products of one shape are taken: (most tokens, config) in ascending order; None and beyond the
    last: the library's.
    """

    by_tokens: Sequence[tuple[int, ProductConfig | None]] = ()

    def config(self, num_tokens: int) -> ProductConfig | None:
        for most, config in self.by_tokens:
            if num_tokens <= most:
                return config
        return None


LIBRARY = Ways()


class Matrix:
    """A weight [out, in] and its bias, and the products with it."""

    def __init__(
        self, linear: Linear, ways: Ways = LIBRARY, space: ProductSpace | None = None, launch: Launch = PLAIN
    ) -> None:
        self.weight, self.bias = linear
        self._ways, self._space, self._launch = ways, space, launch

    def __call__(self, x: Tensor) -> Tensor:
        config = self._config(x)
        if config is None:
            return F.linear(x, self.weight, self.bias)
        return product(x, self.weight, self.bias, config, self._space, self._launch)

    def summed(self, x: Tensor) -> Tensor:
        """The product as `add_norm` takes it: whole, or the parts of a split one."""
        config = self._config(x)
        if config is None or config.splits == 1 or self.bias is not None:
            return self(x)
        return split_product(x, self.weight, config, self._launch)

    def _config(self, x: Tensor) -> ProductConfig | None:
        return self._ways.config(x.shape[0]) if x.shape[0] <= MAX_TOKENS else None


class KernelLayer(NamedTuple):
    """One layer, ready to launch."""

    input_norm: Norm
    qkv: Matrix
    turn: Turn
    out: Matrix
    post_norm: Norm
    gate_up: Matrix
    down: Matrix
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

    def __init__(
        self, layers: Sequence[LayerWeights], norm: Tensor, frame: Frame, launch: Launch = PLAIN
    ) -> None:
        self.frame, self._launch = frame, launch
        self._norm = Norm(norm, frame.eps)
        self.layers = [
            self._layer(weights, window) for weights, window in zip(layers, frame.windows, strict=True)
        ]

    def _layer(self, weights: LayerWeights, window: int | None) -> KernelLayer:
        frame, launch = self.frame, self._launch
        return KernelLayer(
            Norm(weights.input_norm, frame.eps),
            Matrix(weights.qkv, launch=launch),
            Turn(
                frame.heads,
                None if weights.qk_norm is None else weights.qk_norm.contiguous(),
                frame.eps,
                frame.table,
            ),
            Matrix(weights.out, launch=launch),
            Norm(weights.post_norm, frame.eps),
            Matrix(weights.gate_up, launch=launch),
            Matrix(weights.down, launch=launch),
            window,
        )

    def run(
        self,
        x: Tensor,
        views: PassViews,
        pool: KVPool,
        taps: Sequence[int] = (),
        features: Tensor | None = None,
    ) -> Tensor:
        """Embeddings [tokens, hidden] -> states after the final norm; K/V go to the pool.

        What the layers in `taps` hand on lands in `features` [tokens, taps * hidden], in their order.
        """
        launch, hidden = self._launch, x.shape[1]
        state = add_norm(x, None, self.layers[0].input_norm, None, launch)
        for index, layer in enumerate(self.layers):
            store = pool.store[index]
            queries = write_qkv(layer.qkv(state.normed), layer.turn, views.places, store, None, launch)
            attended = attend(queries, store, views.attention, views.plan, layer.window, None, launch)
            state = add_norm(layer.out.summed(attended), state.residual, layer.post_norm, None, launch)
            middle = gate(_dense(layer.gate_up(state.normed)), None, launch)
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

    fc: Matrix
    norm: Norm
    context: Matrix
    turn: Turn
    """Key norms [layers * kv_heads, head_dim]."""

    def run(self, features: Tensor, places: Places, pool: KVPool) -> None:
        """Features [tokens, size] at their places; a negative slot is left out."""
        state = add_norm(self.fc.summed(features), None, self.norm)
        write_context(self.context(state.normed), self.turn, places, pool.store)


def _dense(x: Tensor) -> Tensor:
    return x if x.is_contiguous() else x.contiguous()
