"""The policy `bod`: Bet-Optimal Drafting with the zero outside it.

The controller of bod.py names the best bet within its range; here plain decoding is one more option, taken
when its measured cost beats the best bet's predicted throughput, with backed-off probes while it does. One
bet serves all rows of a step. Chains (`bod`) or best-first trees (`bod:tree`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from wager.policy.base import (
    PLAIN,
    Blind,
    Coming,
    Draft,
    Offer,
    Prediction,
    Row,
    StepOutcome,
    fixed_blind,
    fixed_forest,
)
from wager.policy.bod import BODConfig, BODController
from wager.policy.bod_math import throughput
from wager.policy.experience import Experience, longest_context
from wager.policy.gain import Probe
from wager.tree import Forest

_TREE_RANGE = (1, 64)


class BodPolicy:
    """A BODController per engine, a zero in front of it."""

    learns_late = False

    def __init__(self, experience: Experience, mode: str = "chain", config: BODConfig | None = None) -> None:
        if config is None:
            low, high = _TREE_RANGE
            config = BODConfig() if mode == "chain" else BODConfig(mode="tree", min_bet=low, max_bet=high)
        self.name = "bod" if config.mode == "chain" else "bod:tree"
        self.experience = experience
        self.controller = BODController(config)
        self.prediction = Prediction(1.0, 0.0)
        self._probe = Probe()
        self._probing = False
        self._guesses = 0

    def rests(self, coming: Coming) -> bool:
        return False  # every step without a bet is counted towards the next look

    def suffices(self, drafter: str, coming: Coming) -> bool:
        return True

    def offer(self, rows: Sequence[Row]) -> list[Offer]:
        self._guesses = self._choose(rows)
        if self._guesses == 0:
            return [PLAIN] * len(rows)
        depth = self._guesses if self._is_chain else 0
        return [
            Offer(row.drafters[0], depth) if row.drafters and min(row.max_depth, row.max_nodes) > 0 else PLAIN
            for row in rows
        ]

    def arrange(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        return fixed_forest(rows, drafts, self._guesses, chain=self._is_chain)

    def blind(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        return fixed_blind(rows, drafts, self._guesses, chain=self._is_chain)

    def saw(self, rows: Sequence[Row], drafts: Sequence[Draft | None], nodes: Sequence[int]) -> None:
        pass

    def learn(self, outcome: StepOutcome) -> None:
        time_ms = outcome.verify_ms + outcome.draft_ms
        for share in outcome.rows:
            if share.num_nodes == 0:
                continue
            bet = share.num_nodes + 1 if self._is_chain else share.num_nodes
            self.controller.observe(bet, share.accepted, time_ms, outcome.draft_ms, outcome.verify_ms)
        if self._probing and any(share.num_nodes for share in outcome.rows):
            self._probe.result(won=self._best_rate() > self._plain_rate([s.row for s in outcome.rows]))

    def forget(self, request_id: Hashable) -> None:
        pass

    @property
    def _is_chain(self) -> bool:
        return self.controller.config.mode == "chain"

    def _choose(self, rows: Sequence[Row]) -> int:
        """Guesses per row; 0 where plain decoding is expected to be faster."""
        bet = self.controller.optimal_bet()
        guesses = bet - 1 if self._is_chain else bet
        gain, costs = self.controller.gain, self.controller.costs
        self.prediction = Prediction(gain.tokens(bet) * len(rows), costs.at(bet))
        self._probing = False
        if not self.controller.costs_learned or self._best_rate() > self._plain_rate(rows):
            return guesses
        self._probing = self._probe.due()
        return guesses if self._probing else 0

    def _best_rate(self) -> float:
        """Tokens per row and millisecond of the best bet, by what is known."""
        controller = self.controller
        return throughput(controller.gain, controller.costs, controller.best().bet)

    def _plain_rate(self, rows: Sequence[Row]) -> float:
        """The same of a plain step, and for a bet's step time shared by all rows alike."""
        return 1.0 / self.experience.costs.plain_ms(max(len(rows), 1), longest_context(rows))
