"""The decoder-only network that all supported targets share, driven by a frozen `DecoderSpec`.

One pass packs prompt chunks, plain rows and trees together; K/V goes to the pool's slots, hidden features of
chosen layers come out of the same pass. It does not know who asks, which tokens stand, or how to sample. The
files beside it turn each model type's config into a spec; `target/` calls `forward` and `logits`, under
inference mode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from wager.errors import ModelError
from wager.kvcache.pool import KVPool, PoolSpec
from wager.nn.batch import PassBatch
from wager.nn.layers.attention import HeadShape, attend, plan_rows
from wager.nn.layers.decoder_layer import DecoderLayer, LayerWeights
from wager.nn.layers.linear import Layout, Projection, choose_layout
from wager.nn.layers.norm import RmsNorm
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


class DecoderWeights(NamedTuple):
    """All tensors of a decoder; `head` is the embedding itself where they are tied."""

    embedding: Tensor
    layers: Sequence[LayerWeights]
    norm: Tensor
    head: Tensor


class PassOutput(NamedTuple):
    """`hidden` [tokens, hidden] after the final norm; `features` [tokens, layers asked for * hidden], or
    None.
    """

    hidden: Tensor
    features: Tensor | None


class Decoder:
    """A loaded decoder: `embed`, `forward`, `logits`."""

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights, layout: str = "auto") -> None:
        """Lay the weights out for this machine; `layout` is "auto" (probe) or a layout's name."""
        self.spec = spec
        self.dtype, self.device = weights.embedding.dtype, weights.embedding.device
        self.layout: Layout = _lay_out(weights, layout)
        self.embedding = weights.embedding
        self.layers = [DecoderLayer(layer, spec.heads, spec.eps, self.layout) for layer in weights.layers]
        self.norm = RmsNorm(weights.norm, spec.eps)
        shape = (weights.head.shape[0], weights.head.shape[1])
        self.head = Projection(weights.head, None, self.layout.of(shape))
        self.rotary = Rotary(spec.rope, self.dtype, self.device)

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


def _lay_out(weights: DecoderWeights, request: str) -> Layout:
    matrices = [matrix for layer in weights.layers for matrix in layer.matrices] + [weights.head]
    return choose_layout(matrices, request)
