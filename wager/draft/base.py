"""The contract of every drafter, and what the engine hands it.

A drafter proposes tokens for rows; it never touches the target's K/V and never decides how much is verified.
Its state follows the sequences: `keep` gives it the features of tokens that now stand in the target's cache,
`forget` ends a request. A drafter that fails raises; the engine turns those rows to a zero bet and counts it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from wager.kvcache.pool import PageIds
from wager.nn.noise import NoiseSource


class TargetFace(Protocol):
    """What a drafter may borrow from the target: its embedding and head, and their measures."""

    vocab_size: int
    hidden_size: int
    num_layers: int

    @property
    def device(self) -> object: ...

    def embed(self, token_ids: Tensor) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...

    def rough_logits(self, hidden: Tensor) -> Tensor:
        """Good enough for guesses: the head's weights may be narrower than those the target itself uses."""
        ...


class PoolShape(NamedTuple):
    """The measures of the target's pool: a drafter's own has the same, so that a page means both."""

    num_pages: int
    page_size: int
    max_context: int = 0
    """Tokens of the longest text; 0: as many as the pages hold."""


class DraftRow(NamedTuple):
    """One row that asks for guesses behind its last pending token.

    `tokens` is the whole sequence so far, prompt and output, pending ones included; the first
    `len(tokens) - num_pending` of them are in the target's cache. A guess at depth d is for the absolute
    position len(tokens) - 1 + d.
    """

    request_id: Hashable
    tokens: Sequence[int]
    num_pending: int
    pages: PageIds
    """The row's pages: they cover the cached tokens; slots behind those are this row's own."""
    temperature: float = 0.0
    seed: int = 0
    depth: int = 0
    """Guesses wanted; 0: as many as the drafter makes of itself."""


class VerifiedRow(NamedTuple):
    """A row whose pass is under way on a device, its verdict not yet read."""

    row: DraftRow
    """As it was before the pass."""
    parents: Sequence[int]
    """Of each node of its tree, -1 for the root."""
    max_depth: int
    first_token: int
    """Its first token in the pass,"""
    first_choice: int
    """and the choice behind its root among all that are made of it."""

    @property
    def context_len(self) -> int:
        return len(self.row.tokens) - self.row.num_pending


class Verified(NamedTuple):
    """A pass under way, and those of its rows that drafted."""

    rows: Sequence[VerifiedRow]
    chosen: Tensor
    """The target's choices behind the root and every node of all rows, on the device."""
    token_ids: Tensor
    """The tokens of the pass, on the device."""


class Proposal(NamedTuple):
    """Candidates by depth and rank, the best rank first."""

    token_ids: npt.NDArray[np.int64]
    """[depths, ranks]"""
    logprobs: npt.NDArray[np.float32] | None
    """[depths, ranks], of the noised, scaled scores where the row samples; None: one chain without any."""
    spine_only: bool = False
    """Deeper depths assume rank 0 above them (an autoregressive drafter)."""

    @property
    def is_broken(self) -> bool:
        """Whether a score is no number: nothing can be ranked by it."""
        if self.logprobs is None or not self.logprobs.size:
            return False
        return bool(np.isnan(np.minimum.reduce(self.logprobs, axis=None)))


class Unseen(NamedTuple):
    """A draft under way on a device: where its candidates will be."""

    top: Tensor
    """[lines, 2, ranks] float32: log-probabilities, descending, and tokens."""
    lines: Sequence[int]
    """Of each row the line of its first depth; the others follow."""
    depths: Sequence[int]


class KeptTokens(NamedTuple):
    """Tokens of one row that now stand in the target's cache, with the features the pass gave them."""

    request_id: Hashable
    start: int
    """Absolute position of the first one; the others follow without a gap."""
    features: Tensor | None
    """[tokens, features], or None where the drafter asked for none. Handed over: nobody writes to it."""
    pages: PageIds
    lines: range | None = None
    """Which lines of `features` are the row's, where it is shared with other rows; None: all."""
    to_be_shared: bool = False
    """Whether the row's pages are shared next, which its context must be ready for (`settle`)."""


class Drafter(Protocol):
    """Makes guesses for many rows in one pass."""

    name: str
    feature_layers: tuple[int, ...]
    """Target layers (0-based) whose outputs it wants; () for none."""
    uses_noise: bool
    """Whether its scores include the target's own noise (design: the drafter uses the same noise)."""
    is_instant: bool
    """Whether its guesses are there as soon as they are asked for: it runs no network."""

    def can_draft(self, row: DraftRow) -> bool:
        """Cheap: whether `draft` would propose anything for this row now. Called before every bet."""
        ...

    def grade(self, row: DraftRow) -> str:
        """What kind of draft this row would get, where some are worth more; "" where all are alike.

        What drafts are worth is learned for each grade apart. Precondition: `can_draft`.
        """
        ...

    def draft(self, rows: Sequence[DraftRow], noise: NoiseSource) -> list[Proposal | None]:
        """Guesses for every row, in order; None where it has none. Rows share a pass where there is one."""
        ...

    def goes_on(self, row: DraftRow, num_stood: int) -> Sequence[int] | None:
        """What `draft` would guess for this row if its first `num_stood` guesses and the next stood.

        That next one first; as far as it can be known without them. None where it cannot.
        """
        ...

    def start(self, rows: Sequence[DraftRow]) -> None:
        """Begin what `draft` will probably be asked next, where that can be done without waiting for it.

        Only a start: `draft` may be asked something else, or nothing.
        """
        ...

    def unseen(self, rows: Sequence[DraftRow]) -> Unseen | None:
        """The draft that `draft` would give these rows, begun and not waited for; None where it cannot be."""
        ...

    def follow(self, verified: Verified) -> Tensor | None:
        """Begin the next draft of rows behind their pass, on the device alone; None where that cannot be.

        Where it can, `confirm` says what each verdict was, and `keep` leaves these rows out. Returns what
        stands as the device will know it: [3, rows, tokens], the position, slot and place in the pass of
        each, slots below 0 behind the last.
        """
        ...

    def confirm(self, request_id: Hashable, context_len: int, pending: int) -> None:
        """The verdict on a row that a draft has followed: tokens in the cache now, the next pending one."""
        ...

    def keep(self, kept: Sequence[KeptTokens]) -> None:
        """Called at commit for every row, drafted or not. Cheap: work is put off until the next draft."""
        ...

    def settle(self, request_id: Hashable, pages: PageIds, num_tokens: int) -> bool:
        """Bring the context of the first `num_tokens` up to date before their pages are shared.

        True when a request that starts from these pages finds the drafter's context there.
        """
        ...

    def adopt(self, request_id: Hashable, num_tokens: int) -> None:
        """A request starts with `num_tokens` taken over from shared, settled pages (0: from nothing)."""
        ...

    def relocate(self, source: PageIds, target: PageIds) -> None:
        """Pages were copied: what this drafter keeps at `source` is wanted at `target` too."""
        ...

    def forget(self, request_id: Hashable) -> None:
        """The request has ended or lost its pages."""
        ...

    def describe(self) -> dict[str, object]:
        """Effective values for `wager doctor` and `/props`."""
        ...


class HostDrafter:
    """What a drafter need not do whose guesses are the host's: begin early, or keep what the target saw."""

    is_instant = False

    def grade(self, row: DraftRow) -> str:
        """All alike."""
        return ""

    def goes_on(self, row: DraftRow, num_stood: int) -> Sequence[int] | None:
        """Not known beforehand."""
        return None

    def start(self, rows: Sequence[DraftRow]) -> None:
        """Nothing is begun before it is asked for."""

    def unseen(self, rows: Sequence[DraftRow]) -> Unseen | None:
        """There is nothing that the host has not seen."""
        return None

    def follow(self, verified: Verified) -> Tensor | None:
        """Nothing is drafted on a device alone."""
        return None

    def confirm(self, request_id: Hashable, context_len: int, pending: int) -> None:
        """Nothing was begun."""

    def keep(self, kept: Sequence[KeptTokens]) -> None:
        """Nothing to keep: tokens are read from the rows that ask."""
