"""Whole passes of a network in one native call: the decoder, the block drafter, and the product of the head.

The weights of a network are packed once; each pass fills one record with addresses and calls the library. The
results are bit for bit the same whatever else is in the pass and however many threads run it
(source/products.h explains why). This module knows the batches of `nn/batch.py`; the models use it through
loader.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wager.kvcache.pool import KVPool, Place
from wager.nn.batch import BlockBatch, BlockRow, PassBatch, PassRow
from wager.nn.layers.decoder_layer import LayerWeights
from wager.nn.narrow import AnyWeight, NarrowLayer
from wager.nn.native.library import (
    ALL,
    ALL_BUT_CAUSAL_IN_WINDOWS,
    CAUSAL,
    Ingest,
    Layer,
    Library,
    Matrix,
    Net,
    Pass,
    Pool,
    num_threads,
    raise_refusal,
)
from wager.nn.native.pack import NIBBLES, Extent, Packer, Storage, Store, room_for
from wager.nn.rope import Rotary


class Shape(NamedTuple):
    """The sizes of a network that the native code needs."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    windows: Sequence[int | None]


class Workspace:
    """Memory for passes, as large as the largest pass so far needed."""

    def __init__(self) -> None:
        self._bytes = torch.empty(1 << 20, dtype=torch.uint8)

    def run(self, call: Any, *arguments: Any) -> None:
        """Calls the library with enough memory; raises the error of a refused call."""
        held, threads = self._bytes, num_threads()
        code = call(*arguments, held.data_ptr(), held.shape[0], threads)
        if code > 0:
            self._bytes = held = torch.empty(code + code // 4, dtype=torch.uint8)
            code = call(*arguments, held.data_ptr(), held.shape[0], threads)
        if code < 0:
            raise_refusal(code)


class Stack:
    """The packed layers of a network."""

    def __init__(
        self,
        library: Library,
        packer: Packer,
        shape: Shape,
        layers: Sequence[LayerWeights | NarrowLayer],
    ) -> None:
        self.library, self.shape = library, shape
        self._packer = packer  # owns the memory of all weights
        middle = layers[0].gate_up.weight.shape[0] // 2
        self._layers = (Layer * len(layers))(
            *[_layer(packer, w, shape, window) for w, window in zip(layers, shape.windows, strict=True)]
        )
        self.net = Net(
            shape.hidden_size,
            middle,
            len(layers),
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.eps,
            self._layers,
        )
        self._net, self._scratch = byref(self.net), Workspace()

    def run(self, call: Any, record: Any) -> None:
        self._scratch.run(call, self._net, byref(record))


def _layer(packer: Packer, weights: LayerWeights | NarrowLayer, shape: Shape, window: int | None) -> Layer:
    return Layer(
        packer.vector(weights.input_norm),
        None if weights.qk_norm is None else packer.vector(weights.qk_norm),
        packer.vector(weights.post_norm),
        packer.heads(weights.qkv.weight, weights.qkv.bias, shape.head_dim),
        packer.matrix(weights.out.weight, weights.out.bias),
        packer.gates(weights.gate_up.weight, weights.gate_up.bias),
        packer.matrix(weights.down.weight, weights.down.bias),
        window or 0,
    )


def make_packer(
    library: Library,
    layers: Sequence[LayerWeights | NarrowLayer],
    others: Sequence[AnyWeight],
    head_dim: int,
    storage: Storage,
) -> Packer:
    """Returns a packer with memory for these layers and matrices; raises OSError if memory is short."""
    matrices = [*others]
    for layer in layers:
        matrices += (layer.out.weight, layer.gate_up.weight, layer.down.weight)
    extents = [Extent(matrix.shape[0], max(1, matrix.shape[0] // 2), matrix.shape[1]) for matrix in matrices]
    extents += [Extent(w.qkv.weight.shape[0], head_dim, w.qkv.weight.shape[1]) for w in layers]
    store = Store(room_for(extents, library.panel, storage.quantised))
    return Packer(library.lanes, store, storage)


class RowTable:
    """The rows of a pass as the library reads them; it keeps their memory alive."""

    def __init__(self, rows: Sequence[PassRow] | Sequence[BlockRow], page_size: int) -> None:
        self._kept: list[Any] = []
        lines = [self._line(row, page_size) for row in rows]
        self._table = np.array(lines, np.int64)
        self.address = _address(self._table)

    def _line(self, row: PassRow | BlockRow, page_size: int) -> tuple[int, ...]:
        pages = np.ascontiguousarray(row.pages[: -(-row.context_len // page_size)], np.int64)
        self._kept.append(pages)
        mask = getattr(row, "mask", None)
        if mask is not None:
            mask = mask.contiguous()
            self._kept.append(mask)
        return (
            row.start,
            row.stop,
            row.context_len,
            _address(pages),
            len(pages),
            0 if mask is None else mask.data_ptr(),
        )


def _address(array: Any) -> int:
    return array.__array_interface__["data"][0]


def _pool(pool: KVPool) -> Pool:
    return Pool(pool.store.data_ptr(), pool.num_slots, pool.spec.page_size)


class NativeHead:
    """The product of the head."""

    def __init__(self, library: Library, packer: Packer, matrix: Matrix, num_outputs: int) -> None:
        """`packer` owns the memory of the matrix."""
        self._library, self._packer, self._size = library, packer, num_outputs
        self._matrix = matrix
        self._pointer, self._scratch = byref(matrix), Workspace()

    def rounded(self) -> NativeHead | None:
        """Returns the same head for activations of 8 bits, with the same memory; None without codes."""
        own = self._matrix
        if own.kind < NIBBLES:
            return None
        matrix = Matrix.from_buffer_copy(own)
        matrix.limbs = 1
        return NativeHead(self._library, self._packer, matrix, self._size)

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = hidden.contiguous()
        out = torch.empty(hidden.shape[0], self._size)
        self._scratch.run(
            self._library.project,
            self._pointer,
            hidden.data_ptr(),
            hidden.shape[0],
            out.data_ptr(),
            self._size,
        )
        return out


class Heads(NamedTuple):
    """The exact head for the target's choices, and one for guesses."""

    exact: NativeHead
    rough: NativeHead


class NativeDecoder:
    """All layers of a decoder, and its heads."""

    def __init__(self, stack: Stack, norm: int, embedding: AnyWeight, heads: Heads, rotary: Rotary) -> None:
        """Prepares the passes; the library looks up a plain embedding itself."""
        self._stack, self._rotary, self.heads = stack, rotary, heads
        self._embedding = embedding
        stack.net.norm = norm
        if isinstance(embedding, Tensor):
            stack.net.embedding = embedding.data_ptr()
        stack.net.vocab = embedding.shape[0]

    def forward(
        self, batch: PassBatch, pool: KVPool, feature_layers: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Returns hidden states after the final norm, and features, as `Decoder.forward` does."""
        count, hidden = batch.num_tokens, self._stack.shape.hidden_size
        out = torch.empty(count, hidden)
        features = torch.empty(count, len(feature_layers) * hidden) if feature_layers else None
        if count == 0:
            return out, features
        rows = RowTable(batch.rows, pool.spec.page_size)
        turns = self._rotary.table(max(row.kv_len for row in batch.rows))
        taps = np.array(feature_layers, np.int64)
        token_ids, positions, slots = _plain(batch.token_ids), _plain(batch.positions), _plain(batch.slots)
        embeddings = self._embeddings(token_ids)
        record = Pass(
            count,
            len(batch.rows),
            token_ids.data_ptr(),
            None if embeddings is None else embeddings.data_ptr(),
            positions.data_ptr(),
            slots.data_ptr(),
            turns.data_ptr(),
            turns.shape[0],
            rows.address,
            _pool(pool),
            CAUSAL,
            _address(taps),
            len(taps),
            None if features is None else features.data_ptr(),
            out.data_ptr(),
        )
        self._stack.run(self._stack.library.run_pass, record)
        return out, features

    def _embeddings(self, token_ids: Tensor) -> Tensor | None:
        """Returns the tokens' embeddings if the embedding is narrow; raises InputError for a wrong id."""
        if isinstance(self._embedding, Tensor):
            return None
        try:
            return self._embedding.rows(token_ids)
        except IndexError:
            raise_refusal(-1)
            raise


class NativeDFlash:
    """All layers of a block drafter, and the projection of features into its context."""

    def __init__(
        self,
        stack: Stack,
        norm: int,
        feature_projection: FeatureProjection,
        rotary: Rotary,
        causal_in_windows: bool,
    ) -> None:
        self._stack, self._rotary, self._feature_projection = stack, rotary, feature_projection
        self._sight = ALL_BUT_CAUSAL_IN_WINDOWS if causal_in_windows else ALL
        stack.net.norm = norm

    def ingest(self, features: Tensor, positions: Tensor, slots: Place, pool: KVPool) -> None:
        """Adds context as `DFlash.ingest` does."""
        features, positions = features.float().contiguous(), _plain(positions)
        if features.shape[0] == 0:
            return
        if isinstance(slots, slice):
            slots = torch.arange(slots.start, slots.stop)
        slots = _plain(slots)
        turns = self._rotary.table(int(positions.max()) + 1)
        record = Ingest(
            features.shape[0],
            features.shape[1],
            features.data_ptr(),
            positions.data_ptr(),
            slots.data_ptr(),
            turns.data_ptr(),
            turns.shape[0],
            _pool(pool),
            self._feature_projection.fc,
            self._feature_projection.norm,
        )
        self._stack.run(self._stack.library.run_ingest, record)

    def forward(self, block: BlockBatch, pool: KVPool) -> Tensor:
        """Runs a block as `DFlash.forward` does, but never writes the block's K/V to the pool."""
        embeddings, positions = block.embeddings.float().contiguous(), _plain(block.positions)
        out = torch.empty_like(embeddings)
        if out.shape[0] == 0:
            return out
        rows = RowTable(block.rows, pool.spec.page_size)
        turns = self._rotary.table(max(row.context_len + row.num_tokens for row in block.rows))
        record = Pass(
            out.shape[0],
            len(block.rows),
            None,
            embeddings.data_ptr(),
            positions.data_ptr(),
            None,
            turns.data_ptr(),
            turns.shape[0],
            rows.address,
            _pool(pool),
            self._sight,
            None,
            0,
            None,
            out.data_ptr(),
        )
        self._stack.run(self._stack.library.run_pass, record)
        return out


class FeatureProjection(NamedTuple):
    """The projection of features before a block drafter's layers: a pointer to the packed product, and a
    norm.
    """

    fc: Any
    norm: int


def _plain(numbers: Tensor) -> Tensor:
    return numbers if numbers.is_contiguous() else numbers.contiguous()
