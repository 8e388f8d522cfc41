"""Situations for the tests of this folder: known costs, drafts with known odds, a small world to play in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from wager.costs import CostModel, DraftShape
from wager.policy import (
    Controller,
    Draft,
    Evidence,
    Experience,
    Offer,
    Plan,
    Policy,
    Row,
    RowOutcome,
    StepOutcome,
)
from wager.policy.auto import Auto
from wager.policy.base import FloatArray
from wager.policy.calibration import Calibrator
from wager.policy.yields import Yields
from wager.trace.costs import CostCurve
from wager.tree import Forest

FLAT = {1: 5.0, 2: 5.01, 4: 5.02, 8: 5.03, 16: 5.04, 32: 5.06, 64: 5.1}
STEEP = {1: 5.0, 2: 10.0, 4: 20.0, 8: 40.0, 16: 80.0, 32: 160.0}
DRAFT_MS = 0.5


def known_costs(
    points: Mapping[int, float],
    rows: int = 1,
    drafters: Sequence[str] = ("draft",),
    draft_ms: float = DRAFT_MS,
) -> Experience:
    """An experience whose cost model saw these points often, the plain one last, and drafts of `draft_ms`."""
    experience = Experience(CostModel(CostCurve(points).by_size, warm_up=0))
    for _ in range(8):
        for size in sorted(points, reverse=True):
            experience.costs.observe_pass(size, rows, 0, points[size])
    for drafter in drafters:
        for _ in range(4):
            experience.costs.observe_drafts({drafter: DraftShape(rows)}, draft_ms)
    return experience


def awake(policy: Auto, *num_rows: int) -> Auto:
    """The same policy, whose first plain step of batches of these sizes has been taken."""
    for num in num_rows:
        rows = [Row(("earlier", i), drafters=()) for i in range(num)]
        policy.learn(step(*[share(row=row) for row in rows])._replace(plan=policy.plan(rows)))
        for row in rows:
            policy.forget(row.request_id)
    return policy


def claims(chance: float, depths: int = 8, drafter: str = "draft") -> Draft:
    """A chain of guesses that all claim this chance."""
    return Draft(drafter, depths, np.full((depths, 1), np.log(chance)))


def taught(policy: Auto, rows: Sequence[Row], draft: Draft, times: int = 40) -> None:
    """These rows have been drafted for so many times, and their drafts looked like this one."""
    for _ in range(times):
        for row in rows:
            policy.yields.learn_draft(row, draft, len(rows), with_curve=True)
            policy.yields.step(row.request_id)


def calibrator(yields: Yields, drafter: str = "draft", phase: str = "") -> Calibrator:
    """The calibration of this drafter's drafts."""
    return yields._line((drafter, phase)).calibrator


class Expected(NamedTuple):
    """The yield to expect from a draft for one row."""

    frequencies: FloatArray
    """[classes], summing to 1."""
    curves: FloatArray
    """[classes, nodes]."""

    @property
    def mean(self) -> FloatArray:
        return np.asarray(self.frequencies @ self.curves)


def expected(yields: Yields, row: Row, drafter: str = "draft", depth: int = 0) -> Expected:
    """What `yields` expects of a draft for this row."""
    ((key, whole),) = yields.groups([row], [0], drafter)
    group = yields.at_depth(key, whole, depth) if depth else whole
    return Expected(group.frequencies[0], group.curves[0])


def value_of(plan: Plan) -> float:
    """V of the best plan; 0 where plain decoding is best."""
    details = plan.details
    return float(details.value)  # type: ignore[attr-defined]


def loss_of(plan: Plan) -> float:
    """Milliseconds that an exploration was expected to lose; 0 for other plans."""
    return float(plan.details.loss_ms)  # type: ignore[attr-defined]


def bet(policy: Policy, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
    """The nodes that the policy verifies of these drafts, whether it would have asked for them or not."""
    return policy.arrange(policy.plan(rows), rows, drafts)


def drafting(plan: Plan) -> list[str | None]:
    """The drafter of each row."""
    return [offer.drafter for offer in plan.offers]


def share(
    num_nodes: int = 0, accepted: int = 0, *, row: Row | None = None, drafter: str | None = None
) -> RowOutcome:
    """One row's part of a step; a row with nodes was drafted by "draft" unless told otherwise."""
    if drafter is None and num_nodes:
        drafter = "draft"
    return RowOutcome(row or Row("r"), Offer(drafter), num_nodes, accepted, accepted + 1)


def step(*shares: RowOutcome, verify_ms: float = 5.0, draft_ms: float = 0.0) -> StepOutcome:
    num_tokens = sum(one.row.num_pending + one.num_nodes for one in shares)
    return StepOutcome(shares, num_tokens, verify_ms, draft_ms)


def same_forest(left: Forest, right: Forest) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def nodes_of(forest: Forest) -> list[tuple[int, int, int]]:
    """(row, depth, rank) of every node."""
    return list(zip(forest.row.tolist(), forest.depth.tolist(), forest.rank.tolist(), strict=True))


def assert_closed(forest: Forest) -> None:
    """Every parent stands before its child, one depth up, in the same row."""
    for node, parent in enumerate(forest.parent.tolist()):
        if parent < 0:
            assert forest.depth[node] == 1
        else:
            assert parent < node
            assert forest.row[parent] == forest.row[node]
            assert forest.depth[parent] == forest.depth[node] - 1


@dataclass
class World:
    """A machine and drafters of known quality: what each guess claims, and how often it really stands."""

    verify: CostCurve
    stands: Mapping[str, float] = field(default_factory=lambda: {"draft": 0.8})
    claims: float | Mapping[str, float] = 0.8
    depths: int = 8
    with_logprobs: bool = True
    seed: int = 0
    drafts_ms: Mapping[str, float] = field(default_factory=dict)
    """Time of a whole draft by drafter; DRAFT_MS where it is not named."""
    row_ms: float = 0.0
    """Time that every row adds to a step that drafts."""
    begin_ms: float = 0.0
    """Time that the first draft of a drafter takes longer than those behind it."""
    noise: float = 0.0
    """Relative spread of all measured times."""
    stall_chance: float = 0.0
    """Chance that a step takes a hundred times as long."""

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.was_drafting: set[str] = set()

    def draft_ms(self, offers: Sequence[Offer]) -> float:
        """Time of the drafts; one that is half as deep takes three quarters of the time."""
        time_ms, running = 0.0, {offer.drafter for offer in offers if offer.drafter}
        for drafter in sorted(running):
            depths = [offer.depth for offer in offers if offer.drafter == drafter]
            deepest = self.depths if 0 in depths else max(depths)
            whole_ms = self.drafts_ms.get(drafter, DRAFT_MS)
            time_ms += whole_ms * (0.5 + 0.5 * deepest / self.depths)
            time_ms += self.row_ms * len(depths) + self.begin_ms * (drafter not in self.was_drafting)
        self.was_drafting = running
        return time_ms

    def draft(self, offer: Offer) -> Draft:
        assert offer.drafter is not None
        depths = offer.depth or self.depths
        if not self.with_logprobs:
            return Draft(offer.drafter, depths)
        chance = self.claims if isinstance(self.claims, float) else self.claims[offer.drafter]
        return claims(chance, depths, offer.drafter)

    def fate(self, drafter: str, depths: int) -> np.ndarray:
        """0 where a depth's guess is the target's token; the last entry may be the first that is not."""
        hits = self.random.random(depths) < self.stands[drafter]
        first = depths if hits.all() else int(hits.argmin()) + 1
        return np.where(hits[:first], 0, -1)

    def seen(self, time_ms: float) -> float:
        """The time as a clock shows it."""
        if self.noise:
            time_ms *= float(np.exp(self.noise * self.random.standard_normal()))
        if self.stall_chance and self.random.random() < self.stall_chance:
            time_ms *= 100.0
        return time_ms


@dataclass(frozen=True)
class Played:
    """One step of a game: who drafted, how many nodes stood in the pass, and its true time."""

    drafters: tuple[str | None, ...]
    num_nodes: int
    emitted: int
    time_ms: float
    plain_ms: float
    """Time that plain decoding would have needed for the same tokens."""
    depths: tuple[int, ...] = ()


def play(controller: Controller, world: World, steps: int, rows: Sequence[Row] = (Row("r"),)) -> list[Played]:
    """Drive a controller through the stages of a step, as an engine does."""
    return [_turn(controller, world, rows) for _ in range(steps)]


def _turn(controller: Controller, world: World, rows: Sequence[Row]) -> Played:
    plan = controller.plan(rows)
    drafts = [None if offer.drafter is None else world.draft(offer) for offer in plan.offers]
    counts = [0] * len(rows)
    if plan.drafts:
        forest = controller.arrange(plan, rows, drafts)
        counts = np.bincount(forest.row, minlength=len(rows)).tolist()
    shares, evidence = [], []
    for row, offer, draft, count in zip(rows, plan.offers, drafts, counts, strict=True):
        accepted = 0
        if offer.drafter is not None:
            assert draft is not None
            ranks = world.fate(offer.drafter, draft.num_depths)
            accepted = min(int((ranks == 0).sum()), count)
            logprobs = None if draft.logprobs is None else draft.logprobs[: len(ranks)]
            evidence.append(
                Evidence(
                    offer.drafter, row.phase_of(offer.drafter), logprobs, ranks, request_id=row.request_id
                )
            )
        shares.append(RowOutcome(row, offer, count, accepted, accepted + 1, draft=draft))
    num_tokens = sum(row.num_pending for row in rows) + sum(counts)
    verify_ms, draft_ms = world.verify(num_tokens), world.draft_ms(plan.offers)
    seen_ms = world.seen(verify_ms), world.seen(draft_ms)
    controller.learn(StepOutcome(shares, num_tokens, *seen_ms, evidence, plan=plan))
    emitted = sum(one.emitted for one in shares)
    plain_ms = world.verify(len(rows)) * emitted / len(rows)
    depths = tuple(offer.depth for offer in plan.offers)
    return Played(tuple(drafting(plan)), sum(counts), emitted, verify_ms + draft_ms, plain_ms, depths)


def speedup(played: Sequence[Played]) -> float:
    """Against plain decoding, at the world's true times."""
    return sum(one.plain_ms for one in played) / sum(one.time_ms for one in played)


def lowest_balance(played: Sequence[Played]) -> float:
    """The lowest point of the account against plain decoding, at the world's true times."""
    balance = np.cumsum([one.plain_ms - one.time_ms for one in played])
    return float(min(balance.min(), 0.0))
