"""How much time may be spent to learn what is not known: one budget, a share of all elapsed time.

An exploration is a step that is expected to be worth less than the best one: a draft that seems not worth its
time, a whole draft where a short one is enough, a plain step where drafting pays. It is taken when the budget
covers the time that it is expected to lose. Called by auto.py.
"""

from __future__ import annotations

EXPLORED_SHARE = 0.0035
"""Share of elapsed time: half of what the ledger lets a server lose."""
START_STEPS = 2.0
"""Plain steps that the budget begins with."""
MOST_SAVED = 8.0
"""Explorations of the present price for which the budget may save, so that a calm hour buys no storm."""


class Exploration:
    """The budget in milliseconds."""

    def __init__(self, share: float | None = None) -> None:
        self.share = EXPLORED_SHARE if share is None else share
        self.credit_ms = 0.0
        self._has_begun = False
        self._price_ms = 0.0
        """The price of the latest exploration that was considered."""

    def affords(self, loss_ms: float) -> bool:
        return self.credit_ms >= loss_ms

    def consider(self, loss_ms: float) -> None:
        """An exploration of this price is wanted; the budget saves for a few of them at most."""
        self._price_ms = loss_ms

    def earn(self, elapsed_ms: float, plain_ms: float) -> None:
        """Time went by, in a step whose plain time is known; the first one brings the credit of the start."""
        if not self._has_begun:
            self._has_begun, self.credit_ms = True, START_STEPS * plain_ms
        earned_ms = self.share * elapsed_ms
        self.credit_ms = min(self.credit_ms + earned_ms, max(MOST_SAVED * self._price_ms, self.credit_ms))

    def spend(self, loss_ms: float) -> None:
        self.credit_ms -= loss_ms

    def steps_until(self, loss_ms: float, step_ms: float) -> int:
        """Steps of that length until the budget covers the loss."""
        missing_ms = loss_ms - self.credit_ms
        return max(0, int(missing_ms / (self.share * step_ms))) if missing_ms > 0.0 else 0
