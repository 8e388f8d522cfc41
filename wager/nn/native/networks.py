"""Native networks from a model's own spec and weights.

The one place here that knows what a decoder and a block drafter are made of. Called by the models when they
change to native passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import pointer
from typing import NamedTuple, Protocol

from torch import Tensor

from wager.nn.layers.attention import HeadShape
from wager.nn.layers.decoder_layer import LayerWeights
from wager.nn.native.library import Library
from wager.nn.native.pack import Packer
from wager.nn.native.passes import (
    Entry,
    Heads,
    NativeDecoder,
    NativeDFlash,
    NativeHead,
    Shape,
    Stack,
    Storage,
    make_packer,
)
from wager.nn.native.switch import Wish, describe
from wager.nn.native.top import NativeTop
from wager.nn.rope import Rotary


class Spec(Protocol):
    """What both networks' specs have in common."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def eps(self) -> float: ...
    @property
    def windows(self) -> tuple[int | None, ...]: ...
    @property
    def heads(self) -> HeadShape: ...


class BlockSpec(Spec, Protocol):
    """A block drafter's."""

    @property
    def block_causal_in_sliding(self) -> bool: ...


class DecoderTensors(Protocol):
    """A decoder's weights."""

    @property
    def embedding(self) -> Tensor: ...
    @property
    def layers(self) -> Sequence[LayerWeights]: ...
    @property
    def norm(self) -> Tensor: ...
    @property
    def head(self) -> Tensor: ...


class DrafterTensors(Protocol):
    """A block drafter's weights."""

    @property
    def fc(self) -> Tensor: ...
    @property
    def hidden_norm(self) -> Tensor: ...
    @property
    def layers(self) -> Sequence[LayerWeights]: ...
    @property
    def norm(self) -> Tensor: ...


class MadeDecoder(NamedTuple):
    """A native decoder, its layout in words, and the choice of the best candidates."""

    network: NativeDecoder
    layout: str
    top: NativeTop


class MadeDrafter(NamedTuple):
    """The same of a native block drafter."""

    network: NativeDFlash
    layout: str
    top: NativeTop


def native_decoder(
    library: Library, spec: Spec, weights: DecoderTensors, rotary: Rotary, wish: Wish
) -> MadeDecoder:
    """Pack a decoder; OSError where there is no memory for it. Its embedding is used where it lies."""
    packer = make_packer(library, weights.layers, [weights.head], spec.heads.head_dim, wish.storage)
    stack = Stack(library, packer, _shape(spec), weights.layers)
    heads = _heads(library, packer, weights.head, wish)
    network = NativeDecoder(stack, packer.vector(weights.norm), weights.embedding, heads, rotary)
    return MadeDecoder(network, describe(library, packer), NativeTop(library))


def _heads(library: Library, packer: Packer, weight: Tensor, wish: Wish) -> Heads:
    """The head, and one that is good enough for guesses: a drafter that borrows it reads a fraction."""
    exact = NativeHead(library, packer, weight)
    if wish.weights != "auto" or wish.storage.quantised:
        return Heads(exact, exact)
    rough = make_packer(library, [], [weight], 1, Storage(quantised=True))
    return Heads(exact, NativeHead(library, rough, weight))


def native_drafter(
    library: Library, spec: BlockSpec, weights: DrafterTensors, rotary: Rotary, wish: Wish
) -> MadeDrafter:
    """Pack a block drafter. Context and block share each layer's k and v weights."""
    packer = make_packer(library, weights.layers, [weights.fc], spec.heads.head_dim, wish.storage)
    stack = Stack(library, packer, _shape(spec), weights.layers)
    entry = Entry(pointer(packer.matrix(weights.fc)), packer.vector(weights.hidden_norm))
    norm = packer.vector(weights.norm)
    network = NativeDFlash(stack, norm, entry, rotary, spec.block_causal_in_sliding)
    return MadeDrafter(network, describe(library, packer), NativeTop(library))


def _shape(spec: Spec) -> Shape:
    return Shape(spec.hidden_size, *spec.heads, spec.eps, spec.windows)
