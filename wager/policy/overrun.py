"""By how much steps of a crowd that draft take longer than passes and drafts are known to.

Plain steps of many rows run ahead of the host (the engine's affair); one in which somebody drafts waits for
it: rows are asked one by one, forests built, and the step behind it begins late. None of that is a pass's
time or a draft's, yet a bet has to pay for it. The first such step of a drafter takes longer still, with
contexts to be read in that it did not need before: that is the price of beginning, which accounts must bear,
not of drafting. By octaves of rows; `auto` adds it to what a draft costs. Few rows have none. Knows neither
costs nor gains.
"""

from __future__ import annotations

from wager.policy.base import MANY, crowd_of

_NEWEST = 0.3  # share of the newest step
_MOST = 3.0  # plain steps that one step may be said to be late by: a machine that stood still says nothing
_FEW, _ALL = 16, 112  # rows of a first step that is late by what it reads alone, and by the host alone
_FADES = 0.8  # what is left of it behind a look that lost: it was long ago


class Overrun:
    """Milliseconds, by how crowded a step is."""

    def __init__(self) -> None:
        self._ms: dict[int, float] = {}
        self._first_ms: dict[int, float] = {}

    def of(self, num_rows: int) -> float:
        """Of a step behind another in which somebody drafted; a part of a first one's until one was seen."""
        if num_rows < MANY:
            return 0.0
        known = self._ms.get(crowd_of(num_rows))
        if known is not None:
            return known
        return self.of_first(num_rows) * min(max(0.0, (num_rows - _FEW) / (_ALL - _FEW)), 1.0)

    def of_first(self, num_rows: int) -> float:
        """Of one in which a drafter begins that did not run in the step before."""
        return self._first_ms.get(crowd_of(num_rows), 0.0) if num_rows >= MANY else 0.0

    def learn(
        self, num_rows: int, spent_ms: float, expected_ms: float, plain_ms: float, *, is_first: bool = False
    ) -> None:
        """A step in which somebody drafted: what it took, what was expected, and a plain step's time."""
        late = min(max(0.0, spent_ms - expected_ms), _MOST * plain_ms)
        crowd, times = crowd_of(num_rows), self._first_ms if is_first else self._ms
        known = times.setdefault(crowd, late)
        times[crowd] = known + _NEWEST * (late - known)

    def fade(self, num_rows: int) -> None:
        """It was not worth drafting for so many rows once more."""
        crowd = crowd_of(num_rows)
        if crowd in self._ms:
            self._ms[crowd] *= _FADES
