"""How much time may be spent to learn what is not known: one budget, a share of all elapsed time.

An exploration is a step that is expected to be worth less than the best one: a draft that seems not worth its
time, or a plain step where drafting pays. It is taken when the budget covers the time that it is expected to
lose. Called by auto.py.
"""

from __future__ import annotations

EXPLORED_SHARE = 0.0035
"""Share of elapsed time: a third of what the ledger lets a server lose."""
LONGEST_PAUSE = 12
"""Steps between two drafts that are explored, at most."""
GAINED_SHARE = 0.005
"""Share of the time that was saved against plain decoding."""
START_STEPS = 3.0
"""Plain steps that the budget begins with."""
MOST_SAVED = 8.0
"""Plain steps for which the budget saves at most, so that a calm hour buys no storm."""


class Exploration:
    """The budget in milliseconds."""

    def __init__(self) -> None:
        self.credit_ms = 0.0
        self._has_begun = False
        self._num_vain = self._num_steps = 0
        """Drafts explored in vain since the last one that gained, and steps since the latest."""

    @property
    def is_due(self) -> bool:
        """Whether another draft may be explored: each one in vain makes the pause one step longer."""
        return self._num_steps >= min(self._num_vain, LONGEST_PAUSE)

    def affords(self, loss_ms: float) -> bool:
        return self.credit_ms >= loss_ms

    def earn(self, elapsed_ms: float, plain_ms: float, gained_ms: float = 0.0, num_steps: int = 1) -> None:
        """Time went by, in steps whose plain time is known; the first one brings the credit of the start.

        `gained_ms`: what the step has saved against plain decoding, of which a part may be spent.
        """
        if not self._has_begun:
            self._has_begun, self.credit_ms = True, START_STEPS * plain_ms
        self._num_steps += num_steps
        self.settle(EXPLORED_SHARE * elapsed_ms + GAINED_SHARE * gained_ms, plain_ms)

    def settle_draft(self, gained_ms: float, plain_ms: float) -> None:
        """A draft that was explored has gained so much time; negative where it lost."""
        self._num_vain, self._num_steps = 0 if gained_ms > 0.0 else self._num_vain + 1, 0
        self.settle(gained_ms, plain_ms)

    def settle(self, gained_ms: float, plain_ms: float) -> None:
        """An exploration has gained so much time; negative where it lost."""
        self.credit_ms = min(self.credit_ms + gained_ms, MOST_SAVED * plain_ms)
