"""Run the target: one packed pass over rows of pending tokens and trees, its scores where they are judged.

Owns the decoder and its K/V pool; lends the drafter its embedding and head. It does not choose tokens
(sampler.py), does not know requests, and changes no cache but by the pass itself and `commit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wager.kvcache.commit import commit_path
from wager.kvcache.pool import KVPool
from wager.nn.models.decoder import Decoder
from wager.nn.native.choose import NativeChooser
from wager.nn.native.head import NativeHead
from wager.target.buckets import Size
from wager.target.inputs import BlindRow, Packer, PassInputs, RunRow
from wager.tree import Tree

__all__ = ["RunResult", "RunRow", "TargetRunner"]


class RunResult(NamedTuple):
    """What a pass gave: scores [judged, vocab] (None where nothing is judged), features [tokens, ...]."""

    logits: Tensor | None
    features: Tensor | None
    inputs: PassInputs
    token_ids: Tensor | None = None
    """The pass's tokens on the device, where a draft can follow it; its features are in `features_at`."""

    def row_features(self, row: int, kept: Sequence[int]) -> Tensor | None:
        """Features of a row's kept pass tokens, by their index in the row, ascending."""
        features, starts = self.features, self.inputs.starts
        if features is None or len(kept) == starts[-1]:
            return features
        start = starts[row]
        if not len(kept) or kept[-1] == len(kept) - 1:
            return features[start : start + len(kept)]
        return features[torch.tensor([start + index for index in kept], device=features.device)]


class PreparedPass(NamedTuple):
    """A pass whose tables have been sent: its rows, where they start, and its bucket."""

    rows: Sequence[RunRow]
    starts: list[int]
    size: Size


class Kept(NamedTuple):
    """Features of a row's kept tokens: these lines of a tensor, or all of them."""

    features: Tensor | None
    lines: range | None = None


class TargetRunner:
    """The target as the engine sees it."""

    has_kernels = False
    """Whether scores and passes are those of a device with kernels."""
    features_at: Tensor | None = None
    """Where captured passes write their features."""
    max_prelaunch_rows = 0
    """Most rows of a pass that is launched behind another (`run_behind`); 0: there are no such passes."""
    max_blind_rows = 0
    """Most rows whose trees a device can build in one pass (`run_blind`)."""
    max_nodes = 1 << 16
    """Most nodes of a row's tree in a pass."""

    def __init__(self, decoder: Decoder, num_pages: int, page_size: int) -> None:
        self.decoder = decoder
        self.pool = KVPool(decoder.pool_spec(num_pages, page_size))
        self.device = decoder.device
        self.vocab_size = decoder.spec.vocab_size
        self.hidden_size = decoder.spec.hidden_size
        self.num_layers = decoder.spec.num_layers
        self.feature_layers: tuple[int, ...] = ()
        """Layers whose outputs every pass returns; set once by the engine for its drafter."""
        self._packer = Packer(page_size, self.device)
        self._inference = torch.inference_mode()  # one for all passes: they are never nested

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.decoder.embed(token_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.logits(hidden)

    def draft_head(self, token_ids: tuple[int, ...]) -> NativeHead | None:
        return self.decoder.draft_head(token_ids)

    @property
    def native_chooser(self) -> NativeChooser | None:
        """The chooser of native passes; None while passes are not native."""
        native = self.decoder.native
        return None if native is None else native.chooser

    def run(self, rows: Sequence[RunRow]) -> RunResult:
        """One pass. Writes the rows' K/V behind their contexts."""
        with self._inference:
            inputs = self._packer.pack(rows)
            assert inputs.batch is not None
            layers = self.feature_layers if any(row.wants_features for row in rows) else ()
            hidden, features = self.decoder.forward(inputs.batch, self.pool, layers)
            judged = inputs.judged
            if not judged:
                return RunResult(None, features, inputs)
            if len(judged) < inputs.num_tokens:
                hidden = hidden[torch.tensor(judged, device=hidden.device)]
            return RunResult(self.decoder.logits(hidden), features, inputs)

    def run_behind(self, rows: Sequence[RunRow], chosen: Tensor, places: Sequence[int]) -> RunResult:
        """Launch a pass behind one whose choices have not been read.

        The first `len(places)` rows have one pending token each, which that pass chose at these places of
        `chosen`; the tokens of the others are known. Precondition: at most `max_prelaunch_rows` rows.
        """
        raise NotImplementedError

    def prepare(self, rows: Sequence[RunRow]) -> PreparedPass | None:
        """Send the tables of a pass while another runs; None where that is not possible.

        Any other pass overwrites them.
        """
        return None

    def run_prepared(self, prepared: PreparedPass) -> RunResult:
        """Run the pass that was prepared last."""
        raise NotImplementedError

    def run_blind(self, rows: Sequence[BlindRow], top: Tensor) -> RunResult:
        """Launch a pass whose trees the device builds from candidates that the host has not read.

        Precondition: `can_build_trees`, and no tree has more than `max_built_nodes`.
        """
        raise NotImplementedError

    def warm_blind(self, top: Tensor, num_depths: int) -> None:
        """Capture the building of trees from these candidates."""

    def can_build_trees(self, rows: Sequence[BlindRow]) -> bool:
        """Whether a device can build the trees of these rows in one pass."""
        return False

    def max_built_nodes(self, num_depths: int, num_ranks: int) -> int:
        """Most nodes of a tree that a device can build from so many candidates."""
        return 0

    def read_trees(self, rows: Sequence[BlindRow]) -> list[Tree]:
        """The trees of these rows in the latest `run_blind`; waits until they are built."""
        raise NotImplementedError

    def only(self, result: RunResult, places: Sequence[int]) -> RunResult:
        """The share of some rows, ascending, in the result of a pass without trees."""
        raise NotImplementedError

    def warm(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Capture passes before the first request; returns how many were captured."""
        return 0

    def when_idle(self) -> None:
        """Called while nothing runs, for work that must not delay a request."""

    def with_own_features(self, result: RunResult) -> RunResult:
        """The result with features that the next pass does not overwrite."""
        return result

    def kept_features(self, result: RunResult, kept: Sequence[Sequence[int]]) -> list[Kept]:
        """Features of the pass tokens of every row that stay in the cache."""
        return [Kept(result.row_features(row, indices)) for row, indices in enumerate(kept)]

    def commit(self, result: RunResult, kept: Sequence[Sequence[int]]) -> int:
        """Make the cache equal to the verdict.

        `kept[r]` are the places of row r's tokens that stay, ascending. Precondition: `result` is of the
        latest pass.
        """
        for indices in kept:
            if indices[-1] >= len(indices):
                break
        else:
            return 0  # accepted chains and plain rows are in their places already
        with self._inference:
            return self._move(result.inputs, kept)

    def commit_behind(self, kept: Tensor) -> None:
        """Do the same with the accepted tokens that a device kernel has found.

        `kept` is [3, rows, tokens]: their positions, slots and places in the latest pass; slots are below 0
        behind the last token of a row.
        """
        raise NotImplementedError

    def _move(self, inputs: PassInputs, kept: Sequence[Sequence[int]]) -> int:
        return commit_path(self.pool, inputs.row_slots, kept)
