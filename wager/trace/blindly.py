"""A controller that bets before it has seen a draft, as where a device builds the trees by itself.

A replay knows every draft beforehand; this one keeps it from the policy until the bet is made
(`Policy.blind`), then tells (`Policy.saw`). For whoever compares bets sight unseen with those after a look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wager.policy import Controller, Draft, Row
from wager.policy.allocation import allocate, firsts
from wager.policy.base import FloatArray, limits_of, stack_scores
from wager.policy.calibration import Calibrator
from wager.tree import Forest, build_forest


class Blindly(Controller):
    """Looks at drafts only where its policy wants to."""

    looked = 0
    unseen = 0

    def arrange(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        described = [
            None if draft is None else replace(draft, logprobs=None, num_depths=min(draft.num_depths, most))
            for draft, most in zip(drafts, [row.max_depth for row in rows], strict=True)
        ]
        has_words = all(draft is None or draft.logprobs is not None for draft in drafts)
        blind = self.blind(rows, described) if has_words else None
        if blind is None:
            self.looked += 1
            return super().arrange(rows, drafts)
        self.unseen += 1

        def read(i: int, draft: Draft) -> FloatArray:
            calibrator, weights = Calibrator(), blind.weights[i]
            if weights is not None:
                calibrator.weights = list(weights)
            assert draft.logprobs is not None
            return calibrator.log_acceptance(draft.logprobs)

        limits = limits_of(rows, drafts)
        forest = build_forest(
            stack_scores(drafts, read),
            sum(blind.nodes) * len(rows),
            max_depths=limits.max_depths,
            chain_only=blind.is_chain,
        )
        forest = firsts(forest, blind.nodes)
        counts = [int((forest.row == i).sum()) for i in range(len(rows))]
        nodes = [min(most, count) for most, count in zip(blind.nodes, counts, strict=True)]
        self.saw(rows, drafts, nodes)
        return allocate(forest, sum(nodes))
