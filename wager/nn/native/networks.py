"""Native networks from a model's spec and weights.

This module knows what a decoder and a block drafter are made of. The models call it when they change to
native passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import pointer
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from wager.nn.gguf_blocks import GroupedWeight
from wager.nn.layers.attention import HeadShape
from wager.nn.layers.decoder_layer import LayerWeights
from wager.nn.narrow import AnyWeight, NarrowLayer, dense
from wager.nn.native.head import Heads, NativeHead
from wager.nn.native.library import Library
from wager.nn.native.loader import PassOptions, describe_layout
from wager.nn.native.pack import Storage
from wager.nn.native.passes import FeatureProjection, NativeDecoder, NativeDFlash, Shape, Stack, make_packer
from wager.nn.native.top import NativeTop
from wager.nn.rope import Rotary


class Spec(Protocol):
    """The fields that the specs of both networks share."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def eps(self) -> float: ...
    @property
    def windows(self) -> tuple[int | None, ...]: ...
    @property
    def heads(self) -> HeadShape: ...


class BlockSpec(Spec, Protocol):
    """The spec of a block drafter."""

    @property
    def block_causal_in_sliding(self) -> bool: ...


class DecoderTensors(Protocol):
    """The weights of a decoder."""

    @property
    def embedding(self) -> AnyWeight: ...
    @property
    def layers(self) -> Sequence[LayerWeights | NarrowLayer]: ...
    @property
    def norm(self) -> Tensor: ...
    @property
    def head(self) -> AnyWeight: ...


class DrafterTensors(Protocol):
    """The weights of a block drafter."""

    @property
    def fc(self) -> AnyWeight: ...
    @property
    def hidden_norm(self) -> Tensor: ...
    @property
    def layers(self) -> Sequence[LayerWeights | NarrowLayer]: ...
    @property
    def norm(self) -> Tensor: ...


class PackedDecoder(NamedTuple):
    """A native decoder, the description of its layout, and the selection of the best tokens."""

    network: NativeDecoder
    layout: str
    top: NativeTop


class PackedDrafter(NamedTuple):
    """A native block drafter, the description of its layout, and the selection of the best tokens."""

    network: NativeDFlash
    layout: str
    top: NativeTop


def native_decoder(
    library: Library, spec: Spec, weights: DecoderTensors, rotary: Rotary, options: PassOptions
) -> PackedDecoder:
    """Packs a decoder; raises OSError if memory is short. The embedding is not copied."""
    packer = make_packer(library, weights.layers, [weights.head], spec.heads.head_dim, options.storage)
    stack = Stack(library, packer, _shape(spec), weights.layers)
    exact = NativeHead(library, packer, packer.matrix(weights.head), weights.head.shape[0])
    heads = Heads(exact, lambda token_ids: _draft_head(library, weights.head, exact, options, token_ids))
    network = NativeDecoder(stack, packer.vector(weights.norm), weights.embedding, heads, rotary)
    return PackedDecoder(network, describe_layout(library, packer), NativeTop(library))


def _draft_head(
    library: Library, weight: AnyWeight, exact: NativeHead, options: PassOptions, token_ids: Sequence[int]
) -> NativeHead:
    """Returns the head for guesses of these tokens, of all tokens if there are none.

    Its weights have 4 bits and its activations 8, because a draft mostly waits for the head to be read. A
    head that is narrow already has no second form for all tokens.
    """
    if options.weights != "auto":
        return exact.rounded() or exact
    is_narrow = isinstance(weight, GroupedWeight) and weight.bits == 4
    if is_narrow and not token_ids:
        return exact.rounded() or exact
    ids = torch.tensor(token_ids, dtype=torch.int64) if token_ids else torch.arange(weight.shape[0])
    chosen = weight.each(lambda part: part[ids]) if isinstance(weight, GroupedWeight) else weight[ids]
    own = chosen if is_narrow else dense(chosen)
    packer = make_packer(library, [], [own], 1, Storage(quantised=True, limbs=1, bits=4))
    return NativeHead(library, packer, packer.matrix(own), len(ids), ids if token_ids else None)


def native_drafter(
    library: Library, spec: BlockSpec, weights: DrafterTensors, rotary: Rotary, options: PassOptions
) -> PackedDrafter:
    """Packs a block drafter. Context and block share each layer's k and v weights."""
    packer = make_packer(library, weights.layers, [weights.fc], spec.heads.head_dim, options.storage)
    stack = Stack(library, packer, _shape(spec), weights.layers)
    entry = FeatureProjection(pointer(packer.matrix(weights.fc)), packer.vector(weights.hidden_norm))
    norm = packer.vector(weights.norm)
    network = NativeDFlash(stack, norm, entry, rotary, spec.block_causal_in_sliding)
    return PackedDrafter(network, describe_layout(library, packer), NativeTop(library))


def _shape(spec: Spec) -> Shape:
    return Shape(spec.hidden_size, *spec.heads, spec.eps, spec.windows)
