"""The DFlash block drafter at inference: context features in, hidden states of a whole block out.

`ingest` converts the target's hidden features to keys and values of every layer, in the drafter's own pool at
the target's slots. `forward` runs a block that sees its row's context and itself. The embedding and the head
are the target's: the caller embeds the block and scores the hidden states. `dflash_spec.py` reads the config;
`dflash_net.py` is the same network as a trainable module. `draft/` calls this. Source: arXiv 2602.06036.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from wager.errors import ModelError
from wager.kvcache.pool import KVPool, Place, PoolSpec
from wager.nn import kernels
from wager.nn.batch import BlockBatch, BlockRow
from wager.nn.kernels.quant_layers import Quantisation, QuantLayer, QuantLinear, stacked
from wager.nn.kernels.quant_weights import QuantWeight
from wager.nn.kernels.support import block_refusal
from wager.nn.layers.attention import additive, attend_one
from wager.nn.layers.decoder_layer import DecoderLayer, LayerWeights, Linear
from wager.nn.layers.linear import Layout, choose_layout
from wager.nn.layers.norm import RmsNorm
from wager.nn.models.dflash_spec import DFlashSpec, read_spec
from wager.nn.models.hf_config import pick_dtype
from wager.nn.models.tensors import read_layer, read_narrow_layer
from wager.nn.narrow import AnyWeight, NarrowLayer, dense
from wager.nn.native.loader import NativeLoader, PassOptions
from wager.nn.native.networks import native_drafter
from wager.nn.native.passes import NativeDFlash
from wager.nn.native.top import NativeTop
from wager.nn.rope import Rotary, rotate
from wager.nn.weights import WeightReader, read_config

log = logging.getLogger(__name__)


class DFlashWeights(NamedTuple):
    """All tensors of a drafter, with fused layers."""

    fc: Tensor
    hidden_norm: Tensor
    layers: Sequence[LayerWeights]
    norm: Tensor

    @property
    def num_bytes(self) -> int:
        return self.fc.nbytes + sum([matrix.nbytes for layer in self.layers for matrix in layer.matrices])


class NarrowDFlash(NamedTuple):
    """All tensors of a drafter; matrices that its file quantises keep their narrow form."""

    fc: AnyWeight
    hidden_norm: Tensor
    layers: Sequence[NarrowLayer]
    norm: Tensor

    @property
    def num_bytes(self) -> int:
        """The bytes of the same weights in float32, by which networks are compared."""
        matrices = [self.fc]
        for layer in self.layers:
            matrices += [one.weight for one in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        return sum([4 * matrix.shape[0] * matrix.shape[1] for matrix in matrices])

    @property
    def widened(self) -> DFlashWeights:
        layers = [layer.widened for layer in self.layers]
        return DFlashWeights(dense(self.fc), self.hidden_norm, layers, self.norm)


class QuantDFlash(NamedTuple):
    """All tensors of a drafter with quantised matrices."""

    fc: QuantWeight
    hidden_norm: Tensor
    layers: Sequence[QuantLayer]
    norm: Tensor

    @property
    def num_bytes(self) -> int:
        return self.fc.nbytes + sum([layer.num_bytes for layer in self.layers])


class BlockView(NamedTuple):
    """What one row reads in a layer: its range, its context, and the additive mask over context and block.

    If `write` is set, the block's K/V are written to these slots for this pass and `place` covers context and
    block. Otherwise `place` is the context alone, and the block is joined to a copy of it.
    """

    start: int
    stop: int
    place: Place
    write: Place | None
    mask: Tensor | None


class DFlash:
    """A loaded block drafter."""

    def __init__(
        self,
        spec: DFlashSpec,
        weights: DFlashWeights | QuantDFlash | NarrowDFlash,
        layout: str = "auto",
        options: PassOptions | None = None,
    ) -> None:
        """Prepares the weights for this machine; `layout` and `options` are those of `Decoder`."""
        self.spec = spec
        self.dtype, self.device = weights.norm.dtype, weights.norm.device
        self.rotary = Rotary(spec.rope, self.dtype, self.device)
        self.native_loader = NativeLoader(options or PassOptions(), layout, weights.norm, weights.num_bytes)
        self.layout: Layout | str = ""
        self.layers: list[DecoderLayer] = []
        self._native: NativeDFlash | None = None
        self.top: NativeTop | None = None
        self._unpacked: DFlashWeights | NarrowDFlash | None = None
        has_kernels = kernels.has_kernels(self.device)
        self.kernel_refusal = block_refusal(spec, self.dtype) if has_kernels else ""
        """Why the device's kernels cannot run this drafter; empty if they can."""
        if self.kernel_refusal:
            log.warning("the block drafter runs by plain torch: %s", self.kernel_refusal)
        self.weights: DFlashWeights | QuantDFlash | None = None
        """All tensors as they were read, if kernels may run the drafter, else None."""
        if has_kernels and not self.kernel_refusal:
            assert not isinstance(weights, NarrowDFlash), "narrow weights are for a CPU"
            self.weights = weights
        if isinstance(weights, QuantDFlash):
            assert self.weights is not None, "quantised weights without kernels"
            self.layout = str(Quantisation(weights.fc.bits))
            return
        self._unpacked = weights
        if not self.try_native(wait=True):
            wide = weights.widened if isinstance(weights, NarrowDFlash) else weights
            self._lay_out(wide, layout)

    def _lay_out(self, weights: DFlashWeights, request: str) -> None:
        """Creates the plain-torch layers."""
        spec, layers = self.spec, [self.native_loader.plain_layer(layer) for layer in weights.layers]
        context, fc = context_projection(spec, layers), self.native_loader.plain(weights.fc)
        matrices = [matrix for layer in layers for matrix in layer.matrices]
        self.layout = layout = choose_layout([fc, context.weight, *matrices], request)
        self.fc = Linear(fc).in_layout(layout)
        self.context = context.in_layout(layout)
        self.hidden_norm = RmsNorm(weights.hidden_norm, spec.eps)
        self.key_norm = RmsNorm(key_norms(spec, layers), spec.eps)
        self.layers = [DecoderLayer(layer, spec.heads, spec.eps, layout) for layer in layers]
        self.norm = RmsNorm(weights.norm, spec.eps)

    def try_native(self, *, wait: bool = False) -> bool:
        """Changes to native passes if they are ready, as `Decoder.try_native` does."""
        weights = self._unpacked
        if weights is None:
            return False
        spec, rotary, options = self.spec, self.rotary, self.native_loader.options
        packed = self.native_loader.pack(
            lambda found: native_drafter(found, spec, weights, rotary, options), wait=wait
        )
        if packed is None:
            self._unpacked = weights if self.native_loader.may_become_ready else None
            return False
        self._native, self.layout, self.top = packed
        self._unpacked, self.layers = None, []
        return True

    @property
    def native(self) -> NativeDFlash | None:
        """The native passes; None while passes are plain torch or run by kernels."""
        return self._native

    @property
    def has_plain_passes(self) -> bool:
        """Whether `ingest` and `forward` can be called; only kernels can use quantised weights."""
        return self._native is not None or bool(self.layers)

    def pool_spec(self, num_pages: int, page_size: int) -> PoolSpec:
        """Returns the spec of the pool for this drafter's context, with as many pages as the
        target's pool.
        """
        heads = self.spec.heads
        return PoolSpec(
            self.spec.num_layers,
            num_pages,
            page_size,
            heads.num_kv_heads,
            heads.head_dim,
            self.dtype,
            self.device,
        )

    def ingest(self, features: Tensor, positions: Tensor, slots: Tensor | slice, pool: KVPool) -> None:
        """Adds context: features [tokens, layer ids * target hidden] of kept tokens, with their positions and
        slots.

        The keys and values of all layers come from one product with the same normed features.
        """
        if self._native is not None:
            return self._native.ingest(features, positions, slots, pool)
        spec, heads = self.spec, self.spec.heads
        state = self.hidden_norm(self.fc(features.to(self.dtype)))
        shape = (features.shape[0], spec.num_layers, 2, heads.num_kv_heads, heads.head_dim)
        fused = self.context(state).view(shape)
        keys = self.key_norm(fused[:, :, 0]).flatten(1, 2)
        rotated = rotate(keys, self.rotary.at(positions))
        fused[:, :, 0] = rotated.view(shape[:2] + shape[3:])
        pool.write_all(slots, fused)

    def forward(self, block: BlockBatch, pool: KVPool) -> Tensor:
        """Returns [block tokens, hidden] after the final norm, all rows in one pass. The context does not
        change.
        """
        if self._native is not None:
            return self._native.forward(block, pool)
        rotation = self.rotary.at(block.positions)
        by_window = {
            window: [self._plan_row(block, row, pool, window) for row in block.rows]
            for window in set(self.spec.windows)
        }
        x = block.embeddings.to(self.dtype)
        for index, layer in enumerate(self.layers):
            fused = layer.project(x, rotation)
            outputs = [self._attend(fused, pool, index, view) for view in by_window[self.spec.windows[index]]]
            x = layer.finish(x, outputs[0] if len(outputs) == 1 else torch.cat(outputs))
        return self.norm(x)

    def _plan_row(self, block: BlockBatch, row: BlockRow, pool: KVPool, window: int | None) -> BlockView:
        length, stop = row.context_len, row.context_len + row.num_tokens
        # The block begins at position context_len or later, so keys before this are outside every window.
        first = 0 if window is None else min(length, max(0, length - window + 1))
        place = pool.span(row.pages, first, stop if row.spare else length)
        write = pool.span(row.pages, length, stop) if row.spare else None
        return BlockView(row.start, row.stop, place, write, self._mask(block, row, first, window))

    def _mask(self, block: BlockBatch, row: BlockRow, first: int, window: int | None) -> Tensor | None:
        """Returns an additive mask, or None if every block token sees the whole context and the
        whole block.
        """
        causal = window is not None and self.spec.block_causal_in_sliding
        if window is None or (row.context_len + row.num_tokens <= window and not causal):
            return None
        positions = block.positions[row.start : row.stop]
        context = torch.arange(first, row.context_len, device=positions.device)
        seen_context = positions[:, None] - context[None, :] < window
        seen_block = torch.ones(row.num_tokens, row.num_tokens, dtype=torch.bool, device=positions.device)
        if causal:
            distance = positions[:, None] - positions[None, :]
            seen_block = (distance >= 0) & (distance < window)
        return additive(torch.cat((seen_context, seen_block), dim=1), self.spec.heads.group, self.dtype)

    def _attend(self, fused: Tensor, pool: KVPool, layer: int, view: BlockView) -> Tensor:
        num_heads, num_kv_heads, _ = self.spec.heads
        own = fused[view.start : view.stop]
        packed = own[:, num_heads:].unflatten(1, (2, num_kv_heads))
        if view.write is not None:
            pool.write_packed(layer, view.write, packed)
            keys, values = pool.read(layer, view.place)
        else:
            context = pool.read(layer, view.place)
            block = packed.permute(1, 2, 0, 3)
            keys = torch.cat((context.keys, block[0]), dim=1)
            values = torch.cat((context.values, block[1]), dim=1)
        return attend_one(own[:, :num_heads], keys, values, view.mask)


def kernel_context(spec: DFlashSpec, weights: DFlashWeights | QuantDFlash) -> Linear | QuantLinear:
    """Returns `context_projection` for plain or quantised weights."""
    if isinstance(weights, DFlashWeights):
        return context_projection(spec, weights.layers)
    return stacked([layer.qkv for layer in weights.layers], spec.heads.num_heads * spec.heads.head_dim)


def context_projection(spec: DFlashSpec, layers: Sequence[LayerWeights]) -> Linear:
    """Returns the k and v projections of all layers, stacked: [layers * 2 * kv_heads * head_dim, hidden]."""
    skip = spec.heads.num_heads * spec.heads.head_dim
    weight = torch.cat([layer.qkv.weight[skip:] for layer in layers])
    biases = [layer.qkv.bias[skip:] for layer in layers if layer.qkv.bias is not None]
    return Linear(weight, torch.cat(biases) if biases else None)


def key_norms(spec: DFlashSpec, layers: Sequence[LayerWeights] | Sequence[QuantLayer]) -> Tensor:
    """Returns each layer's key norm: [layers, kv_heads, head_dim]."""
    norms = [layer.qk_norm[spec.heads.num_heads :] for layer in layers if layer.qk_norm is not None]
    return torch.stack(norms)


def read_weights(reader: WeightReader, spec: DFlashSpec) -> DFlashWeights:
    """Returns the published tensors with fused layers. Raises WeightsError that names a missing or faulty
    tensor.
    """
    hidden = spec.hidden_size
    weights = DFlashWeights(
        fc=reader.get("fc.weight", (hidden, spec.feature_size)),
        hidden_norm=reader.get("hidden_norm.weight", (hidden,)),
        layers=[read_layer(reader, f"layers.{index}.", spec) for index in range(spec.num_layers)],
        norm=reader.get("norm.weight", (hidden,)),
    )
    reader.leftovers()
    return weights


def read_narrow_weights(reader: WeightReader, spec: DFlashSpec) -> NarrowDFlash:
    """Returns the published tensors as `read_weights` does, with matrices in their narrow form."""
    hidden, shape = spec.hidden_size, (spec.hidden_size, spec.feature_size)
    narrow = reader.grouped(["fc.weight"], [shape])
    weights = NarrowDFlash(
        fc=reader.get("fc.weight", shape) if narrow is None else narrow,
        hidden_norm=reader.get("hidden_norm.weight", (hidden,)),
        layers=[read_narrow_layer(reader, f"layers.{index}.", spec) for index in range(spec.num_layers)],
        norm=reader.get("norm.weight", (hidden,)),
    )
    reader.leftovers()
    return weights


def read_quant_weights(reader: WeightReader, spec: DFlashSpec, quantisation: Quantisation) -> QuantDFlash:
    """Returns the quantised tensors; each layer is rounded before the next one is read."""
    hidden, layers = spec.hidden_size, range(spec.num_layers)
    weights = QuantDFlash(
        fc=quantisation.weight(reader.get("fc.weight", (hidden, spec.feature_size))),
        hidden_norm=reader.get("hidden_norm.weight", (hidden,)),
        layers=[quantisation.layer(read_layer(reader, f"layers.{index}.", spec)) for index in layers],
        norm=reader.get("norm.weight", (hidden,)),
    )
    reader.leftovers()
    return weights


def load_drafter(
    folder: str | Path,
    dtype: torch.dtype | str = "auto",
    device: torch.device | str = "cpu",
    layout: str = "auto",
    options: PassOptions | None = None,
) -> DFlash:
    """Loads a drafter folder; raises ModelError or WeightsError as `load_target` does.

    The weights stay unquantised if the kernels do not support the drafter's blocks.
    """
    path = Path(folder)
    values = read_config(path)
    spec = read_spec(values)
    reader = WeightReader(path, pick_dtype(dtype, values, str(device)), device)
    if options is not None and options.quant_bits is not None and block_refusal(spec, reader.dtype):
        options = replace(options, weights="auto", kernels=False)
    bits = options.quant_bits if options is not None else None
    if bits is None:
        keeps_narrow = options is not None and options.keeps_narrow(reader.dtype, reader.device, layout)
        read = read_narrow_weights if keeps_narrow else read_weights
        return DFlash(spec, read(reader, spec), layout, options)
    return DFlash(spec, read_quant_weights(reader, spec, Quantisation(bits)), layout, options)


def check_pair(spec: DFlashSpec, hidden_size: int, num_layers: int, vocab_size: int) -> None:
    """Raises ModelError if a drafter does not fit a target, whose embedding and head it uses."""
    if spec.hidden_size != hidden_size:
        raise ModelError(f"drafter hidden_size = {spec.hidden_size}, but the target has {hidden_size}")
    if spec.num_target_layers is not None and spec.num_target_layers != num_layers:
        raise ModelError(
            f"drafter num_target_layers = {spec.num_target_layers}, but the target has {num_layers}"
        )
    if max(spec.target_layer_ids) >= num_layers:
        raise ModelError(
            f"drafter target_layer_ids {list(spec.target_layer_ids)} reach beyond "
            f"the target's {num_layers} layers"
        )
    if spec.mask_token_id >= vocab_size:
        mask = spec.mask_token_id
        raise ModelError(f"drafter mask_token_id = {mask} is outside the target's {vocab_size} token ids")
