"""While nothing is worth guessing, `auto` rests: for some steps nobody asks a drafter whether it could.

Asking costs as much host time as deciding, for every row of every step. A rest lasts until the next look at
a drafter is due, of few rows a few steps at most, and is for their number, of many for about as many, since
what a draft costs each of them changes with it: rows that leave end it, and it goes on when as many are back.
Knows neither costs nor gains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wager.policy.base import MANY, Row
from wager.policy.gain import Probe

_LONGEST = 16  # steps; a crowd rests longer, so many steps at least
_LEAST_OF_MANY = 4  # for each row: a wake-up costs host time that runs ahead of the device otherwise;
_LARGE = 32  # beyond so many rows the more for each the more there are, and news of few is none for them
_UNABLE = 32  # steps for which drafters are not asked then that could propose nothing to anyone


class _Spell(NamedTuple):
    """A rest of so many rows, until a step is reached."""

    num_rows: int
    until: int

    def is_for(self, num_rows: int) -> bool:
        if self.num_rows < MANY or num_rows < MANY:
            return num_rows == self.num_rows
        return self.num_rows < 2 * num_rows <= 3 * self.num_rows


class Rest:
    """Counts steps; `holds` is asked before each of them."""

    def __init__(self) -> None:
        self._now = 0
        self._asked = 0
        """The latest step at which drafters were asked."""
        self._spells: list[_Spell] = []
        self._drafters: set[str] = set()

    def begin(
        self, rows: Sequence[Row], probes: Iterable[Probe], blocked: int = 0, *, ask_again: bool = True
    ) -> None:
        """Nothing was offered to these rows: rest from the next step on.

        probes: of the drafters that were weighed, the best of each row; they tell when the next look is due.
        blocked: steps in which nobody may bet, whatever it is worth. ask_again: whether a drafter that could
        propose nothing is worth being asked at every step.
        """
        able, many = {drafter for row in rows for drafter in row.drafters}, len(rows) >= MANY
        self._drafters |= able
        due = min([probe.left - 1 for probe in probes], default=_LONGEST)
        # Of many, looks wait for a moment in which they are awake anyway.
        least = _LEAST_OF_MANY * len(rows) * max(1, len(rows) // _LARGE) ** 2
        longest = max(least, due) if many else _LONGEST
        steps = longest if many else min(longest, due)
        if not able or self._drafters - able:  # one that could not may find something at any step
            steps = min(steps, _UNABLE) if many else 0 if ask_again else steps
        self._lie(len(rows), 1 + min(longest, max(steps, blocked - 1)))

    def pause(self, num_rows: int, steps: int = 1) -> None:
        """Nothing may be offered in the next step either, or in so many."""
        self._lie(num_rows, 1 + steps)

    def _lie(self, num_rows: int, steps: int) -> None:
        others = [one for one in self._spells if one.until > self._now and not one.is_for(num_rows)]
        self._spells = [*others, _Spell(num_rows, self._now + steps)]

    def holds(self, num_rows: int, ahead: int = 0) -> bool:
        """For the step that is being planned, or the one `ahead` of it."""
        step = self._now + ahead
        return any(step < one.until and one.is_for(num_rows) for one in self._spells)

    def tick(self) -> None:
        """A step was taken."""
        self._now += 1

    def cut(self, num_rows: int) -> None:
        """There is news from a step of so many rows: look at once; large crowds of another size rest on."""
        self._spells = [one for one in self._spells if one.num_rows > _LARGE and not one.is_for(num_rows)]

    def end(self) -> int:
        """Drafters are asked now: the number of steps since they were asked last."""
        rested = max(0, self._now - self._asked - 1)
        self._asked = self._now
        return rested
