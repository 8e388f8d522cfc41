"""What would this policy have done? Exact replay of recorded drafts under a cost curve.

The policy runs through the same controller as in the engine and sees only what a real engine would show it:
log-probabilities of the drafts it requested, accepted depths, measured (possibly noisy) times, and, for every
draft it paid for, the ranks of the tokens emitted later. The result uses the times of the curve.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from wager.errors import ConfigError
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
from wager.policy.base import UNLIMITED, Coming
from wager.policy.controller import StepListener
from wager.policy.names import needs_target_p1
from wager.policy.simple import Plain
from wager.trace.costs import StepCosts
from wager.trace.format import Trace
from wager.tree import Tree, accept, row_trees

_DRAFTER = "draft"


@dataclass(frozen=True)
class Noise:
    """Seeded noise on the times that a policy sees: a relative spread, and rare stalls."""

    spread: float = 0.0
    stall_chance: float = 0.0
    stall_factor: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.spread) and 0.0 <= self.spread <= 2.0):
            raise ConfigError("noise", self.spread, "a relative spread from 0 to 2")
        if not 0.0 <= self.stall_chance <= 1.0:
            raise ConfigError("stalls", self.stall_chance, "a chance from 0 to 1")
        if not (math.isfinite(self.stall_factor) and self.stall_factor >= 1.0):
            raise ConfigError("stalls", self.stall_factor, "a factor of at least 1")
        if self.seed < 0:
            raise ConfigError("seed", self.seed, "a whole number from 0")


@dataclass(frozen=True)
class Step:
    """One step of a replay, for plots and tests."""

    start: int
    """Number of tokens emitted before this step, over all rows."""
    drafted: bool
    num_nodes: int
    emitted: int
    time_ms: float
    balance_ms: float


@dataclass(frozen=True)
class Replay:
    """The run of a policy over a trace."""

    policy: str
    steps: tuple[Step, ...]
    tokens: int
    time_ms: float
    plain_ms: float

    @property
    def tokens_per_s(self) -> float:
        return 1e3 * self.tokens / self.time_ms

    @property
    def speedup(self) -> float:
        return self.plain_ms / self.time_ms

    @property
    def drafted_steps(self) -> int:
        return sum(step.drafted for step in self.steps)

    @property
    def mean_nodes(self) -> float:
        """Mean number of verified nodes per step, including plain steps."""
        return sum(step.num_nodes for step in self.steps) / len(self.steps)

    @property
    def ledger_min(self) -> float:
        """The lowest balance against plain decoding, in milliseconds of the curve's own time."""
        return min(0.0, min(step.balance_ms for step in self.steps))


class _Slot:
    """A row of the replay: one sequence of one trace, with the drafts whose outcome is not yet known."""

    def __init__(self, request_id: int, trace: Trace, sequence: int) -> None:
        self.request_id = request_id
        self.trace = trace
        self.sequence = sequence
        self.length = trace.length(sequence)
        self._limit = self.length if trace.was_cut(sequence) else UNLIMITED
        self.position = 0
        self._waiting: list[int] = []

    @property
    def done(self) -> bool:
        return self.position >= self.length

    def row(self) -> Row:
        p1 = self.trace.target_p1
        confidence = None if p1 is None else float(p1[self.sequence, self.position])
        offered = self.trace.logprobs[self.sequence, self.position, 0, 0] > -np.inf
        drafters = (_DRAFTER,) if offered else ()  # the recorded drafter had nothing to offer here
        left = self._limit - self.position - 1  # the last token is the target's own
        return Row(self.request_id, self.position, max_depth=left, target_p1=confidence, drafters=drafters)

    def draft(self, depth: int) -> Draft:
        """Returns the recorded draft at this position, cut to `depth` (0: whole)."""
        logprobs = self.trace.logprobs[self.sequence, self.position]
        logprobs = logprobs[:depth] if depth else logprobs
        return Draft(_DRAFTER, logprobs.shape[0], logprobs, self.trace.spine_only)

    def judge(self, tree: Tree) -> int:
        """Returns the accepted depth; ranks serve as token ids."""
        truth = np.append(self.trace.ranks[self.sequence, self.position], -1)
        return accept(tree, np.concatenate(([truth[0]], truth[tree.depths]))).num_accepted

    def advance(self, emitted: int, *, drafted: bool) -> list[Evidence]:
        """Moves on and returns what the emitted tokens say about earlier drafts."""
        if drafted:
            self._waiting.append(self.position)
        self.position = min(self.position + emitted, self.length)
        outcomes = [self._known_outcome(start) for start in self._waiting]
        self._waiting = [start for start, item in zip(self._waiting, outcomes, strict=True) if item is None]
        return [item for item in outcomes if item is not None]

    def _known_outcome(self, start: int) -> Evidence | None:
        """Returns the evidence of the draft made at `start` once all its depths are decided, else None."""
        known = min(self.position - start, self.trace.num_depths)
        ranks = self.trace.ranks[self.sequence, start, :known]
        outside = np.flatnonzero(ranks != 0 if self.trace.spine_only else ranks < 0)
        if len(outside):
            ranks = ranks[: outside[0] + 1]
        elif known < self.trace.num_depths and not self.done:
            return None
        logprobs = self.trace.logprobs[self.sequence, start, : len(ranks)]
        return Evidence(_DRAFTER, "", logprobs, ranks, self.trace.spine_only, self.request_id)


class _Clock:
    """The times of the curve, and the noisy times that the policy sees."""

    def __init__(self, costs: StepCosts, noise: Noise) -> None:
        self._costs = costs
        self._known: dict[int, float] = {}
        self._drafts: dict[int, float] = {}
        self._noise = noise
        self._random = np.random.default_rng(noise.seed)
        self.num_plain = 1
        """Plain steps in a row before the present one; the prompts of the first rows are read in one."""

    def verify_ms(self, num_tokens: int) -> float:
        time_ms = self._known.get(num_tokens)
        if time_ms is None:
            time_ms = self._known[num_tokens] = self._costs.verify(num_tokens)
        return time_ms

    def draft_ms(self, offers: Sequence[Offer]) -> float:
        """Returns the time of one draft pass for these offers, or 0 if none of them drafts."""
        depths = [offer.depth for offer in offers if offer.drafter is not None]
        begins = self.num_plain > 0
        if not depths:
            return 0.0
        depth = 0 if 0 in depths else max(depths)
        if depth not in self._drafts:
            self._drafts[depth] = self._costs.draft_time_ms(depth)
        more_ms = self._costs.row_ms * (len(depths) - 1) + self._costs.begin_ms * begins
        return self._drafts[depth] + more_ms

    def ask_ms(self, num_rows: int) -> float:
        """Returns the time that a plain step of `num_rows` rows takes longer if the policy considered
        drafting; behind a plain step it did so while that step's pass ran.
        """
        return 0.0 if self.num_plain else self._costs.ask_ms * num_rows

    def decide_ms(self, policy: Policy, drafted: bool) -> float:
        """Returns the decision time of a step with a draft; a policy with constant bets has none."""
        return self._costs.decide_ms if drafted and not isinstance(policy, Plain) else 0.0

    def seen(self, time_ms: float) -> float:
        noise = self._noise
        if noise.spread > 0:
            time_ms *= float(np.exp(noise.spread * self._random.standard_normal()))
        if noise.stall_chance > 0 and self._random.random() < noise.stall_chance:
            time_ms *= noise.stall_factor
        return time_ms


@dataclass(frozen=True)
class ReplayOptions:
    """The number of rows per pass, the noise, the initial experience and the listener."""

    rows: int = 1
    noise: Noise = Noise()
    experience: Experience | None = None
    on_step: StepListener | None = None


def replay(
    traces: Trace | Sequence[Trace],
    costs: StepCosts,
    policy: str | Controller,
    options: ReplayOptions | None = None,
) -> Replay:
    """Runs `policy` over every sequence of the traces in order; several traces make a content shift.

    A Controller has its own experience and decision sink, and may change its policy during the run. Raises
    ConfigError on an unknown policy, a missing target_p1 that the policy needs, or a wrong number of rows.
    """
    options = options or ReplayOptions()
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    check_rows(options.rows)
    controller = policy
    if not isinstance(controller, Controller):
        controller = Controller(controller, options.experience, options.on_step)
    check_policy(controller.policy.name, traces)
    clock = _Clock(costs, options.noise)
    waiting = iter([_Slot(0, trace, i) for trace in traces for i in range(trace.num_sequences)])
    return _run(controller, clock, waiting, options.rows)


def check_rows(rows: int) -> None:
    if rows < 1:
        raise ConfigError("rows", rows, "a whole number from 1")


def check_policy(policy: str, traces: Sequence[Trace]) -> None:
    """Raises ConfigError unless the traces have the arrays that the policy needs."""
    if needs_target_p1(policy) and any(trace.target_p1 is None for trace in traces):
        raise ConfigError("policy", policy, "a trace with target_p1, which this trace does not have")


def _run(controller: Controller, clock: _Clock, waiting: Iterator[_Slot], num_rows: int) -> Replay:
    name = controller.policy.name
    slots: list[_Slot] = []
    steps: list[Step] = []
    tokens, time_ms, plain_ms, request_id = 0, 0.0, 0.0, 0
    while True:
        while len(slots) < num_rows and (slot := next(waiting, None)) is not None:
            request_id += 1
            slot.request_id = request_id
            slots.append(slot)
        if not slots:
            return Replay(name, tuple(steps), tokens, time_ms, plain_ms)
        outcome, true_ms = _step(controller, clock, slots)
        emitted = sum(share.emitted for share in outcome.rows)
        nodes = sum(share.num_nodes for share in outcome.rows)
        drafted = any(share.offer.drafter for share in outcome.rows)
        time_ms += true_ms
        plain_ms += emitted * clock.verify_ms(len(slots)) / len(slots)
        steps.append(Step(tokens, drafted, nodes, emitted, true_ms, plain_ms - time_ms))
        tokens += emitted
        for slot in [slot for slot in slots if slot.done]:
            controller.forget(slot.request_id)
            slots.remove(slot)


def _step(controller: Controller, clock: _Clock, slots: list[_Slot]) -> tuple[StepOutcome, float]:
    """Runs one step of all rows: offer, draft, arrange, verify, accept, learn. Returns the outcome and its
    true time.
    """
    rows = [slot.row() for slot in slots]
    coming = Coming(len(rows), len(rows), max(row.max_depth for row in rows), clock.num_plain)
    is_asked = controller.inquire(coming).asks
    if not is_asked:
        rows = [row._replace(drafters=()) for row in rows]
    plan = controller.plan(rows)
    drafts = [
        None if offer.drafter is None else slot.draft(offer.depth)
        for slot, offer in zip(slots, plan.offers, strict=True)
    ]
    trees = _trees(controller, slots, rows, plan, drafts)
    shares: list[RowOutcome] = []
    evidence: list[Evidence] = []
    for slot, row, offer, tree, draft in zip(slots, rows, plan.offers, trees, drafts, strict=True):
        accepted = slot.judge(tree) if tree.num_nodes else 0
        emitted = min(accepted + 1, slot.length - slot.position)
        evidence += slot.advance(emitted, drafted=offer.drafter is not None)
        shares.append(RowOutcome(row, offer, tree.num_nodes, accepted, emitted, draft))
    num_tokens = len(slots) + sum(tree.num_nodes for tree in trees)
    verify_ms = clock.verify_ms(num_tokens)
    draft_ms = clock.draft_ms(plan.offers)
    ask_ms = clock.ask_ms(len(rows)) if is_asked and not draft_ms else 0.0
    clock.num_plain = 0 if draft_ms else clock.num_plain + 1
    verify_ms += ask_ms
    outcome = StepOutcome(
        shares,
        num_tokens,
        clock.seen(verify_ms),
        clock.seen(draft_ms) if draft_ms else 0.0,
        evidence,
        is_typical=not ask_ms,
        plan=plan,
    )
    controller.learn(outcome)
    return outcome, verify_ms + draft_ms + clock.decide_ms(controller.policy, draft_ms > 0.0)


def _trees(
    controller: Controller, slots: list[_Slot], rows: list[Row], plan: Plan, drafts: list[Draft | None]
) -> list[Tree]:
    if all(draft is None for draft in drafts):
        return [Tree.empty()] * len(slots)
    forest = controller.arrange(plan, rows, drafts)
    depths = max(draft.num_depths for draft in drafts if draft is not None)
    ranks = max(slot.trace.logprobs.shape[3] for slot in slots)
    as_tokens = np.broadcast_to(np.arange(ranks), (len(slots), depths, ranks))
    return row_trees(forest, forest.num_nodes, as_tokens)
