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
from wager.target.buckets import Size
from wager.target.inputs import Packer, PassInputs, RunRow, UnseenRow
from wager.tree import Tree

__all__ = ["RunResult", "RunRow", "TargetRunner"]


class RunResult(NamedTuple):
    """What a pass gave: scores [judged, vocab] (None where nothing is judged), features [tokens, ...]."""

    logits: Tensor | None
    features: Tensor | None
    inputs: PassInputs
    token_ids: Tensor | None = None
    """The pass's tokens on a device where a draft can follow it: its features then lie in `features_at`."""

    def row_features(self, row: int, kept: Sequence[int]) -> Tensor | None:
        """Features of a row's kept pass tokens, by their index in the row, ascending."""
        features, starts = self.features, self.inputs.starts
        if features is None or len(kept) == starts[-1]:
            return features
        start = starts[row]
        if len(kept) and kept[-1] == len(kept) - 1:
            return features[start : start + len(kept)]
        return features[torch.tensor([start + index for index in kept], device=features.device)]


class Laid(NamedTuple):
    """A pass whose tables are sent: its rows, where they start, and its bucket."""

    rows: Sequence[RunRow]
    starts: list[int]
    size: Size


class Kept(NamedTuple):
    """Features of a row's kept tokens: these lines of a tensor, or the whole of it."""

    features: Tensor | None
    lines: range | None = None


class TargetRunner:
    """The target as the engine sees it."""

    has_kernels = False
    """Whether scores and passes are those of a device with kernels."""
    features_at: Tensor | None = None
    """Where captured passes leave their features."""
    max_behind = 0
    """Rows that a pass begun behind another may have (`run_behind`); 0: there are no such passes."""
    max_unseen = 0
    """Rows whose trees a device can build in one pass (`run_unseen`)."""
    max_nodes = 1 << 16
    """Nodes that a row's tree may have in a pass."""

    def __init__(self, decoder: Decoder, num_pages: int, page_size: int) -> None:
        self.decoder = decoder
        self.pool = KVPool(decoder.pool_spec(num_pages, page_size))
        self.device = decoder.device
        self.vocab_size = decoder.spec.vocab_size
        self.hidden_size = decoder.spec.hidden_size
        self.num_layers = decoder.spec.num_layers
        self.feature_layers: tuple[int, ...] = ()
        """Layers whose outputs every pass hands out; set once by the engine for its drafter."""
        self._packer = Packer(page_size, self.device)
        self._inference = torch.inference_mode()  # one for all passes: they are never nested

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.decoder.embed(token_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.logits(hidden)

    def rough_logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.rough_logits(hidden)

    def run(self, rows: Sequence[RunRow]) -> RunResult:
        """One pass. Writes the rows' K/V behind their contexts."""
        with self._inference:
            inputs = self._packer.pack(rows)
            assert inputs.batch is not None
            hidden, features = self.decoder.forward(inputs.batch, self.pool, self.feature_layers)
            judged = inputs.judged
            if not judged:
                return RunResult(None, features, inputs)
            if len(judged) < inputs.num_tokens:
                hidden = hidden[torch.tensor(judged, device=hidden.device)]
            return RunResult(self.decoder.logits(hidden), features, inputs)

    def run_behind(self, rows: Sequence[RunRow], chosen: Tensor, places: Sequence[int]) -> RunResult:
        """A pass of rows with one pending token each, which the pass before chose at these places.

        The tokens are on the device alone; nobody waits. Precondition: at most `max_behind` rows.
        """
        raise NotImplementedError

    def lay(self, rows: Sequence[RunRow]) -> Laid | None:
        """Make a pass ready behind the one under way; None where that cannot be. Any other pass undoes it."""
        return None

    def run_laid(self, laid: Laid) -> RunResult:
        """The pass that was laid last."""
        raise NotImplementedError

    def run_unseen(self, rows: Sequence[UnseenRow], top: Tensor) -> RunResult:
        """A pass whose trees the device itself builds, of candidates that only it knows; nobody waits.

        Precondition: `can_build`, and no tree has more than `unseen_nodes`.
        """
        raise NotImplementedError

    def warm_unseen(self, top: Tensor, num_depths: int) -> None:
        """Make ready for passes over trees that are built of these candidates."""

    def can_build(self, rows: Sequence[UnseenRow]) -> bool:
        """Whether a device can build the trees of these rows in one pass."""
        return False

    def unseen_nodes(self, num_depths: int, num_ranks: int) -> int:
        """Nodes that it can build of so many candidates."""
        return 0

    def unseen_trees(self, rows: Sequence[UnseenRow]) -> list[Tree]:
        """The trees of these rows in the pass that `run_unseen` began last, once they are built."""
        raise NotImplementedError

    def only(self, result: RunResult, places: Sequence[int]) -> RunResult:
        """The result of a pass of plain rows as that of some of them, ascending. Precondition: as above."""
        raise NotImplementedError

    def warm(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Make passes ready before the first request; returns how many were captured."""
        return 0

    def when_idle(self) -> None:
        """Called while nothing runs: for what must not hold up a request."""

    def with_own_features(self, result: RunResult) -> RunResult:
        """What a pass gave, with features that the next one does not overwrite."""
        return result

    def kept_features(self, result: RunResult, kept: Sequence[Sequence[int]]) -> list[Kept]:
        """Features of every row's kept pass tokens."""
        return [Kept(result.row_features(row, indices)) for row, indices in enumerate(kept)]

    def commit(self, result: RunResult, kept: Sequence[Sequence[int]]) -> int:
        """Make the cache equal to the verdict: `kept[r]` are row r's pass tokens that stand, ascending.

        Precondition: `result` is of the latest pass.
        """
        for indices in kept:
            if indices[-1] >= len(indices):
                break
        else:
            return 0  # chains and plain rows stand where they are
        with self._inference:
            return self._move(result.inputs, kept)

    def commit_behind(self, kept: Tensor) -> None:
        """The same of the tokens that the device finds to stand: [3, rows, tokens], their positions, slots
        (below 0 behind the last of a row) and places in the latest pass."""
        raise NotImplementedError

    def _move(self, inputs: PassInputs, kept: Sequence[Sequence[int]]) -> int:
        return commit_path(self.pool, inputs.row_slots, kept)
