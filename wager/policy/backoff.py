"""Intervals between trials of something that does not pay: they double with each loss and end with a win.

Used by the gates and by `bod`. `auto` has a budget in time instead (exploration.py).
"""

from __future__ import annotations

LONGEST_INTERVAL = 48
"""Steps between two trials at most."""


class Backoff:
    """Counts the steps between trials."""

    def __init__(self, longest: int = LONGEST_INTERVAL) -> None:
        self.longest = longest
        self.interval = 1
        self.waited = 0

    @property
    def is_due(self) -> bool:
        """Whether the next step is a trial."""
        return self.waited + 1 >= self.interval

    def wait(self) -> None:
        """A step went by without a trial."""
        self.waited += 1

    def result(self, *, won: bool) -> None:
        """A trial was made."""
        self.waited = 0
        self.interval = 1 if won else min(self.interval * 2, self.longest)
