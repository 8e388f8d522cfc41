"""A controller that bets before it has seen a draft, as where a device builds the trees by itself.

A replay knows every draft beforehand; this controller hides it from the policy until the bet is made
(`Policy.blind_bet`). `bench.blind` compares such bets with those made after reading the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wager.policy import Controller, Draft, Plan, Row
from wager.policy.base import FloatArray, limits_of, stack_scores
from wager.policy.calibration import Calibrator
from wager.tree import Forest, build_forest


class Blindly(Controller):
    """Looks at drafts only where its policy wants to."""

    looked = 0
    unread = 0

    def arrange(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        described = [
            None if draft is None else replace(draft, logprobs=None, num_depths=min(draft.num_depths, most))
            for draft, most in zip(drafts, [row.max_depth for row in rows], strict=True)
        ]
        has_scores = all(draft is None or draft.logprobs is not None for draft in drafts)
        blind = self.blind_bet(plan, rows, described) if has_scores else None
        if blind is None:
            self.looked += 1
            return super().arrange(plan, rows, drafts)
        self.unread += 1

        def read(i: int, draft: Draft) -> FloatArray:
            calibrator, weights = Calibrator(), blind.weights[i]
            if weights is not None:
                calibrator.weights = list(weights)
            assert draft.logprobs is not None
            return calibrator.log_acceptance(draft.logprobs)

        return build_forest(
            stack_scores(drafts, read),
            sum(blind.nodes),
            row_caps=blind.nodes,
            max_depths=limits_of(rows, drafts).max_depths,
            chain_only=blind.is_chain,
        )
