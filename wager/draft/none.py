"""The drafter that never guesses: plain decoding as one more drafter, so that nobody has to ask for None.

Keeps no state at all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from wager.draft.base import DraftRow, HostDrafter, Proposal
from wager.kvcache.pool import PageIds
from wager.nn.noise import NoiseSource


class NoDrafter(HostDrafter):
    """Has no guess for any row."""

    name = "none"
    feature_layers: tuple[int, ...] = ()
    uses_noise = False

    def can_draft(self, row: DraftRow) -> bool:
        return False

    def draft(self, rows: Sequence[DraftRow], noise: NoiseSource) -> list[Proposal | None]:
        return [None] * len(rows)

    def settle(self, request_id: Hashable, pages: PageIds, num_tokens: int) -> bool:
        return True

    def adopt(self, request_id: Hashable, num_tokens: int) -> None:
        pass

    def relocate(self, source: PageIds, target: PageIds) -> None:
        """Nothing is kept in pages."""

    def forget(self, request_id: Hashable) -> None:
        pass

    def describe(self) -> dict[str, object]:
        return {"drafter": self.name}
