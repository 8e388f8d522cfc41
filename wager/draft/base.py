"""The contract of every drafter, and the records that the engine hands to it.

A drafter proposes tokens for rows. It never writes to the target's K/V cache, and it does not decide how many
of its guesses are verified. `Drafter` has a small core: `can_propose`, `propose`, `keep` and `forget`.
Everything else has a default. A drafter that can run ahead on a device also has a `DeviceDrafting` (the
`device` attribute). A proposal may be wrong in any way: `checked.py` looks at everything that a drafter
returns, and a faulty answer costs its rows their bets but never changes a text. docs/drafters.md shows a
complete example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from wager.kvcache.pool import KVPool, PageIds
from wager.nn.kernels.capture import GraphCache
from wager.nn.native.head import NativeHead
from wager.nn.native.loader import NativeNetwork
from wager.nn.native.steps import BlockModel
from wager.nn.noise import NoiseSource


class TargetInterface(Protocol):
    """The parts of the target that a drafter may use: its embedding, its output head and their sizes."""

    vocab_size: int
    hidden_size: int
    num_layers: int

    @property
    def device(self) -> object: ...

    def embed(self, token_ids: Tensor) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...

    def draft_head(self, token_ids: tuple[int, ...]) -> NativeHead | None:
        """Returns the native head for guesses of these tokens (all tokens if there are none).

        Its scores are precise enough for guesses. None while the target's passes are not native.
        """
        ...


class PoolShape(NamedTuple):
    """The sizes of the target's K/V pool; a drafter's pool has as many pages, so a page number fits both."""

    num_pages: int
    page_size: int
    max_context: int = 0
    """The number of tokens of the longest text; 0 means as many as the pages hold."""


class DraftRow(NamedTuple):
    """One row that asks for guesses behind its last pending token.

    A guess at depth d (1 is the first) is for the absolute position `len(tokens) - 1 + d`.
    """

    request_id: Hashable
    tokens: Sequence[int]
    """The whole sequence: prompt and output, with the pending tokens at the end."""
    num_pending: int
    """The number of tokens at the end of `tokens` that are not in the target's cache yet."""
    pages: PageIds
    """The row's pages; slots behind the cached tokens belong to this row alone."""
    temperature: float = 0.0
    seed: int = 0
    depth: int = 0
    """The number of guesses that are wanted; 0 means as many as the drafter usually makes."""


class Proposal(NamedTuple):
    """The candidates for the next tokens, by depth and rank; rank 0 is the best candidate."""

    token_ids: npt.NDArray[np.int64]
    """Token ids [depths, ranks]."""
    logprobs: npt.NDArray[np.float32] | None
    """Log-probabilities [depths, ranks], of the noised and scaled scores where the row samples; None means
    that the proposal is one chain without probabilities."""
    spine_only: bool = False
    """Whether deeper guesses assume rank 0 at every depth above them, as in an autoregressive drafter."""


class KeptTokens(NamedTuple):
    """Tokens of one row that are in the target's cache now, with the features that the pass gave them."""

    request_id: Hashable
    start: int
    """The absolute position of the first token; the others follow without a gap."""
    features: Tensor | None
    """Features [tokens, size], or None if the drafter has no `feature_layers`; nobody else writes to them."""
    pages: PageIds
    lines: range | None = None
    """The row's lines of `features` if other rows share that tensor; None means all lines."""
    to_be_shared: bool = False
    """Whether the engine shares the row's pages next and therefore calls `prepare_sharing`."""


class Drafter(ABC):
    """A source of guesses. Only `name` and `propose` are required.

    A drafter with a network of its own also overrides `networks`, `pools` and `forget`; a drafter that reads
    the target's hidden features sets `feature_layers` and overrides `keep`. State belongs to a request: after
    `forget`, nothing of the request's old state may be used.
    """

    name: str
    """The name in policies, metrics and recorded traces."""
    feature_layers: tuple[int, ...] = ()
    """The target layers (0-based) whose outputs `keep` receives; at most one drafter of an engine has any."""
    uses_noise = False
    """Whether its scores include the target's own noise; only such a drafter can be recorded as a trace."""
    runs_no_network = False
    """Whether `propose` returns without running a network, so that asking costs almost no time."""
    device: DeviceDrafting | None = None
    """The part that runs ahead on a device; None if this drafter has none."""

    @property
    def native(self) -> NativeDrafting | None:
        """The part that drafts within native steps on a CPU; None if this drafter has none, or not yet."""
        return None

    # -- the core: propose, keep up, forget

    def can_propose(self, row: DraftRow) -> bool:
        """Returns whether `propose` would have guesses for this row now.

        The engine asks before every bet, so the answer must be cheap.
        """
        return True

    @abstractmethod
    def propose(self, rows: Sequence[DraftRow], noise: NoiseSource) -> list[Proposal | None]:
        """Returns guesses for every row, in order, and None for a row without a guess.

        A drafter with a network serves all rows in one pass.
        """

    def keep(self, kept: Sequence[KeptTokens]) -> None:
        """Takes in tokens that are now in the target's cache; called for every row that may draft,
        whether it drafted or not.

        The call should be cheap: real work can wait until the next `propose`.
        """
        return

    def forget(self, request_id: Hashable) -> None:
        """Drops all state of a request that has ended or has lost its pages."""
        return

    # -- optional: better information for the policy

    def grade(self, row: DraftRow) -> str:
        """Returns the kind of draft that this row would get; "" if all drafts of this drafter are alike.

        The policy learns the worth of each grade separately. Precondition: `can_propose(row)`.
        """
        return ""

    def continuation(self, row: DraftRow, num_accepted: int) -> Sequence[int] | None:
        """Returns the token behind the first `num_accepted` guesses, and what would be guessed behind it.

        For drafters that copy text: they know the continuation before the target has confirmed the guesses.
        None means that it is not known.
        """
        return None

    def better_match(self, row: DraftRow) -> int:
        """Returns the length of a repeated tail from which this drafter would propose something better.

        For drafters that copy text: native steps end where that occurs. 0 means never.
        """
        return 0

    # -- optional: contexts that several requests share

    def adopt(self, request_id: Hashable, num_tokens: int) -> None:
        """A request starts, and its first `num_tokens` tokens are in pages that were shared with it."""
        self.forget(request_id)

    def prepare_sharing(self, request_id: Hashable, pages: PageIds, num_tokens: int) -> bool:
        """Brings the context of the first `num_tokens` tokens up to date before their pages are shared.

        Returns whether a request that starts from these pages needs nothing else. By default that is so
        unless this drafter reads features, which a request that starts from shared pages never sees.
        """
        return not self.feature_layers

    def copy_pages(self, source: PageIds, target: PageIds) -> None:
        """Copies what this drafter stores in the source pages to the target pages."""
        for pool in self.pools():
            pool.copy_pages(source, target)

    # -- optional: what the engine has to know about it

    def networks(self) -> Sequence[NativeNetwork]:
        """Returns the networks that this drafter owns, so that they can change to native passes."""
        return ()

    def pools(self) -> Sequence[KVPool]:
        """Returns the pools that this drafter owns; each has as many pages as the target's pool."""
        return ()

    def describe(self) -> dict[str, object]:
        """Returns the effective values for `wager doctor` and `/props`."""
        return {"drafter": self.name}


class NativeDrafting(ABC):
    """Optional: the part of a drafter that drafts within several native steps on a CPU.

    The library drafts, reads in features and chooses nodes by itself (nn/native/steps.py). The drafter only
    says with what, and takes its contexts over afterwards.
    """

    @abstractmethod
    def begin(self, rows: Sequence[DraftRow], max_len: int) -> BlockModel | None:
        """Brings the contexts of these rows up to date, and returns what the library drafts with.

        None means that some row cannot draft so. `max_len` is the length that no text exceeds.
        """

    @abstractmethod
    def end(self, request_id: Hashable, num_read: int) -> None:
        """Tells that the library has made the first `num_read` tokens of a row its context.

        `keep` is called for the tokens behind them.
        """


class InFlightRow(NamedTuple):
    """A row whose verify pass is in flight on a device and whose verdict the host has not read."""

    row: DraftRow
    """The row as it was before the pass."""
    parents: Sequence[int]
    """The parent of each node of the row's tree, -1 for the root."""
    max_depth: int
    first_token: int
    """The index of the row's first token among the tokens of the pass."""
    first_choice: int
    """The index of the choice behind the row's root among all choices of the pass."""

    @property
    def context_len(self) -> int:
        return len(self.row.tokens) - self.row.num_pending


class InFlightPass(NamedTuple):
    """A verify pass in flight, with those of its rows that drafted."""

    rows: Sequence[InFlightRow]
    chosen: Tensor
    """The target's choices behind the root and every node of all rows, on the device."""
    token_ids: Tensor
    """The tokens of the pass, on the device."""


class UnreadDraft(NamedTuple):
    """A draft in flight on a device that the host has not read: where its candidates will be.

    Its tokens never pass `checked.py`, so a device drafter must only write ids of the vocabulary.
    """

    top: Tensor
    """Log-probabilities in descending order, and tokens: [lines, 2, ranks] float32."""
    lines: Sequence[int]
    """The line of each row's first depth; the other depths follow."""
    depths: Sequence[int]
    """The number of depths of each row."""


class WarmDevice(NamedTuple):
    """What a device drafter is after its warm-up."""

    num_graphs: int
    top: Tensor
    """The tensor that every `UnreadDraft.top` will be."""
    max_depth: int


class DeviceDrafting(ABC):
    """Optional: the part of a drafter that starts work on a device before the host needs the result.

    The engine only uses it with a target whose passes run by kernels. Whatever is started here is a
    prelaunch: the engine may ask `propose` for something else afterwards, or for nothing. A method that
    cannot do its work for these rows returns None, and the engine goes on without a prelaunch.
    """

    graphs: GraphCache
    """The captured passes of this drafter, for the profiler."""

    @abstractmethod
    def warm(self, target_features: Tensor | None) -> WarmDevice:
        """Captures and compiles every pass; `target_features` is where the target's passes leave features."""

    @abstractmethod
    def start(self, rows: Sequence[DraftRow]) -> None:
        """Starts the draft that `propose` will probably be asked for next, without waiting for it."""

    @abstractmethod
    def begin_unread(self, rows: Sequence[DraftRow]) -> UnreadDraft | None:
        """Starts the draft that `propose` would return for these rows, without waiting for it."""

    @abstractmethod
    def follow(self, verified: InFlightPass) -> Tensor | None:
        """Starts the next draft of rows behind their verify pass, before the host has read the verdict.

        After that, `confirm` tells the verdict of each row, and `keep` is not called for these rows. Returns
        the tokens that the device finds accepted: [3, rows, tokens] with position, slot and index in the
        pass; slots behind a row's last token are negative.
        """

    @abstractmethod
    def confirm(self, request_id: Hashable, context_len: int, pending: int) -> None:
        """Tells the verdict on a row that `follow` served: its cached tokens and its next pending token."""
