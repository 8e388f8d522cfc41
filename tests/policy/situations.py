"""Situations for the tests of this folder: known costs, drafts with known odds, a small world to play in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wager.policy import (
    Controller,
    CostCurve,
    CostModel,
    Draft,
    Evidence,
    Experience,
    Offer,
    Row,
    RowOutcome,
    StepOutcome,
)
from wager.policy.auto import Auto
from wager.tree import Forest

FLAT = {1: 5.0, 2: 5.01, 4: 5.02, 8: 5.03, 16: 5.04, 32: 5.06, 64: 5.1}
STEEP = {1: 5.0, 2: 10.0, 4: 20.0, 8: 40.0, 16: 80.0, 32: 160.0}
DRAFT_MS = 0.5


def known_costs(
    points: Mapping[int, float], rows: int = 1, drafters: Sequence[str] = ("draft",)
) -> Experience:
    """An experience whose cost model saw these points often, the plain one last, and a draft of DRAFT_MS."""
    experience = Experience(CostModel(CostCurve(points), warm_up=0))
    for _ in range(8):
        for size in sorted(points, reverse=True):
            experience.costs.observe_pass(size, rows, 0, points[size])
    for drafter in drafters:
        experience.costs.observe_draft(drafter, rows, DRAFT_MS)
    return experience


def under_way(policy: Auto, rows: Sequence[Row]) -> None:
    """Requests whose answers began a while ago: a crowd bets for no others before it is known."""
    for _ in range(8):
        policy._known.enter({row.request_id: 1 for row in rows}, 1.0)


def gained(policy: Auto, row: Row, gain: float, num_rows: int = 1, drafter: str = "draft") -> None:
    """Drafts have been worth so much to this row."""
    own = policy._known.gain(row, drafter, num_rows)
    own.value, own.is_copy = gain, False


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
    claims: float = 0.8
    depths: int = 8
    with_logprobs: bool = True
    seed: int = 0
    row_ms: float = 0.0
    """What every row adds to a step that drafts, by itself and by what the host does for it,"""
    begin_ms: float = 0.0
    """and what the first such step behind a plain one takes longer."""

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.was_drafting = False

    def draft_ms(self, offers: Sequence[Offer]) -> float:
        drafters = [offer.drafter for offer in offers if offer.drafter]
        begins, self.was_drafting = drafters and not self.was_drafting, bool(drafters)
        begin_ms = self.begin_ms if begins else 0.0
        return DRAFT_MS * len(set(drafters)) + self.row_ms * len(drafters) + begin_ms

    def draft(self, drafter: str) -> Draft:
        if not self.with_logprobs:
            return Draft(drafter, self.depths)
        return Draft(drafter, self.depths, np.full((self.depths, 1), np.log(self.claims)))

    def fate(self, drafter: str) -> np.ndarray:
        """0 where a depth's guess is the target's token; the last entry may be the first that is not."""
        hits = self.random.random(self.depths) < self.stands[drafter]
        first = self.depths if hits.all() else int(hits.argmin()) + 1
        return np.where(hits[:first], 0, -1)


@dataclass(frozen=True)
class Played:
    """One step of a game: what was offered and how many nodes stood in the pass."""

    drafters: tuple[str | None, ...]
    num_nodes: int
    emitted: int


def play(controller: Controller, world: World, steps: int, rows: Sequence[Row] = (Row("r"),)) -> list[Played]:
    """Drive a controller through the stages of a step, as an engine does."""
    return [_turn(controller, world, rows) for _ in range(steps)]


def _turn(controller: Controller, world: World, rows: Sequence[Row]) -> Played:
    offers = controller.offer(rows)
    drafts = [None if offer.drafter is None else world.draft(offer.drafter) for offer in offers]
    forest = controller.arrange(rows, drafts)
    counts = np.bincount(forest.row, minlength=len(rows)).tolist()
    shares, evidence = [], []
    for row, offer, count in zip(rows, offers, counts, strict=True):
        accepted = 0
        if offer.drafter is not None:
            ranks = world.fate(offer.drafter)
            accepted = min(int((ranks == 0).sum()), count)
            logprobs = world.draft(offer.drafter).logprobs
            known = None if logprobs is None else logprobs[: len(ranks)]
            evidence.append(Evidence(offer.drafter, row.phase, known, ranks))
        shares.append(RowOutcome(row, offer, count, accepted, accepted + 1))
    num_tokens = sum(row.num_pending for row in rows) + forest.num_nodes
    draft_ms = world.draft_ms(offers)
    controller.learn(StepOutcome(shares, num_tokens, world.verify(num_tokens), draft_ms, evidence))
    emitted = sum(one.emitted for one in shares)
    return Played(tuple(offer.drafter for offer in offers), forest.num_nodes, emitted)
