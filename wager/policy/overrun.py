"""By how much steps of a crowd that draft take longer than passes and drafts are known to.

Plain steps of many rows run ahead of the host (the engine's affair); one in which somebody drafts waits for
it: rows are asked one by one, contexts read in that no draft needed before, and the step behind it begins
late. None of that is a pass's time or a draft's, yet a bet has to pay for it. By octaves of rows; `auto`
adds it to what a draft costs. Few rows have none. Knows neither costs nor gains.
"""

from __future__ import annotations

from wager.policy.base import MANY, crowd_of

_NEWEST = 0.3  # share of the newest step
_MOST = 3.0  # plain steps that one step may be said to be late by: a machine that stood still says nothing


class Overrun:
    """Milliseconds, by how crowded a step is."""

    def __init__(self) -> None:
        self._ms: dict[int, float] = {}

    def of(self, num_rows: int) -> float:
        return self._ms.get(crowd_of(num_rows), 0.0) if num_rows >= MANY else 0.0

    def learn(self, num_rows: int, spent_ms: float, expected_ms: float, plain_ms: float) -> None:
        """A step in which somebody drafted: what it took, what was expected, and a plain step's time."""
        late = min(max(0.0, spent_ms - expected_ms), _MOST * plain_ms)
        crowd = crowd_of(num_rows)
        known = self._ms.setdefault(crowd, late)
        self._ms[crowd] = known + _NEWEST * (late - known)
