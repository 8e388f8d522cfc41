"""What a step costs on this machine: a cost curve for `wager simulate`, measured with the engine itself.

A policy of its own takes every size in turn, a few steps each, so that whatever else the machine does weighs
on all sizes alike. A time is that of the whole step, from one to the next, and so of all that surrounds the
passes; drafting and arranging are told apart. A second sweep lets a policy think and arrange trees on the way
and then bets as told: what its steps take longer is the price of deciding. Called by replay.py; knows no
traces.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from wager.bench.runs import Encoded
from wager.engine.telemetry import StepReport
from wager.errors import ModelError
from wager.llm import LLM
from wager.policy import (
    PLAIN,
    Coming,
    Controller,
    Draft,
    Experience,
    Inquiry,
    Offer,
    Plan,
    Policy,
    Row,
    StepOutcome,
)
from wager.policy.base import fixed_forest
from wager.policy.names import make_policy
from wager.policy.simple import Plain
from wager.records import SamplingParams
from wager.trace import StepCosts, step_costs
from wager.tree import Forest

CHAINS = (1, 2, 3, 4, 5, 6, 8, 11, 15)
TREES = (6, 10, 15, 20, 28, 40, 63)
DWELL = 4
"""Steps of one size in a row; the first of them, which comes behind another size, is not counted."""
_LEAST = 4  # samples without which a size is left out


class Bet(NamedTuple):
    """What the sweep verifies; `depth` guesses are asked of the drafter, 0: all it makes."""

    num_nodes: int
    depth: int = 0


def _with_plain(bets: Sequence[Bet], every: int = 4) -> tuple[Bet, ...]:
    """A plain step before every few bets: it is the measure of all the others."""
    found: list[Bet] = []
    for i, bet in enumerate(bets):
        found += [Bet(0), bet] if i % every == 0 else [bet]
    return tuple(found)


BETS = _with_plain([*(Bet(n, n) for n in CHAINS), *(Bet(n) for n in TREES)])


class Sweep(Plain):
    """Every bet in turn, whatever it is worth; with a thinker, as its trees and after its deliberations."""

    name = "sweep"

    def __init__(self, experience: Experience, thinker: Policy | None = None) -> None:
        super().__init__(experience)
        self._thinker = thinker
        self._steps = 0

    def inquire(self, coming: Coming) -> Inquiry:
        return Inquiry(asks=True)

    @property
    def thinks(self) -> bool:
        return self._thinker is not None

    @property
    def bet(self) -> Bet:
        return BETS[self._steps // DWELL % len(BETS)]

    @property
    def has_settled(self) -> bool:
        """Whether the step before was of this size too."""
        return self._steps % DWELL > 0

    @property
    def rounds(self) -> int:
        return self._steps // (DWELL * len(BETS))

    def next(self) -> None:
        self._steps += 1

    def plan(self, rows: Sequence[Row]) -> Plan:
        bet = self.bet
        details = None if self._thinker is None else self._thinker.plan(rows)
        offers = [
            Offer(row.drafters[0], bet.depth) if row.drafters and bet.num_nodes else PLAIN for row in rows
        ]
        return Plan(tuple(offers), details=details)

    def arrange(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        if self._thinker is not None and isinstance(plan.details, Plan):
            self._thinker.arrange(plan.details, rows, drafts)
        is_chain = self.bet.depth > 0 and self._thinker is None
        return fixed_forest(rows, drafts, self.bet.num_nodes, chain=is_chain)

    def learn(self, *outcomes: StepOutcome) -> None:
        """Costs are its whole purpose, and they are not learned but listed."""
        for outcome in outcomes:
            if self._thinker is not None and outcome.plan is not None:
                details = outcome.plan.details
                own = details if isinstance(details, Plan) else None
                self._thinker.learn(outcome._replace(plan=own))

    def forget(self, request_id: Hashable) -> None:
        if self._thinker is not None:
            self._thinker.forget(request_id)


class Times(NamedTuple):
    """Milliseconds of a curve: drafts by guesses asked for, passes by tokens."""

    draft: dict[int, float]
    verify: dict[int, float]


@dataclass
class Samples:
    """Times seen, in milliseconds."""

    verify: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Steps without their draft, by tokens in the pass."""
    draft: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Drafting and arranging, by guesses asked for; 0: the whole draft."""
    whole: dict[Bet, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Whole steps by their bet."""
    decided: dict[Bet, list[float]] = field(default_factory=lambda: defaultdict(list))
    """The same behind a policy's deliberations."""

    def add(self, bet: Bet, report: StepReport, wall_ms: float) -> None:
        """A step that took the bet as it was meant."""
        draft_ms = report.stage_ms["draft"] + report.stage_ms["arrange"]
        self.whole[bet].append(wall_ms)
        self.verify[report.num_tokens].append(wall_ms - draft_ms)
        if report.num_drafting:
            self.draft[bet.depth].append(draft_ms)

    @property
    def decide_ms(self) -> float:
        """What deciding adds to a step, over all bets; 0 where it was not timed."""
        bare, weighed = _means(self.whole), _means(self.decided)
        longer = [weighed[bet] - bare[bet] for bet in weighed if bet in bare and bet.num_nodes]
        return max(0.0, statistics.median(longer)) if longer else 0.0

    def times(self) -> Times:
        """Means of the middle half. Raises ModelError where too little was seen for a curve."""
        verify, draft = _means(self.verify), _means(self.draft)
        if 1 not in verify or len(verify) < 2 or not draft:
            raise ModelError("too few steps were timed for a cost curve")
        if 0 in draft:
            # Asked for all its depths a drafter does what it does of itself: two names of one time.
            whole = draft.pop(0)
            draft[max(draft, default=1)] = whole
        return Times(draft, verify)

    def curve(self, name: str = "measured") -> StepCosts:
        return step_costs(name, *self.times(), decide_ms=self.decide_ms)

    @property
    def spread(self) -> float:
        """How steps scatter around their size's median: the median deviation (log), scaled as if normal."""
        logs = [
            abs(math.log(ms / statistics.median(seen)))
            for seen in self.verify.values()
            if len(seen) >= _LEAST
            for ms in seen
        ]
        return 1.4826 * statistics.median(logs) if logs else 0.0


K = TypeVar("K", int, Bet)


def _means(samples: dict[K, list[float]]) -> dict[K, float]:
    return {size: middle_mean(samples[size]) for size in sorted(samples) if len(samples[size]) >= _LEAST}


def middle_mean(values: Sequence[float]) -> float:
    """The mean without the lowest and highest quarter: stalls do not count, two levels count by share."""
    cut = len(values) // 4
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def sweep(
    llm: LLM, prompts: Sequence[Encoded], params: SamplingParams, samples: Samples, rounds: int
) -> None:
    """Every bet `rounds` times bare, and as often behind the thoughts of `auto`; adds to `samples`."""
    _sweep(llm, prompts, params, samples, Sweep(Experience()), rounds)
    experience = Experience()
    _sweep(llm, prompts, params, samples, Sweep(experience, make_policy("auto", experience)), rounds)


def _sweep(
    llm: LLM,
    prompts: Sequence[Encoded],
    params: SamplingParams,
    samples: Samples,
    policy: Sweep,
    rounds: int,
) -> None:
    """Answer the prompts over and over until every bet had its turn so often."""
    with _at_the_engine(llm, policy, samples):
        while policy.rounds < rounds:
            for one in prompts:
                (output,) = llm.generate(one.token_ids, params)
                if output.error:
                    raise ModelError(output.error)
                if policy.rounds >= rounds:
                    return


@contextmanager
def _at_the_engine(llm: LLM, policy: Sweep, samples: Samples) -> Iterator[None]:
    """The engine with the sweep for its policy; every step that took the bet as meant is listed."""
    engine, last = llm.engine, time.perf_counter()

    def note(report: StepReport) -> None:
        nonlocal last
        now = time.perf_counter()
        wall_ms, last = (now - last) * 1e3, now
        if report.num_tokens - report.num_nodes > 1:
            return  # a prompt
        if policy.has_settled and report.num_nodes == policy.bet.num_nodes:
            if policy.thinks:
                samples.decided[policy.bet].append(wall_ms)
            else:
                samples.add(policy.bet, report, wall_ms)
        policy.next()

    own = engine.controller, engine.telemetry.listener
    engine.controller, engine.telemetry.listener = Controller("ar"), note
    engine.controller.policy = policy
    try:
        yield
    finally:
        engine.controller, engine.telemetry.listener = own
