"""Whole passes of a network in one native call: the decoder, the block drafter, and the product of the head.

The weights of a network are packed once; each pass fills one record with addresses and calls the library. The
results are bit for bit the same whatever else is in the pass and however many threads run it
(source/products.h explains why). This module knows the batches of `nn/batch.py`; the models use it through
loader.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, pointer
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.kvcache.pool import KVPool, Place
from wager.nn.batch import BlockBatch, BlockRow, PassBatch, PassRow
from wager.nn.layers.decoder_layer import LayerWeights
from wager.nn.narrow import AnyWeight, NarrowLayer
from wager.nn.native.choose import NativeChooser
from wager.nn.native.head import Heads, NativeHead, Workspace
from wager.nn.native.library import (
    ALL,
    ALL_BUT_CAUSAL_IN_WINDOWS,
    CAUSAL,
    Draws,
    Ingest,
    Layer,
    Library,
    Net,
    Pass,
    num_threads,
    raise_refusal,
)
from wager.nn.native.pack import Extent, Packer, Storage, Store, room_for
from wager.nn.native.steps import BlockModel, Embedding, Int64Array, TargetModel, pool_record
from wager.nn.rope import Rotary

FloatTable = npt.NDArray[np.float32]


class Shape(NamedTuple):
    """The sizes of a network that the native code needs."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    windows: Sequence[int | None]


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


class NativeDecoder:
    """All layers of a decoder, and its heads."""

    def __init__(self, stack: Stack, norm: int, embedding: AnyWeight, heads: Heads, rotary: Rotary) -> None:
        """Prepares the passes; the library looks up a plain embedding itself."""
        self._stack, self.rotary, self.heads = stack, rotary, heads
        self._embedding = embedding
        stack.net.norm = norm
        if isinstance(embedding, Tensor):
            stack.net.embedding = embedding.data_ptr()
        stack.net.vocab = embedding.shape[0]
        self.chooser = NativeChooser(stack.library)
        self._draft_heads: dict[tuple[int, ...], NativeHead] = {}

    @property
    def library(self) -> Library:
        return self._stack.library

    def draft_head(self, token_ids: tuple[int, ...]) -> NativeHead:
        """Returns the head for guesses of these tokens, of all if there are none; made when first asked."""
        found = self._draft_heads.get(token_ids)
        if found is None:
            found = self._draft_heads[token_ids] = self.heads.make_draft_head(token_ids)
        return found

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
        turns = self.rotary.table(max(row.kv_len for row in batch.rows))
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
            pool_record(pool),
            CAUSAL,
            _address(taps),
            len(taps),
            None if features is None else features.data_ptr(),
            out.data_ptr(),
        )
        self._stack.run(self._stack.library.run_pass, record)
        return out, features

    def step_model(self, pool: KVPool, taps: Int64Array) -> TargetModel:
        """Returns the record by which native steps call this decoder; they fill in the rotations.

        The caller keeps `taps` alive, which are the feature layers.
        """
        head = self.heads.exact
        return TargetModel(
            pointer(self._stack.net),
            pointer(head.matrix),
            head.num_outputs,
            _embedding_record(self._embedding),
            pool_record(pool),
            None,
            0,
            _address(taps),
            len(taps),
        )

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
            pool_record(pool),
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
            pool_record(pool),
            self._sight,
            None,
            0,
            None,
            out.data_ptr(),
        )
        self._stack.run(self._stack.library.run_pass, record)
        return out

    def step_model(self, pool: KVPool, head: NativeHead, block: StepBlock, length: int) -> BlockModel:
        """Returns the record by which native steps call this drafter, for texts of up to `length` tokens."""
        turns = self._rotary.table(length + block.length)
        return BlockModel(
            pointer(self._stack.net),
            self._feature_projection.fc,
            self._feature_projection.norm,
            pointer(head.matrix),
            None if head.token_ids is None else head.token_ids.data_ptr(),
            head.num_outputs,
            pool_record(pool),
            turns.data_ptr(),
            turns.shape[0],
            self._sight,
            block.mask_token,
            block.length,
            block.num_depths,
            block.num_ranks,
        )

    def draw(
        self, scores: Tensor, head: NativeHead, span: DraftSpan, logprobs: FloatTable, token_ids: Int64Array
    ) -> None:
        """Writes the best candidates of each depth of a draft; the scores are changed."""
        ids = head.token_ids
        draws = Draws(
            scores.data_ptr(),
            scores.shape[0],
            scores.shape[1],
            logprobs.shape[1],
            None if ids is None else ids.data_ptr(),
            span.temperature,
            span.seed & 0xFFFFFFFFFFFFFFFF,
            span.position,
            _address(logprobs),
            _address(token_ids),
        )
        code = self._stack.library.draft_top(byref(draws), num_threads())
        assert code == 0


class DraftSpan(Protocol):
    """The draft of one row: how it samples, and the position of its first depth."""

    @property
    def temperature(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def position(self) -> int: ...


class StepBlock(NamedTuple):
    """The block that a drafter drafts in native steps."""

    mask_token: int
    length: int
    num_depths: int
    num_ranks: int


def _embedding_record(embedding: AnyWeight) -> Embedding:
    if isinstance(embedding, Tensor):
        return Embedding(floats=embedding.data_ptr())
    offsets = None if embedding.offsets is None else embedding.offsets.data_ptr()
    return Embedding(None, embedding.codes.data_ptr(), embedding.scales.data_ptr(), offsets, embedding.group)


class FeatureProjection(NamedTuple):
    """The projection of features before a block drafter's layers: a pointer to the packed product, and a
    norm.
    """

    fc: Any
    norm: int


def _plain(numbers: Tensor) -> Tensor:
    return numbers if numbers.is_contiguous() else numbers.contiguous()
