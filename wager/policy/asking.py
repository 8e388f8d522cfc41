"""What it costs to ask: by how much plain steps take longer in which drafters were asked and nothing was bet.

A drafter that copies from the text may find something at any step, so as long as it might it is asked at
every step; but asking takes the host's time, and on a device keeps plain passes from running ahead. It is
worth it while the bets that it leads to gain more than that. Known by octaves of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from wager.policy.auto_step import Step
from wager.policy.base import StepOutcome, crowd_of

_RATE = 0.05  # share of the newest step in what plain steps take,
_WORTH_RATE = 0.02  # and in what asking gains
_LITTLE = 0.1  # plain steps; below this gain resting is tried, to find out what it saves
_CHEAP = 0.01  # of a plain step is no price worth minding
_OUTLIER = 2.0  # times what a plain step should take: a stall, which says nothing


@dataclass(slots=True)
class _Crowd:
    """Means over steps of about as many rows; times in those of the plain pass."""

    asked: float | None = None
    resting: float | None = None
    worth: float = 1.0
    """What a step in which drafters were asked gained: its tokens, less its time. Nothing without a bet."""


class Asking:
    """Kept by `auto`."""

    def __init__(self) -> None:
        self._crowds: dict[int, _Crowd] = {}

    def learn(self, outcome: StepOutcome, step: Step) -> None:
        """A finished step. Prompts take a time of their own, and looks are no bets: they are left out."""
        num_rows = len(outcome.rows)
        if step.base_tokens != num_rows or step.probing:
            return
        crowd, asked = self._of(num_rows), not step.has_rested
        time = (outcome.verify_ms + outcome.draft_ms) / step.base_ms
        drafted = any(share.offer.drafter for share in outcome.rows)
        if asked:
            tokens = sum([share.accepted + share.row.emits for share in outcome.rows]) / num_rows
            crowd.worth += _WORTH_RATE * ((tokens - time if drafted else 0.0) - crowd.worth)
        if drafted:
            return
        time = min(time, _OUTLIER)
        before = crowd.asked if asked else crowd.resting
        mean = time if before is None else before + _RATE * (time - before)
        if asked:
            crowd.asked = mean
        else:
            crowd.resting = mean

    def pays(self, num_rows: int) -> bool:
        """Whether a step in which nobody was worth a draft should ask all the same."""
        crowd = self._of(num_rows)
        if crowd.asked is None or crowd.resting is None:
            return crowd.worth >= _LITTLE
        return crowd.worth + _CHEAP >= crowd.asked - crowd.resting

    def _of(self, num_rows: int) -> _Crowd:
        return self._crowds.setdefault(crowd_of(num_rows), _Crowd())
