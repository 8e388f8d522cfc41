"""The policies that do not adapt: `ar` (never guess), `fixed:K` (a chain of K), `tree:B` (B best guesses).

For comparison, and for those who know what they want. They learn nothing and promise nothing about speed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from wager.policy.base import (
    PLAIN,
    Blind,
    Coming,
    Draft,
    Offer,
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
    learns_late = False

    def __init__(self, _experience: Experience) -> None:
        pass

    def rests(self, coming: Coming) -> bool:
        return True

    def suffices(self, drafter: str, coming: Coming) -> bool:
        return False

    def offer(self, rows: Sequence[Row]) -> list[Offer]:
        return [PLAIN] * len(rows)

    def arrange(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        return fixed_forest(rows, drafts, 0, chain=True)

    def blind(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        return None

    def saw(self, rows: Sequence[Row], drafts: Sequence[Draft | None], nodes: Sequence[int]) -> None:
        pass

    def learn(self, outcome: StepOutcome) -> None:
        pass

    def forget(self, request_id: Hashable) -> None:
        pass


class Fixed(Plain):
    """The same number of nodes for every row, always."""

    learns_late = True

    def __init__(self, experience: Experience, nodes: int, *, chain: bool) -> None:
        super().__init__(experience)
        self.name = f"{'fixed' if chain else 'tree'}:{nodes}"
        self.nodes = nodes
        self.chain = chain

    def rests(self, coming: Coming) -> bool:
        return self.nodes == 0

    def suffices(self, drafter: str, coming: Coming) -> bool:
        return True

    def offer(self, rows: Sequence[Row]) -> list[Offer]:
        if self.nodes == 0:
            return [PLAIN] * len(rows)
        depth = self.nodes if self.chain else 0
        return [
            Offer(row.drafters[0], depth) if row.drafters and min(row.max_depth, row.max_nodes) > 0 else PLAIN
            for row in rows
        ]

    def arrange(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        return fixed_forest(rows, drafts, self.nodes, chain=self.chain)

    def blind(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        return fixed_blind(rows, drafts, self.nodes, chain=self.chain)
