"""The decoder-only network that all supported targets share, driven by a frozen `DecoderSpec`.

One pass packs prompt chunks, plain rows and trees together; K/V goes to the pool's slots, hidden features of
chosen layers come out of the same pass. It does not know who asks, which tokens stand, or how to sample. The
files beside it turn each model type's config into a spec; `target/` calls `forward` and `logits`, under
inference mode.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from wager.errors import ModelError
from wager.kvcache.pool import KVPool, PoolSpec
from wager.nn import kernels
from wager.nn.batch import PassBatch
from wager.nn.kernels.narrow_layers import Narrowing, NarrowLayer, NarrowLinear
from wager.nn.kernels.narrow_weights import NarrowWeight
from wager.nn.layers.attention import HeadShape, attend, plan_rows
from wager.nn.layers.decoder_layer import DecoderLayer, LayerWeights
from wager.nn.layers.linear import Layout, Projection, choose_layout
from wager.nn.layers.norm import RmsNorm
from wager.nn.native.networks import native_decoder
from wager.nn.native.passes import NativeDecoder
from wager.nn.native.switch import Switch, Wish
from wager.nn.native.top import NativeTop
from wager.nn.rope import RopeSpec, Rotary


@dataclass(frozen=True)
class DecoderSpec:
    """The shape of a decoder. `windows[i]` is layer i's sliding window, None for full attention."""

    model_type: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    eps: float
    rope: RopeSpec
    windows: tuple[int | None, ...]
    max_position: int
    qk_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        """Raises ModelError when the numbers contradict each other."""
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"config num_key_value_heads = {self.num_kv_heads} does not divide "
                f"num_attention_heads = {self.num_heads}"
            )
        if self.head_dim % 2:
            raise ModelError(f"config head_dim = {self.head_dim} is odd: rotary embedding needs pairs")
        if len(self.windows) != self.num_layers:
            raise ModelError(f"{len(self.windows)} attention windows for {self.num_layers} layers")

    @property
    def heads(self) -> HeadShape:
        return HeadShape(self.num_heads, self.num_kv_heads, self.head_dim)

    @property
    def num_weights(self) -> int:
        """Those that a token is multiplied with: of all layers, and of the head."""
        heads = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        layer = self.hidden_size * (heads + 3 * self.intermediate_size)
        return self.num_layers * layer + self.vocab_size * self.hidden_size


class DecoderWeights(NamedTuple):
    """All tensors of a decoder; `head` is the embedding itself where they are tied."""

    embedding: Tensor
    layers: Sequence[LayerWeights]
    norm: Tensor
    head: Tensor

    @property
    def num_bytes(self) -> int:
        return self.head.nbytes + sum([matrix.nbytes for layer in self.layers for matrix in layer.matrices])


class NarrowDecoder(NamedTuple):
    """The same in few bits; the embedding is as wide as ever."""

    embedding: Tensor
    layers: Sequence[NarrowLayer]
    norm: Tensor
    head: NarrowWeight

    @property
    def num_bytes(self) -> int:
        return self.head.nbytes + sum([layer.num_bytes for layer in self.layers])


class PassOutput(NamedTuple):
    """`hidden` [tokens, hidden] after the final norm; `features` [tokens, layers asked for * hidden], or
    None.
    """

    hidden: Tensor
    features: Tensor | None


class Decoder:
    """A loaded decoder: `embed`, `forward`, `logits`."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights | NarrowDecoder,
        layout: str = "auto",
        wish: Wish | None = None,
    ) -> None:
        """Lay the weights out for this machine; `layout` is "auto" (probe) or a layout's name.

        `wish` asks for native passes and narrower weights; without one passes are plain torch's. Narrow
        weights have no plain passes: `forward` is the kernels' alone then.
        """
        self.spec = spec
        self.dtype, self.device = weights.embedding.dtype, weights.embedding.device
        self.embedding = weights.embedding
        self.rotary = Rotary(spec.rope, self.dtype, self.device)
        self.switch = Switch(wish or Wish(), layout, weights.embedding, weights.num_bytes)
        self.layout: Layout | str = ""
        self.layers: list[DecoderLayer] = []
        self.head: Callable[[Tensor], Tensor]
        self._native: NativeDecoder | None = None
        self.top: NativeTop | None = None
        """Picks the best of a row of scores, where passes are native."""
        self._waiting: DecoderWeights | None = None
        self.weights = weights if kernels.has_kernels(self.device) else None
        """Where kernels may run the layers, all tensors as they were read; the layers here share them."""
        if isinstance(weights, NarrowDecoder):
            self._keep_narrow(weights)
            return
        self._waiting = weights
        if not self.quicken(wait=True):
            self._lay_out(weights, layout)

    def _lay_out(self, weights: DecoderWeights, request: str) -> None:
        """The plain-torch layers."""
        spec, layers = self.spec, [self.switch.plain_layer(layer) for layer in weights.layers]
        head = self.switch.plain(weights.head)
        matrices = [matrix for layer in layers for matrix in layer.matrices]
        self.layout = layout = choose_layout([*matrices, head], request)
        self.layers = [DecoderLayer(layer, spec.heads, spec.eps, layout) for layer in layers]
        self.norm = RmsNorm(weights.norm, spec.eps)
        self.head = Projection(head, None, layout.of((head.shape[0], head.shape[1])))

    def _keep_narrow(self, weights: NarrowDecoder) -> None:
        from wager.nn.kernels.narrow_matrix import NarrowMatrix

        assert self.weights is not None, "narrow weights without kernels"
        self.layout = str(Narrowing(weights.layers[0].qkv.weight.bits))
        self.head = NarrowMatrix(NarrowLinear(weights.head))

    @property
    def streamed_bytes(self) -> int | None:
        """Bytes of weights that a pass by kernels reads; None where there are none."""
        return None if self.weights is None else self.weights.num_bytes

    def quicken(self, *, wait: bool = False) -> bool:
        """Change to native passes where they have become ready; True when that happened just now.

        wait: until the weights are packed. Precondition: no text is under way, since the two ways round
        differently.
        """
        weights = self._waiting
        if weights is None:
            return False
        spec, rotary, wish = self.spec, self.rotary, self.switch.wish
        made = self.switch.pack(lambda found: native_decoder(found, spec, weights, rotary, wish), wait=wait)
        if made is None:
            self._waiting = weights if self.switch.may_come else None
            return False
        self._native, self.layout, self.top = made
        self._waiting, self.layers, self.head = None, [], self._native.heads.exact
        return True

    def pool_spec(self, num_pages: int, page_size: int) -> PoolSpec:
        """The pool this decoder writes to."""
        spec = self.spec
        return PoolSpec(
            spec.num_layers, num_pages, page_size, spec.num_kv_heads, spec.head_dim, self.dtype, self.device
        )

    def embed(self, token_ids: Tensor) -> Tensor:
        """[tokens] -> [tokens, hidden]."""
        return F.embedding(token_ids, self.embedding)

    def forward(self, batch: PassBatch, pool: KVPool, feature_layers: Sequence[int] = ()) -> PassOutput:
        """Run all layers over the batch and write its K/V to the pool.

        `feature_layers` are 0-based; a feature is what that layer hands to the next, so for the last layer it
        is the state before the final norm. Precondition: every row's pages cover its context and its own
        tokens.
        """
        if self._native is not None:
            return PassOutput(*self._native.forward(batch, pool, feature_layers))
        assert self.layers, "narrow weights have no plain passes"
        rotation = self.rotary.at(batch.positions)
        views = plan_rows(batch, pool, self.spec.heads, self.spec.windows)
        place = pool.place(batch.slots)
        num_heads, num_kv_heads = self.spec.num_heads, self.spec.num_kv_heads
        x = self.embed(batch.token_ids)
        taken: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            fused = layer.project(x, rotation)
            pool.write_packed(index, place, fused[:, num_heads:].unflatten(1, (2, num_kv_heads)))
            attended = attend(fused[:, :num_heads], pool, index, views[index])
            x = layer.finish(x, attended)
            if index in feature_layers:
                taken[index] = x
        features = torch.cat([taken[index] for index in feature_layers], dim=-1) if feature_layers else None
        return PassOutput(self.norm(x), features)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every word for hidden states the caller has selected: [rows, hidden] -> [rows, vocab]."""
        return self.head(hidden)

    def rough_logits(self, hidden: Tensor) -> Tensor:
        """Scores that are good enough for guesses; they may come from a narrower head."""
        return self.head(hidden) if self._native is None else self._native.heads.rough(hidden)
