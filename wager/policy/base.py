"""The one interface of every policy, and the records that pass through it.

A policy is asked twice per step: `plan` before drafting (run a drafter at all, and for which rows?) and
`arrange` after it (which of these guesses are worth a place in the pass?). Where a device would stand idle
between the two, `blind_bet` fixes the number of guesses before the draft is read. None of the three changes
the policy, so they may be called early and their answers kept; `learn` takes in what happened. A policy
knows log-probabilities, times and verdicts, never tokens or tensors. Callers: the controller, on behalf of
the engine and of the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
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
    """The part of the text that the row is in, for example its reasoning."""
    num_pending: int = 1
    max_nodes: int = UNLIMITED
    max_depth: int = UNLIMITED
    target_p1: float | None = None
    """The target's probability of its own last token; None where it was not measured."""
    drafters: tuple[str, ...] = ("draft",)
    """Drafters that can propose for this row now."""
    grades: tuple[str, ...] = ()
    """The grade of each drafter's coming draft, where it is known beforehand; () where all are alike."""
    emits: bool = True
    """False for a prompt chunk that is not the last: it takes part in the pass and yields no token."""
    nodes: int = 0
    """Guesses that the request itself asked for; 0 leaves the choice to the policy."""
    native: bool = False
    """Whether native code can take several steps of this row, with little work for the host."""

    @property
    def can_draft(self) -> bool:
        """Whether some drafter can propose for this row and the row can use it."""
        return bool(self.drafters) and self.emits and min(self.max_depth, self.max_nodes) > 0

    def phase_of(self, drafter: str) -> str:
        """The phase joined with the grade of this drafter's coming draft: yields are learned by both."""
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
    """Whether only rank 0 may have children, as with an autoregressive drafter."""
    has_come: bool = False
    """Whether the guesses of this draft are known already, among drafts still in flight (`blind_bet`)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A draft compared with the tokens emitted later."""

    drafter: str
    phase: str
    logprobs: npt.NDArray[np.floating] | None
    """[known depths, ranks], cut behind the first depth whose token was not among the ranks."""
    ranks: npt.NDArray[np.integer]
    """The rank, at each known depth, of the token really emitted; -1: not among them."""
    spine_only: bool = False
    request_id: Hashable | None = None
    """The request that the draft was made for; None where it is not known."""


class Prediction(NamedTuple):
    """What a policy expects of a step that it planned."""

    tokens: float
    time_ms: float


class Reason(StrEnum):
    """Why a step verified no guess."""

    UNMEASURED = "unmeasured"
    """The times of passes are not known yet."""
    NO_DRAFT = "no draft"
    """No drafter could propose anything, or none was asked."""
    NO_ROOM = "no room"
    """The pass has no room for a guess whose cost is known."""
    PRICE = "price"
    """The best draft was expected to gain less than it costs, and no exploration was due."""
    LEDGER = "ledger"
    """The ledger did not allow the loss that the draft risked."""
    TIMING = "timing"
    """The time of a plain pass was measured again."""
    SCORES = "scores"
    """A draft was made, and none of its guesses was worth verifying."""
    RULE = "rule"
    """The policy decided so without giving a reason."""


class Declined(NamedTuple):
    """Why a plan drafts for nobody, with the best draft in plain steps where there was one."""

    reason: Reason
    gain: float = 0.0
    """Tokens that it was expected to gain, less what their verification costs."""
    price: float = 0.0
    """Time that it would have taken."""


class Plan(NamedTuple):
    """The first decision for a step."""

    offers: tuple[Offer, ...]
    """One offer per row."""
    prediction: Prediction | None = None
    """The expected outcome; None from policies that predict nothing."""
    details: object = None
    """Data of the policy itself, which `blind_bet`, `arrange` and `learn` receive again."""
    declined: Declined | None = None
    """Why nobody drafts; None where somebody does, and from policies that give no reason."""

    @property
    def drafts(self) -> bool:
        """Whether any row drafts."""
        return any(offer.drafter is not None for offer in self.offers)


class RowOutcome(NamedTuple):
    """One row's share of a step that has been taken."""

    row: Row
    offer: Offer
    num_nodes: int
    accepted: int
    emitted: int
    """Tokens that count. A row that ended inside its accepted path emitted fewer than accepted + 1, a prompt
    chunk none."""
    draft: Draft | None = None
    """The draft that was arranged for this row, with its log-probabilities; None where there was none."""


class StepOutcome(NamedTuple):
    """What a step cost and yielded; times are device-synchronised and exclude the caller's own time."""

    rows: Sequence[RowOutcome]
    num_tokens: int
    """Tokens in the target's pass: pending tokens and nodes of all rows."""
    verify_ms: float
    draft_ms: float = 0.0
    evidence: Sequence[Evidence] = ()
    is_typical: bool = True
    """Whether the pass started and ended as passes of its kind do; False excludes its time from the costs."""
    overlaps: bool = False
    """Whether a device ran beside the host. Then only the sum of the two times is the step's own."""
    plan: Plan | None = None
    """The plan of this step; None where a policy planned nothing, as for a step of another policy."""
    num_steps: int = 1
    """Number of equal plain steps that were taken in a row; the times are the mean, the tokens those of all.
    """
    native: bool = False
    """Whether native code took the step; what the host did for it is a part of the draft's time then."""


class Blind(NamedTuple):
    """A bet made before its draft is read: a number of nodes for each row, the most probable ones."""

    nodes: Sequence[int]
    weights: Sequence[tuple[float, float, float] | None]
    """Each row's calibration, by which the device ranks candidates; None: by the drafter's own scores."""
    is_chain: bool = False
    """Whether only rank 0 is used."""


class LogOddsMap(NamedTuple):
    """The log-odds of a guess's acceptance from those of the drafter's own probability."""

    slope: float
    offsets: FloatArray
    """What is added at each depth."""
    lowest: float
    highest: float
    """Bounds of the log-probabilities of which log-odds are taken."""


class NodeRule(NamedTuple):
    """How many nodes of a draft are verified, and which, as numbers that native code can apply."""

    prices: FloatArray
    """The price of n nodes, from none on; the n with the most expected tokens less its price is the bet."""
    weights: FloatArray
    """What a token of each row is worth."""
    max_nodes: int
    """The most nodes of one row."""
    calibration: LogOddsMap | None = None
    """None: the drafter's own probability is taken as that of acceptance."""
    is_chain: bool = False
    """Whether only rank 0 is used, and all of it that `prices` has places for."""


class MultiStep(NamedTuple):
    """How a plan may be applied in several steps in a row, without asking the policy in between."""

    num_steps: int
    """The most steps."""
    rule: NodeRule | None = None
    """How the drafts of these steps are arranged; None where the plan is plain."""


class Coming(NamedTuple):
    """A step to come, as far as it is known before its rows are looked at."""

    num_rows: int
    num_tokens: int
    """Pending tokens of all rows."""
    max_depth: int = UNLIMITED
    """Guesses that the row with most left to write may still take."""
    num_plain: int = 0
    """Plain steps in a row before this one."""


class Inquiry(NamedTuple):
    """Which drafters the engine asks, row by row, whether they can propose something."""

    asks: bool
    """False: the step will be plain whatever drafters could propose."""
    first_suffices: bool = False
    """Whether the first drafter that can propose for a row is enough: no further one is asked for it."""


class Policy(Protocol):
    """How much to guess."""

    name: str
    """What `make_policy` would take to build it again."""

    def inquire(self, coming: Coming) -> Inquiry:
        """Which drafters to ask before the step is planned. Changes nothing."""
        ...

    def plan(self, rows: Sequence[Row]) -> Plan:
        """Which drafter to run for each row; PLAIN where none is worth its pass. Changes nothing."""
        ...

    def blind_bet(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        """The number of nodes to verify of drafts in flight, which are described but for their scores.

        None: the device waits for `arrange`. Changes nothing.
        """
        ...

    def arrange(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        """The nodes to verify, over all rows, best first. A row without a draft has none. Changes nothing."""
        ...

    def multi_step(self, plan: Plan, rows: Sequence[Row]) -> MultiStep | None:
        """How the plan may be applied in several steps; None: in one step only. Changes nothing.

        Precondition: every row has one pending token, and one drafter serves all rows that draft.
        """
        ...

    def learn(self, *outcomes: StepOutcome) -> None:
        """Take in finished steps, plain ones too, once each; possibly after the next step was planned.

        Several steps were taken in a row under one plan (`multi_step`).
        """
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
    caps = [min(row.max_nodes, cap) for row in rows]
    depths = [row.max_depth for row in rows]
    spine = [draft is not None and draft.spine_only for draft in drafts]
    deepest = max((draft.num_depths for draft in drafts if draft is not None), default=0)
    return Limits(
        np.array(caps) if min(caps, default=UNLIMITED) < UNLIMITED else None,
        np.array(depths) if min(depths, default=UNLIMITED) < deepest else None,
        np.array(spine) if any(spine) else None,
    )


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
