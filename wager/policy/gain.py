"""What drafting has been worth lately: a slow mean that jumps when the ground has moved.

A slow mean decides better than a quick one (a quick one dithers around the threshold), but must not take a
thousand drafts to notice that a drafter turned good or bad. So a test watches it, and on an alarm (its own,
or the calibration's, which sees hits and misses) it starts again from the last samples. It knows no costs.
"""

from __future__ import annotations

import math

from wager.policy.base import MANY
from wager.policy.shift import ShiftTest

_RECENT = 0.2  # share of the newest sample in the quick mean that a restart begins from


class SteadyMean:
    """A mean over up to `memory` samples with change detection; `value` is the prior before the first."""

    def __init__(self, prior: float, *, prior_weight: float = 2.0, memory: float = 400.0) -> None:
        self.value = prior
        self.count = prior_weight
        self.memory = memory
        self._recent = prior
        self._variance = 0.25
        self._test = ShiftTest(slack=1.0, alarm=8.0)
        self.is_copy = False
        """Whether it is as another one was, and has seen nothing itself."""

    def copy(self) -> SteadyMean:
        """Another that starts where this one is, with little weight."""
        copy = SteadyMean(self.value, prior_weight=min(self.count, 8.0), memory=self.memory)
        copy.is_copy = True
        return copy

    def add(self, sample: float) -> None:
        self.is_copy = False
        deviation = sample - self.value
        shifted = self._test.add(deviation / math.sqrt(self._variance + 1e-9))
        self.count = min(self.count + 1.0, self.memory)
        self.value += deviation / self.count
        self._variance += max(0.02, 1.0 / self.count) * (deviation * deviation - self._variance)
        self._recent += _RECENT * (sample - self._recent)
        if shifted:
            self.restart()

    def restart(self) -> None:
        """The past says little about now: go on from the last few samples."""
        self.value = self._recent
        self.count = 1.0 / _RECENT


class Probe:
    """When to try again while betting zero: intervals double while it loses and start over when it wins.

    `longest` bounds the interval from above, unless a look is so dear that it must be rarer still: looking
    costs at most `_LOOKING` of plain decoding's time in the long run; of a crowd from the first loss on, and
    the less the larger it is, since there is less to be found. `looks` are taken in a row, or fewer where one
    wins. A crowd in which nobody drafts tries it: `TRIAL` looks, whatever they show, since the first pays for
    what the drafter has missed and says nothing of those behind it. Large crowds look once.
    """

    def __init__(self, longest: int = 48, looks: int = 1) -> None:
        self.longest = longest
        self.looks = looks
        self.interval = 1
        self._waited = 0
        self._taken = 0
        self._price = 0.0
        """Of the looks taken in a row."""

    def due(self) -> bool:
        """Count one more step without a draft; True when it is time to try."""
        self._waited += 1
        return self._waited >= self.interval

    @property
    def left(self) -> int:
        """Steps without a draft until the next try."""
        return max(0, self.interval - self._waited)

    def skip(self, steps: int) -> None:
        """So many steps went by without anybody asking."""
        self._waited += steps

    def result(self, *, won: bool, price: float = 0.0, num_rows: int = 1, tries: bool = True) -> None:
        """A look has been taken in a step of so many rows, at the price of so many plain steps.

        tries: whether a crowd would not have drafted otherwise.
        """
        self._taken += 1
        self._price += price
        many = num_rows >= MANY
        looks = self.looks if not many else TRIAL if tries and num_rows <= TRIED else 1
        if self._taken < looks and (many or not won):
            return  # the next one is due at once
        # Of few rows the last tells: the first has paid for what the drafter missed, and may have been late.
        price = max(0.0, self._price) if many else self._taken * price
        dear = math.ceil(price / _LOOKING * max(1.0, num_rows / _LARGE) ** 4)
        self._begin_waiting()
        longest, least = max(self.longest, dear), dear if many else dear // _DEAR
        if won and many:
            self.interval = max(self.interval, least)  # what comes of it will show (`paid`)
        else:
            self.interval = 1 if won else min(max(self.interval * 2, least), longest)

    def paid(self) -> None:
        """A crowd drafted, and was faster by it: were that to end, it would be worth looking again sooner."""
        self.interval = max(1, self.interval // 2)
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        self._waited, self._taken, self._price = 0, 0, 0.0


TRIAL = 4
"""Looks in a row of a crowd,"""
TRIED = 16
"""of so many rows at most."""
_LOOKING = 0.005
_LARGE = 32  # rows beyond which it is less, soon far less: there is nothing to be found
_DEAR = 8  # at the first loss already the interval is this part of what it may become, where looks are dear
