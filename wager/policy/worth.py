"""Which drafter to run, for whom and how deep: what drafts have been worth lately, against what they cost.

Of one row tokens are counted. Of several it is the logarithm of each one's speed: who gains nothing by a bet
waits as long for it as who gains. Called by `auto` before every draft; what guesses are
verified is decided when the draft is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from wager.policy.auto_step import Step
from wager.policy.base import MANY, Row
from wager.policy.experience import Experience, longest_context
from wager.policy.gain import SteadyMean
from wager.policy.known import Known
from wager.policy.overrun import Overrun
from wager.policy.reach import Best, best_draft

_LOOKED_AT = 4  # rows for which a draft is made only to see whether it is worth it again
_BEGIN = 0.05  # by how much (log) a crowd must become faster to begin drafting, which has its price


class Worth:
    """Reads what is known and what things cost."""

    def __init__(self, experience: Experience, known: Known, overrun: Overrun) -> None:
        self._experience, self._known, self._overrun = experience, known, overrun
        self.is_drafting = False
        """Whether somebody drafted in the step before."""

    def best_drafter(self, row: Row, num_rows: int, rate: float) -> str | None:
        """The drafter that is worth most to a row, whatever that is; None where it cannot draft."""
        if row.max_depth <= 0 or row.max_nodes <= 0 or not row.drafters or not row.emits:
            return None
        if len(row.drafters) == 1:
            return row.drafters[0]
        costs = self._experience.costs

        def net(drafter: str) -> float:
            draft_ms = costs.draft_ms(drafter, num_rows, row.context_len) / num_rows
            return self._known.gain(row, drafter, num_rows).value - rate * draft_ms

        return max(row.drafters, key=net)

    def depth_alone(self, row: Row, drafter: str, rate: float) -> int | None:
        """How deep to draft for a row that runs alone (0: in full); None where that is not worth its time."""
        gain = max(0.0, self._known.gain(row, drafter, 1).value)
        price = self._price(rate, drafter, 1, row.context_len)
        best = best_draft([self._known.reach(row, drafter)], [gain], price)
        return best.depth if best.net > 0.0 else None

    def weigh(
        self, step: Step, drafter: str, rows: Sequence[Row], places: Sequence[int]
    ) -> tuple[int, list[int]]:
        """How deep to draft (0: in full), and for which of the rows at these places.

        Those to whom it is worth its time; of the others a few, where it is time to look at them again: at
        the depth that would pay first, so that its price is found out. The step is told of all that.
        """
        known, num_rows = self._known, len(rows)
        young = self._young(drafter, rows, places)
        if len(young) == len(places):
            if self._is_due(step, drafter, rows, places):
                step.postponed = max(step.postponed, min(young.values()))
            return 0, []
        gains = {i: known.gain(rows[i], drafter, num_rows) for i in places if i not in young}
        best, ordered = self._best(step.rate, drafter, rows, gains)
        num_worthy = best.num_rows if best.net > self._least(num_rows) else 0
        step.num_worthy += num_worthy
        chosen, others = ordered[:num_worthy], ordered[num_worthy:]
        if self._is_due(step, drafter, rows, others):
            looks = sorted(others, key=lambda i: gains[i].count)[:_LOOKED_AT]
            step.probing.update(looks)
            chosen += looks
        return best.depth, chosen

    def is_worth(self, rate: float, drafter: str, rows: Sequence[Row]) -> bool:
        """Whether it would be worth its time to draft for some of these rows, with what is known by now."""
        able = [i for i, row in enumerate(rows) if row.emits and drafter in row.drafters]
        gains = {i: self._known.gain(rows[i], drafter, len(rows)) for i in able}
        return bool(gains) and self._best(rate, drafter, rows, gains)[0].net > self._least(len(rows))

    def _least(self, num_rows: int) -> float:
        """What a draft must be worth, net of its price."""
        return 0.0 if num_rows < MANY or self.is_drafting else _BEGIN * num_rows

    def _best(
        self, rate: float, drafter: str, rows: Sequence[Row], gains: Mapping[int, SteadyMean]
    ) -> tuple[Best, list[int]]:
        """The best depth and number of rows, and the places of those that gain something, best first."""
        num_rows = len(rows)
        ordered = sorted(gains, key=lambda i: -gains[i].value) if len(gains) > 1 else list(gains)
        best = best_draft(
            [self._known.reach(rows[i], drafter) for i in ordered],
            [_counted(max(0.0, gains[i].value), num_rows) for i in ordered],
            self._price(rate, drafter, num_rows, longest_context([rows[i] for i in gains])),
        )
        return best, ordered

    def _is_due(self, step: Step, drafter: str, rows: Sequence[Row], places: Sequence[int]) -> bool:
        """Whether it is time to look at some of these rows, for whom it does not draft."""
        phases = {rows[i].phase for i in places}
        probes = {phase: self._known.line(drafter, phase).probe(len(rows)) for phase in phases}
        step.probes += probes.values()
        return any([probe.due() for probe in probes.values()])  # noqa: C419 (each one counts this step)

    def _price(
        self, rate: float, drafter: str, num_rows: int, context_len: int
    ) -> Callable[[int, int], float]:
        """By depth and rows drafted for, what a draft's time is worth in tokens, counted as gains are."""
        costs, more_ms = self._experience.costs, self._overrun.of(num_rows)

        def price(depth: int, num: int) -> float:
            time_ms = costs.draft_ms(drafter, num, context_len, depth) + more_ms
            return num_rows * _counted(rate * time_ms / num_rows, num_rows)

        return price

    def _young(self, drafter: str, rows: Sequence[Row], places: Sequence[int]) -> dict[int, int]:
        """Rows of a crowd that is not known yet whose answers have just begun, and for how long to wait."""
        if len(rows) < MANY:
            return {}
        known, phases = self._known, {rows[i].phase for i in places}
        if all(known.knows_crowd(drafter, phase, len(rows)) for phase in phases):
            return {}
        return {i: youth for i in places if (youth := known.youth(rows[i]))}


def _counted(tokens: float, num_rows: int) -> float:
    """What tokens that a row gains count for."""
    return math.log1p(tokens) if num_rows > 1 else tokens
