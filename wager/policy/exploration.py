"""How much time may be spent to learn what is not known: one budget, a share of all elapsed time.

An exploration is a step that is expected to be worth less than the best one: a draft that seems not worth its
time, or a plain step where drafting pays. It is taken when the budget covers the time that it is expected to
lose. Called by auto.py.
"""

from __future__ import annotations

EXPLORED_SHARE = 0.0035
"""Share of elapsed time: a third of what the ledger lets a server lose."""
START_STEPS = 3.0
"""Plain steps that the budget begins with."""
MOST_SAVED = 8.0
"""Plain steps for which the budget saves at most, so that a calm hour buys no storm."""


class Exploration:
    """The budget in milliseconds."""

    def __init__(self) -> None:
        self.credit_ms = 0.0
        self._has_begun = False

    def affords(self, loss_ms: float) -> bool:
        return self.credit_ms >= loss_ms

    def earn(self, elapsed_ms: float, plain_ms: float) -> None:
        """Time went by, in a step whose plain time is known; the first one brings the credit of the start."""
        if not self._has_begun:
            self._has_begun, self.credit_ms = True, START_STEPS * plain_ms
        self.settle(EXPLORED_SHARE * elapsed_ms, plain_ms)

    def settle(self, gained_ms: float, plain_ms: float) -> None:
        """An exploration has gained so much time; negative where it lost."""
        self.credit_ms = min(self.credit_ms + gained_ms, MOST_SAVED * plain_ms)
