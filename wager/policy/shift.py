"""Has the ground moved? Page's test: evidence for a shift in either direction, added up since last nil.

Fed with deviations in units of what chance explains; a deviation within the slack counts against a shift.
It knows nothing of what the numbers mean. Used by the gain and by the calibration.
"""

from __future__ import annotations

_MOST = 3.0  # one sample counts for no more than this


class ShiftTest:
    """`add` answers True when deviations since some moment have added up beyond `alarm`; then starts anew."""

    __slots__ = ("_alarm", "_down", "_slack", "_up")

    def __init__(self, slack: float, alarm: float) -> None:
        self._slack = slack
        self._alarm = alarm
        self._up = self._down = 0.0

    def add(self, deviation: float) -> bool:
        deviation = max(-_MOST, min(_MOST, deviation))
        self._up = max(0.0, self._up + deviation - self._slack)
        self._down = max(0.0, self._down - deviation - self._slack)
        if max(self._up, self._down) <= self._alarm:
            return False
        self._up = self._down = 0.0
        return True
