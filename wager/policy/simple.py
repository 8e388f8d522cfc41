"""The policies that do not adapt: `ar` (never guess), `fixed:K` (a chain of K), `tree:B` (B best guesses).

For comparison, and for those who know what they want. They learn nothing and promise nothing about speed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from wager.policy.base import (
    PLAIN,
    UNLIMITED,
    Blind,
    Coming,
    Draft,
    Inquiry,
    MultiStep,
    NodeRule,
    Offer,
    Plan,
    Row,
    StepOutcome,
    fixed_blind,
    fixed_forest,
)
from wager.policy.experience import Experience
from wager.tree import Forest


class Plain:
    """Plain decoding: every bet is zero."""

    name = "ar"

    def __init__(self, _experience: Experience) -> None:
        pass

    def inquire(self, coming: Coming) -> Inquiry:
        return Inquiry(asks=False)

    def plan(self, rows: Sequence[Row]) -> Plan:
        return Plan((PLAIN,) * len(rows))

    def blind_bet(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        return None

    def arrange(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        return fixed_forest(rows, drafts, 0, chain=True)

    def multi_step(self, plan: Plan, rows: Sequence[Row]) -> MultiStep | None:
        return MultiStep(UNLIMITED)

    def learn(self, *outcomes: StepOutcome) -> None:
        """A fixed rule learns nothing."""

    def forget(self, request_id: Hashable) -> None:
        """A fixed rule keeps nothing of a request."""


class Fixed(Plain):
    """The same number of nodes for every row, always."""

    def __init__(self, experience: Experience, nodes: int, *, chain: bool) -> None:
        super().__init__(experience)
        self.name = f"{'fixed' if chain else 'tree'}:{nodes}"
        self.nodes = nodes
        self.chain = chain

    def inquire(self, coming: Coming) -> Inquiry:
        return Inquiry(self.nodes > 0, first_suffices=True)

    def plan(self, rows: Sequence[Row]) -> Plan:
        return fixed_plan(rows, self.nodes, chain=self.chain)

    def blind_bet(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        return fixed_blind(rows, drafts, self.nodes, chain=self.chain)

    def arrange(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        return fixed_forest(rows, drafts, self.nodes, chain=self.chain)

    def multi_step(self, plan: Plan, rows: Sequence[Row]) -> MultiStep | None:
        if not plan.drafts:
            return None  # the next step drafts again
        rule = NodeRule(
            np.zeros(self.nodes * len(rows) + 1), np.ones(len(rows)), self.nodes, is_chain=self.chain
        )
        return MultiStep(UNLIMITED, rule)


def fixed_plan(rows: Sequence[Row], nodes: int, *, chain: bool) -> Plan:
    """Every row that can draft does, with its first drafter."""
    if nodes == 0:
        return Plan((PLAIN,) * len(rows))
    offer_depth = nodes if chain else 0
    able = [row.drafters and min(row.max_depth, row.max_nodes) > 0 for row in rows]
    return Plan(
        tuple(
            [Offer(row.drafters[0], offer_depth) if ok else PLAIN for row, ok in zip(rows, able, strict=True)]
        )
    )
