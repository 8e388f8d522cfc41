"""The one interface of every policy, and the records that pass through it.

A policy is asked twice per step: `offer` before drafting (run a drafter at all, and for which rows?) and
`arrange` after it (which of these guesses are worth a place in the pass?), or `blind` before, where a device
would stand idle for the answer; then it is told what happened (`learn`). It knows log-probabilities, times
and verdicts, never tokens or tensors. The controller calls it; the replay engine and the real engine drive
the controller in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from wager.tree import Forest, build_forest

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

UNLIMITED = 1 << 30


class Row(NamedTuple):
    """What a policy may know of a row before anything is drafted for it."""

    request_id: Hashable
    context_len: int = 0
    phase: str = ""
    num_pending: int = 1
    max_nodes: int = UNLIMITED
    max_depth: int = UNLIMITED
    target_p1: float | None = None
    """The target's probability of its own last token; None where nobody measured it."""
    drafters: tuple[str, ...] = ("draft",)
    """Drafters that can propose for this row now."""
    grades: tuple[str, ...] = ()
    """Of each drafter what its draft would be like, as far as that is known beforehand; (): of none."""
    emits: bool = True
    """False for a prompt chunk that is not the last: it takes part in the pass and yields no token."""
    nodes: int = 0
    """Guesses that the request itself asked for; 0: the policy decides."""

    def phase_of(self, drafter: str) -> str:
        """The phase of its text and the grade of such a draft: what drafts are worth is learned by both."""
        if not self.grades or drafter not in self.drafters:
            return self.phase
        return self.phase + self.grades[self.drafters.index(drafter)]


class Offer(NamedTuple):
    """The first decision for a row: the drafter to run (None: plain decoding) and how deep (0: in full)."""

    drafter: str | None = None
    depth: int = 0


PLAIN = Offer()


@dataclass(frozen=True, slots=True)
class Draft:
    """What a drafter proposed for a row: log-probabilities by depth and rank, the best rank first."""

    drafter: str
    num_depths: int
    logprobs: npt.NDArray[np.floating] | None = None
    """[depths, ranks]; None for a drafter without probabilities of its own, which proposes one chain."""
    spine_only: bool = False
    """Deeper guesses follow rank 0 alone (an autoregressive drafter), so other ranks cannot have children."""
    has_come: bool = False
    """Among drafts under way (`Policy.blind`): its guesses are there, and have no probabilities."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A draft set against the tokens emitted later."""

    drafter: str
    phase: str
    logprobs: npt.NDArray[np.floating] | None
    """[known depths, ranks], cut behind the first depth whose token was not among the ranks."""
    ranks: npt.NDArray[np.integer]
    """The rank, at each known depth, of the token really emitted; -1: not among them."""
    spine_only: bool = False
    watched: Hashable | None = None
    """The request of a draft that nobody bet on, made to see what it would have been worth; None: of a bet.
    """


class RowOutcome(NamedTuple):
    """One row's share of a step that has been taken."""

    row: Row
    offer: Offer
    num_nodes: int
    accepted: int
    emitted: int
    """Tokens that count: a row that ended inside its accepted path emitted fewer than accepted + 1, a prompt
    chunk none."""
    ended_at_leaf: bool = False
    """The accepted path ended where nothing deeper was offered: a full acceptance, censored data."""


class StepOutcome(NamedTuple):
    """What a step cost and yielded; times are the engine's own, device-synchronised, without the caller's."""

    rows: Sequence[RowOutcome]
    num_tokens: int
    """Tokens in the target's pass: pending tokens and nodes of all rows."""
    verify_ms: float
    draft_ms: float = 0.0
    evidence: Sequence[Evidence] = ()
    is_typical: bool = True
    """Whether it ran as steps of its kind do; else its time says nothing of theirs."""
    overlaps: bool = False
    """Whether a device ran beside the host: both times tell where the host was, their sum what the step took.
    """


class Prediction(NamedTuple):
    """What the policy expected of the step it just arranged."""

    tokens: float
    time_ms: float


class Blind(NamedTuple):
    """A bet made before its draft is seen: so many nodes for each row, the most probable ones."""

    nodes: Sequence[int]
    weights: Sequence[tuple[float, float, float] | None]
    """Of each row's calibration, by which they are chosen (calibration.py); None: the drafter's own word."""
    is_chain: bool = False
    """Rank 0 alone."""


MANY = 8
"""Rows from which on a step is a crowd's: there is less to be gained, and asking everybody takes time."""


def crowd_of(num_rows: int) -> int:
    """How crowded a step is, in octaves of rows: 0 for 1, 1 for 2, 2 for 3 and 4, 3 for 5 to 8, ..."""
    return max(num_rows - 1, 0).bit_length()


class Coming(NamedTuple):
    """A step that comes, as far as it is known before anybody has looked at its rows."""

    num_rows: int
    num_tokens: int
    """Pending ones of all rows."""
    left: int = UNLIMITED
    """Guesses that the row with most to write may still take."""
    ahead: int = 0
    """0 for the step that is being planned, 1 for the one behind a step under way."""


class Policy(Protocol):
    """How much to guess. `name` is what `make_policy` would take to build it again."""

    name: str
    learns_late: bool
    """Whether it may be told of a step after it was asked for the next one's offers."""

    def rests(self, coming: Coming) -> bool:
        """Whether a step is plain whatever drafters could do; then none need be asked."""
        ...

    def suffices(self, drafter: str, coming: Coming) -> bool:
        """Whether no drafter behind this one need be asked of a row for which it can propose."""
        ...

    def offer(self, rows: Sequence[Row]) -> list[Offer]:
        """Which drafter to run for each row; PLAIN where none is worth its pass."""
        ...

    def arrange(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        """The nodes to verify, over all rows, best first. A row without a draft has none."""
        ...

    def blind(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        """The nodes to verify of drafts under way, which are described but for their probabilities.

        Asked behind `offer` where a device can begin such a pass by itself; None: it waits for `arrange`.
        """
        ...

    def saw(self, rows: Sequence[Row], drafts: Sequence[Draft | None], nodes: Sequence[int]) -> None:
        """The drafts that it bet on blindly, and the nodes of each row: in place of `arrange`."""
        ...

    def learn(self, outcome: StepOutcome) -> None:
        """Take in a finished step. Called once for every step, plain ones too."""
        ...

    def forget(self, request_id: Hashable) -> None:
        """The request has ended: drop what was kept for it alone."""
        ...


Increments = Callable[[int, Draft], FloatArray]


def raw_increments(_row: int, draft: Draft) -> FloatArray:
    """The drafter's own word: its log-probabilities, or certainty where it has none."""
    if draft.logprobs is None:
        return np.zeros((draft.num_depths, 1))
    return np.minimum(np.asarray(draft.logprobs, np.float64), 0.0)


def stack_scores(drafts: Sequence[Draft | None], increments: Increments = raw_increments) -> FloatArray:
    """[rows, depths, ranks] for the builder; -inf where a row has nothing to offer."""
    if len(drafts) == 1 and drafts[0] is not None:
        return increments(0, drafts[0])[None]
    parts = [None if draft is None else increments(i, draft) for i, draft in enumerate(drafts)]
    depths = max((part.shape[0] for part in parts if part is not None), default=0)
    ranks = max((part.shape[1] for part in parts if part is not None), default=0)
    scores = np.full((len(parts), depths, ranks), -np.inf)
    for i, part in enumerate(parts):
        if part is not None:
            scores[i, : part.shape[0], : part.shape[1]] = part
    return scores


class Limits(NamedTuple):
    """Per-row ceilings in the builder's words; None where no row has one that bites."""

    row_caps: IntArray | None
    max_depths: IntArray | None
    spine_only: npt.NDArray[np.bool_] | None


def limits_of(rows: Sequence[Row], drafts: Sequence[Draft | None], cap: int = UNLIMITED) -> Limits:
    """Ceilings of these rows; `cap` is a further one that the policy puts on every row."""
    if len(rows) == 1 and cap == UNLIMITED and _unlimited(rows[0], drafts[0]):
        return _NO_LIMITS
    caps = [min(row.max_nodes, cap) for row in rows]
    depths = [row.max_depth for row in rows]
    spine = [draft is not None and draft.spine_only for draft in drafts]
    deepest = max((draft.num_depths for draft in drafts if draft is not None), default=0)
    return Limits(
        np.array(caps) if min(caps, default=UNLIMITED) < UNLIMITED else None,
        np.array(depths) if min(depths, default=UNLIMITED) < deepest else None,
        np.array(spine) if any(spine) else None,
    )


_NO_LIMITS = Limits(None, None, None)


def _unlimited(row: Row, draft: Draft | None) -> bool:
    free = row.max_nodes >= UNLIMITED
    return free and (draft is None or (row.max_depth >= draft.num_depths and not draft.spine_only))


def fixed_forest(rows: Sequence[Row], drafts: Sequence[Draft | None], nodes: int, *, chain: bool) -> Forest:
    """The same number of nodes for every row that has a draft: a chain of rank 0, or the best-first tree."""
    scores = stack_scores(drafts)
    if chain:
        scores = np.where(np.isneginf(scores[:, :, :1]), -np.inf, 0.0)
    limits = limits_of(rows, drafts, nodes)
    return build_forest(
        scores,
        nodes * len(rows),
        row_caps=limits.row_caps,
        max_depths=limits.max_depths,
        spine_only=limits.spine_only,
        chain_only=chain,
    )


def fixed_blind(rows: Sequence[Row], drafts: Sequence[Draft | None], nodes: int, *, chain: bool) -> Blind:
    """The same without having seen the drafts, by the drafters' own word."""
    most = [
        0 if draft is None else min(nodes, row.max_nodes) for row, draft in zip(rows, drafts, strict=True)
    ]
    return Blind(most, [None] * len(rows), chain)
