"""The drafter that never guesses: it makes plain decoding one more drafter and keeps no state."""

from __future__ import annotations

from collections.abc import Sequence

from wager.draft.base import Drafter, DraftRow, PoolShape, Proposal, TargetInterface
from wager.draft.kind import DraftSource
from wager.nn.noise import NoiseSource


class NoDrafter(Drafter):
    """Has no guess for any row."""

    name = "none"

    @staticmethod
    def make(target: TargetInterface, shape: PoolShape, source: DraftSource) -> NoDrafter:
        """Builds it; nothing is needed."""
        return NoDrafter()

    def can_propose(self, row: DraftRow) -> bool:
        return False

    def propose(self, rows: Sequence[DraftRow], noise: NoiseSource) -> list[Proposal | None]:
        return [None] * len(rows)
