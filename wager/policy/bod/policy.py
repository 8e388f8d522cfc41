"""The policy `bod`: Bet-Optimal Drafting with the zero outside it.

The controller names the best bet within its range; here plain decoding is one more option, taken
when its measured cost beats the best bet's predicted throughput, with backed-off probes while it does. One
bet serves all rows of a step. Chains (`bod`) or best-first trees (`bod:tree`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from wager.policy.base import (
    Blind,
    Coming,
    Draft,
    Inquiry,
    MultiStep,
    Plan,
    Prediction,
    Row,
    StepOutcome,
    fixed_blind,
    fixed_forest,
)
from wager.policy.bod import BODConfig, BODController
from wager.policy.bod.closed_form import throughput
from wager.policy.experience import Experience, shape_of_rows
from wager.policy.gates import Backoff
from wager.policy.simple import fixed_plan
from wager.tree import Forest

_TREE_RANGE = (1, 64)


class _Choice(NamedTuple):
    """What a plan decided."""

    guesses: int
    """Per row; 0: plain decoding is expected to be faster."""
    is_trial: bool
    """Whether this bet is made although plain decoding is expected to be faster."""


class BodPolicy:
    """A BODController per engine, with a zero bet in front of it."""

    def __init__(self, experience: Experience, mode: str = "chain", config: BODConfig | None = None) -> None:
        if config is None:
            low, high = _TREE_RANGE
            config = BODConfig() if mode == "chain" else BODConfig(mode="tree", min_bet=low, max_bet=high)
        self.name = "bod" if config.mode == "chain" else "bod:tree"
        self.experience = experience
        self.controller = BODController(config)
        self._trials = Backoff()

    def inquire(self, coming: Coming) -> Inquiry:
        return Inquiry(asks=True, first_suffices=True)

    def plan(self, rows: Sequence[Row]) -> Plan:
        bet = self.controller.optimal_bet()
        gain, costs = self.controller.gain, self.controller.costs
        prediction = Prediction(gain.tokens(bet) * len(rows), costs.at(bet))
        guesses, is_trial = bet - 1 if self._is_chain else bet, False
        if self.controller.costs_learned and self._best_rate() <= self._plain_rate(rows):
            is_trial = self._trials.is_due
            guesses = guesses if is_trial else 0
        choice = _Choice(guesses, is_trial)
        return fixed_plan(rows, guesses, chain=self._is_chain)._replace(prediction=prediction, details=choice)

    def blind_bet(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        return fixed_blind(rows, drafts, _choice_of(plan).guesses, chain=self._is_chain)

    def arrange(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        return fixed_forest(rows, drafts, _choice_of(plan).guesses, chain=self._is_chain)

    def multi_step(self, plan: Plan, rows: Sequence[Row]) -> MultiStep | None:
        """Every step changes the estimates, and so the bet."""
        return None

    def learn(self, *outcomes: StepOutcome) -> None:
        for outcome in outcomes:
            self._learn_step(outcome)

    def _learn_step(self, outcome: StepOutcome) -> None:
        time_ms = outcome.verify_ms + outcome.draft_ms
        for share in outcome.rows:
            if share.num_nodes == 0:
                continue
            bet = share.num_nodes + 1 if self._is_chain else share.num_nodes
            self.controller.observe(bet, share.accepted, time_ms, outcome.draft_ms, outcome.verify_ms)
        choice = None if outcome.plan is None else outcome.plan.details
        if not isinstance(choice, _Choice):
            return
        if choice.guesses == 0:
            self._trials.wait()
        elif choice.is_trial and any(share.num_nodes for share in outcome.rows):
            self._trials.result(won=self._best_rate() > self._plain_rate([s.row for s in outcome.rows]))

    def forget(self, request_id: Hashable) -> None:
        """Acceptance is learned over all requests together."""

    @property
    def _is_chain(self) -> bool:
        return self.controller.config.mode == "chain"

    def _best_rate(self) -> float:
        """Tokens per row and millisecond of the best bet, by what is known."""
        controller = self.controller
        return throughput(controller.gain, controller.costs, controller.best().bet)

    def _plain_rate(self, rows: Sequence[Row]) -> float:
        """The same of a plain step; a bet's step time is shared by all rows alike."""
        return 1.0 / self.experience.costs.plain_ms(*shape_of_rows(rows))


def _choice_of(plan: Plan) -> _Choice:
    assert isinstance(plan.details, _Choice)
    return plan.details
