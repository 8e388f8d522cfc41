"""Native networks from a model's spec and weights.

This module knows what a decoder and a block drafter are made of. The models call it when they change to
native passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import pointer
from typing import NamedTuple, Protocol

from torch import Tensor

from wager.nn.layers.attention import HeadShape
from wager.nn.layers.decoder_layer import LayerWeights
from wager.nn.narrow import AnyWeight, NarrowLayer, dense
from wager.nn.native.library import Library
from wager.nn.native.loader import PassOptions, describe_layout
from wager.nn.native.pack import Packer, Storage
from wager.nn.native.passes import (
    FeatureProjection,
    Heads,
    NativeDecoder,
    NativeDFlash,
    NativeHead,
    Shape,
    Stack,
    make_packer,
)
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
    def fc(self) -> Tensor: ...
    @property
    def hidden_norm(self) -> Tensor: ...
    @property
    def layers(self) -> Sequence[LayerWeights]: ...
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
    heads = _heads(library, packer, weights.head, options)
    network = NativeDecoder(stack, packer.vector(weights.norm), weights.embedding, heads, rotary)
    return PackedDecoder(network, describe_layout(library, packer), NativeTop(library))


def _heads(library: Library, packer: Packer, weight: AnyWeight, options: PassOptions) -> Heads:
    """Returns the head, and one for guesses with weights and activations of 8 bits at most.

    A quantised head serves both. Another one gets a second form, which takes a fraction of the time to read.
    """
    exact = NativeHead(library, packer, packer.matrix(weight), weight.shape[0])
    rounded = exact.rounded()
    if rounded is not None or options.weights != "auto":
        return Heads(exact, rounded or exact)
    rough = make_packer(library, [], [weight], 1, Storage(quantised=True, limbs=1))
    return Heads(exact, NativeHead(library, rough, rough.matrix(dense(weight)), weight.shape[0]))


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
