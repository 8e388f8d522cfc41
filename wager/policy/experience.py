"""What has been learned whatever the policy: costs, the ledger, survival and counts.

Kept apart from the policies so that changing the policy in mid-run keeps it. The controller writes it after
every step; policies read it. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from wager.policy.base import Row, RowOutcome, StepOutcome
from wager.policy.cost import MAX_TOKENS, CostModel
from wager.policy.ledger import Ledger
from wager.policy.stats import SpeculationStats
from wager.policy.survival import Survival


class Experience:
    """Costs, ledger, survival by drafter and phase, and statistics of all that ran."""

    def __init__(self, costs: CostModel | None = None, ledger: Ledger | None = None) -> None:
        self.costs = costs or CostModel()
        self.ledger = ledger or Ledger()
        self.survival = Survival()
        self.stats = SpeculationStats()
        self.stalled_ms = 0.0

    def learn(self, outcome: StepOutcome) -> None:
        """Enter one finished step."""
        rows = [share.row for share in outcome.rows]
        if not rows:
            return
        context_len = longest_context(rows)
        drafting: dict[str, int] = {}
        for share in outcome.rows:
            if share.offer.drafter is not None:
                drafting[share.offer.drafter] = drafting.get(share.offer.drafter, 0) + 1
        # Posted before the costs learn from it: a stalled step must not vouch for itself.
        self._post(outcome, context_len, drafting)
        self.costs.observe_pass(outcome.num_tokens, len(rows), context_len, outcome.verify_ms)
        if len(drafting) == 1:
            drafter, num_rows = next(iter(drafting.items()))
            self.costs.observe_draft(drafter, num_rows, outcome.draft_ms)
        for item in outcome.evidence:
            stood = leading_hits(item.ranks.tolist())
            self.survival.observe(stood, len(item.ranks), (item.drafter, item.phase))

    def _post(self, outcome: StepOutcome, context_len: int, drafting: dict[str, int]) -> None:
        """Share the step's time among its rows by their tokens in the pass, on both sides of the account.

        Plain decoding would have run the same pass without the nodes, and one plain step more for every token
        accepted. A step in which nobody drafted is plain decoding: its two sides are equal whatever it took.
        """
        num_emitting = sum(share.row.emits for share in outcome.rows)
        spent_ms = outcome.verify_ms + outcome.draft_ms
        known = bool(drafting) and self.costs.measured
        base_ms = step_ms = 0.0
        if known:
            curve = self.costs.curve(len(outcome.rows), context_len)
            base_tokens = sum(share.row.num_pending for share in outcome.rows)
            base_ms = float(curve[min(base_tokens, MAX_TOKENS)]) / base_tokens
            step_ms = float(curve[min(num_emitting, MAX_TOKENS)]) / max(num_emitting, 1)
            spent_ms -= self._stalled_ms(outcome, context_len, drafting)
        for share in outcome.rows:
            spent = spent_ms * _tokens_in_pass(share) / max(outcome.num_tokens, 1)
            plain = base_ms * share.row.num_pending + step_ms * max(share.emitted - 1, 0) if known else spent
            self.ledger.post(share.row.request_id, spent, plain, share.emitted)
            if share.row.emits:
                self.stats.record(share.accepted, share.num_nodes, spent / 1e3, plain / 1e3)

    def _stalled_ms(self, outcome: StepOutcome, context_len: int, drafting: dict[str, int]) -> float:
        """Time that the machine stood still: no bet made it, so no account pays for it."""
        curve = self.costs.curve(len(outcome.rows), context_len)
        expected = float(curve[min(outcome.num_tokens, len(curve) - 1)])
        expected += sum(self.costs.draft_ms(name, num, context_len) for name, num in drafting.items())
        excess = outcome.verify_ms + outcome.draft_ms - expected
        if excess <= _STALL * expected:
            return 0.0
        self.stalled_ms += excess
        return excess


_STALL = 2.0  # beyond three times what was expected, a step has stalled


def _tokens_in_pass(share: RowOutcome) -> int:
    return share.row.num_pending + share.num_nodes


def leading_hits(ranks: list[int]) -> int:
    """How many depths, from the first, had the emitted token at rank 0."""
    for index, rank in enumerate(ranks):
        if rank != 0:
            return index
    return len(ranks)


def longest_context(rows: Sequence[Row]) -> int:
    """The context that sets the cost range of a step: that of the longest row."""
    return max((row.context_len for row in rows), default=0)
