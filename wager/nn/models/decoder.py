"""The decoder-only network that all supported targets share, described by a frozen `DecoderSpec`.

One pass packs prompt chunks, plain rows and trees. It writes K/V to the slots of the pool and returns hidden
features of selected layers. It does not know the requests, the accepted tokens or the sampling. The other
files of this folder convert each model type's config to a spec; `target/` calls `forward` and `logits` in
inference mode.
"""

import logging
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
from wager.nn.kernels.quant_layers import Quantisation, QuantLayer, QuantLinear
from wager.nn.kernels.quant_weights import QuantWeight
from wager.nn.kernels.support import refusal
from wager.nn.layers.attention import HeadShape, attend, plan_rows
from wager.nn.layers.decoder_layer import DecoderLayer, LayerWeights
from wager.nn.layers.linear import Layout, Projection, choose_layout
from wager.nn.layers.norm import RmsNorm
from wager.nn.narrow import NarrowDecoder, NarrowLayer, dense
from wager.nn.native.head import NativeHead
from wager.nn.native.loader import NativeLoader, PassOptions
from wager.nn.native.networks import native_decoder
from wager.nn.native.passes import NativeDecoder
from wager.nn.native.top import NativeTop
from wager.nn.rope import RopeSpec, Rotary

log = logging.getLogger(__name__)


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
        """Raises ModelError if the numbers contradict each other."""
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
        """Number of weights that a token is multiplied with: those of all layers and of the head."""
        heads = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        layer = self.hidden_size * (heads + 3 * self.intermediate_size)
        return self.num_layers * layer + self.vocab_size * self.hidden_size


class DecoderWeights(NamedTuple):
    """All tensors of a decoder; `head` is the embedding if they are tied."""

    embedding: Tensor
    layers: Sequence[LayerWeights]
    norm: Tensor
    head: Tensor

    @property
    def num_bytes(self) -> int:
        return self.head.nbytes + sum([matrix.nbytes for layer in self.layers for matrix in layer.matrices])


class QuantDecoder(NamedTuple):
    """All tensors of a decoder with quantised matrices; the embedding keeps its full width."""

    embedding: Tensor
    layers: Sequence[QuantLayer]
    norm: Tensor
    head: QuantWeight

    @property
    def num_bytes(self) -> int:
        return self.head.nbytes + sum([layer.num_bytes for layer in self.layers])


class PassOutput(NamedTuple):
    """`hidden` [tokens, hidden] after the final norm; `features` [tokens, feature layers * hidden],
    or None.
    """

    hidden: Tensor
    features: Tensor | None


class Decoder:
    """A loaded decoder: `embed`, `forward`, `logits`."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights | QuantDecoder | NarrowDecoder,
        layout: str = "auto",
        options: PassOptions | None = None,
    ) -> None:
        """Prepares the weights for this machine; `layout` is "auto" (measure) or the name of a layout.

        `options` select native passes and quantised weights; the default is plain torch. Only kernels can use
        a `QuantDecoder`; `forward` is not available then. Plain torch dequantises a `NarrowDecoder`, and
        native passes multiply it as it is.
        """
        self.spec = spec
        self.dtype, self.device = weights.norm.dtype, weights.norm.device
        self._embedding = weights.embedding
        self.rotary = Rotary(spec.rope, self.dtype, self.device)
        self.native_loader = NativeLoader(options or PassOptions(), layout, weights.norm, weights.num_bytes)
        self.layout: Layout | str = ""
        self.layers: list[DecoderLayer] = []
        self.head: Callable[[Tensor], Tensor]
        self._native: NativeDecoder | None = None
        self.top: NativeTop | None = None
        """Selects the best tokens of each row of scores; None unless passes are native."""
        self._unpacked: DecoderWeights | NarrowDecoder | None = None
        has_kernels = kernels.has_kernels(self.device)
        self.kernel_refusal = refusal(spec, self.dtype, spec.vocab_size) if has_kernels else ""
        """Why the device's kernels cannot run this network; empty if they can."""
        if self.kernel_refusal:
            log.warning("the target runs by plain torch: %s", self.kernel_refusal)
        self.weights: DecoderWeights | QuantDecoder | None = None
        """All tensors as they were read, if kernels may run the layers, else None; the layers here share
        them.
        """
        if has_kernels and not self.kernel_refusal:
            assert not isinstance(weights, NarrowDecoder), "narrow weights are for a CPU"
            self.weights = weights
        if isinstance(weights, QuantDecoder):
            self._use_quantised(weights)
            return
        self._unpacked = weights
        if not self.try_native(wait=True):
            self._lay_out(weights, layout)

    def _lay_out(self, weights: DecoderWeights | NarrowDecoder, request: str) -> None:
        """Creates the plain-torch layers."""
        wide = [layer.widened if isinstance(layer, NarrowLayer) else layer for layer in weights.layers]
        spec, layers = self.spec, [self.native_loader.plain_layer(layer) for layer in wide]
        head = self.native_loader.plain(dense(weights.head))
        matrices = [matrix for layer in layers for matrix in layer.matrices]
        self.layout = layout = choose_layout([*matrices, head], request)
        self.layers = [DecoderLayer(layer, spec.heads, spec.eps, layout) for layer in layers]
        self.norm = RmsNorm(weights.norm, spec.eps)
        self.head = Projection(head, None, layout.of((head.shape[0], head.shape[1])))

    def _use_quantised(self, weights: QuantDecoder) -> None:
        from wager.nn.kernels.quant_linear import QuantKernelLinear

        assert self.weights is not None, "quantised weights without kernels"
        self.layout = str(Quantisation(weights.layers[0].qkv.weight.bits))
        self.head = QuantKernelLinear(QuantLinear(weights.head))

    @property
    def streamed_bytes(self) -> int | None:
        """Bytes of weights that a pass of the kernels reads; None without kernels."""
        return None if self.weights is None else self.weights.num_bytes

    def try_native(self, *, wait: bool = False) -> bool:
        """Changes to native passes if they are ready, and returns whether that happened now.

        `wait` waits for the packing of the weights. Precondition: no request is running, because native and
        plain passes round differently.
        """
        weights = self._unpacked
        if weights is None:
            return False
        spec, rotary, options = self.spec, self.rotary, self.native_loader.options
        packed = self.native_loader.pack(
            lambda found: native_decoder(found, spec, weights, rotary, options), wait=wait
        )
        if packed is None:
            self._unpacked = weights if self.native_loader.may_become_ready else None
            return False
        self._native, self.layout, self.top = packed
        self._unpacked, self.layers, self.head = None, [], self._native.heads.exact
        return True

    @property
    def native(self) -> NativeDecoder | None:
        """The native passes; None while passes are plain torch or run by kernels."""
        return self._native

    def pool_spec(self, num_pages: int, page_size: int) -> PoolSpec:
        """Returns the spec of the pool this decoder writes to."""
        spec = self.spec
        return PoolSpec(
            spec.num_layers, num_pages, page_size, spec.num_kv_heads, spec.head_dim, self.dtype, self.device
        )

    @property
    def embedding(self) -> Tensor:
        """The embeddings of all tokens [vocab, hidden]; a narrow embedding is dequantised for every call."""
        return dense(self._embedding)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Maps token ids [tokens] to embeddings [tokens, hidden]."""
        if isinstance(self._embedding, Tensor):
            return F.embedding(token_ids, self._embedding)
        return self._embedding.rows(token_ids)

    def forward(self, batch: PassBatch, pool: KVPool, feature_layers: Sequence[int] = ()) -> PassOutput:
        """Runs all layers over the batch and writes its K/V to the pool.

        `feature_layers` are 0-based. A feature is the output of its layer; for the last layer it is the state
        before the final norm. Precondition: the pages of every row cover its context and its own tokens.
        """
        if self._native is not None:
            return PassOutput(*self._native.forward(batch, pool, feature_layers))
        assert self.layers, "quantised weights have no plain passes"
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
        """Returns the scores [rows, vocab] of selected hidden states [rows, hidden]."""
        return self.head(hidden)

    def draft_head(self, token_ids: tuple[int, ...]) -> NativeHead | None:
        """Returns the native head for guesses of these tokens (all if there are none); None without one."""
        return None if self._native is None else self._native.draft_head(token_ids)
