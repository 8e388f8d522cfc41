"""While nothing is worth guessing, `auto` rests: for some steps nobody asks a drafter whether it could.

Asking costs as much host time as deciding, for every row of every step. A rest lasts until the next look at
a drafter is due, of few rows a few steps at most, and ends where their number changes, of many by half, since
what a draft costs each of them changes with it. Knows neither costs nor gains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wager.policy.base import Row
from wager.policy.gain import Probe

_LONGEST = 16  # steps;
MANY = 8  # from so many rows on at least
_LEAST_OF_MANY = 512  # since a wake-up costs host time that runs ahead of the device otherwise
_UNABLE = 32  # steps for which drafters are not asked then that could propose nothing to anyone


class Rest:
    """Counts steps; `holds` is asked before each of them."""

    def __init__(self) -> None:
        self._now = 0
        self._begun = 0
        self._until = 0
        self._num_rows = 0
        self._drafters: set[str] = set()

    def begin(self, rows: Sequence[Row], probes: Iterable[Probe], blocked: int = 0) -> None:
        """Nothing was offered to these rows: rest from the next step on.

        probes: of the drafters that were weighed, the best of each row; they tell when the next look is due.
        blocked: steps in which nobody may bet, whatever it is worth.
        """
        able, many = {drafter for row in rows for drafter in row.drafters}, len(rows) >= MANY
        self._drafters |= able
        due = min([probe.left - 1 for probe in probes], default=_LONGEST)
        # Of many, looks wait for a moment in which they are awake anyway.
        longest = max(_LEAST_OF_MANY, due) if many else _LONGEST
        steps = longest if many else min(longest, due)
        if not able or self._drafters - able:  # one that could not may find something at any step
            steps = min(steps, _UNABLE if many else 0)
        steps = min(longest, max(steps, blocked - 1))
        self._begun = self._now
        self._until = self._now + 1 + steps
        self._num_rows = len(rows)

    def pause(self, num_rows: int) -> None:
        """Nothing may be offered in the next step either."""
        self._begun, self._until, self._num_rows = self._now, self._now + 2, num_rows

    def holds(self, num_rows: int, ahead: int = 0) -> bool:
        """For the step that is being planned, or the one `ahead` of it."""
        if self._now + ahead >= self._until:
            return False
        if self._num_rows < MANY:
            return num_rows == self._num_rows
        return self._num_rows <= 2 * num_rows <= 3 * self._num_rows

    def tick(self) -> None:
        """A step was taken."""
        self._now += 1

    def cut(self) -> None:
        """There is news: look at once."""
        self._until = self._now

    def end(self) -> int:
        """Steps that went by at rest since last asked."""
        rested = max(0, self._now - self._begun - 1) if self._until > self._begun else 0
        self._begun = self._until = self._now
        return rested
