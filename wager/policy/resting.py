"""For how many steps no drafter need be asked whether it could propose something.

Asking takes host time for every row, and on a device the next plain pass cannot be launched early while the
answer is open. While drafting does not pay, `auto` knows when it would next draft, and rests until then. A
drafter that can propose only now and then, as one that copies from the text, would be missed; so it is asked
all the same where its proposals have gained more than asking costs. It decides nothing; auto.py calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wager.policy.base import UNLIMITED, Row
from wager.policy.costs import octave_of

LONGEST_REST = 16
"""Steps of a rest at most: costs and texts may have changed."""
USUALLY = 0.5
"""Share of the asked rows for which a drafter must be able to propose to count as able unasked."""
ALWAYS = 0.9
"""Share above which a drafter has nothing to be missed."""
ABLE_RATE = 0.1
"""Share of the newest step in how often drafters can propose."""
GAIN_RATE = 0.05
"""Share of the newest step in what asking gains and costs."""


class Resting:
    """Rests by octave of rows, and what asking costs and gains."""

    def __init__(self, drafters: Iterable[str]) -> None:
        self._now = 0
        self._until: dict[int, int] = {}
        """The step at which the rest of an octave of rows ends."""
        self._able: dict[str, float] = dict.fromkeys(drafters, 1.0)
        """Share of the asked rows for which a drafter could propose."""
        self._cost_ms: dict[int, float] = {}
        """By how much plain steps are longer in which drafters were asked."""
        self._gain_ms: dict[int, float] = {}
        """What steps gain in which drafters were asked."""

    def holds(self, num_rows: int, ahead: int = 0) -> bool:
        """Whether the coming step, or the one `ahead` of it, needs no drafters.

        The first step of a batch size is plain as well: its time is the measure of all bets.
        """
        octave = octave_of(num_rows)
        if octave not in self._until:
            return octave > 0 and ahead == 0
        return self._until[octave] > self._now + ahead

    def step(self, num_rows: int, rest: int | None) -> None:
        """A step of so many rows was taken; it was asked in, and a rest follows it, unless `rest` is None."""
        self._now += 1
        octave = octave_of(num_rows)
        if rest is not None or octave not in self._until:
            self._until[octave] = self._now + min(rest or 0, LONGEST_REST)

    def extend(self, num_rows: int, rest: int) -> None:
        self._until[octave_of(num_rows)] = self._now + min(rest, LONGEST_REST)

    def asked(self, rows: Sequence[Row], gain_ms: float, cost_ms: float | None, plain_ms: float) -> None:
        """Drafters were asked in a step: what its plan gains, and what asking cost where nothing was bet."""
        if not rows:
            return
        octave = octave_of(len(rows))
        for name in {*self._able, *[name for row in rows for name in row.drafters]}:
            share = sum([name in row.drafters for row in rows]) / len(rows)
            known = self._able.get(name, share)
            self._able[name] = known + ABLE_RATE * (share - known)
        known_ms = self._gain_ms.get(octave, plain_ms)
        self._gain_ms[octave] = known_ms + GAIN_RATE * (gain_ms - known_ms)
        if cost_ms is not None:
            known_ms = self._cost_ms.get(octave, cost_ms)
            self._cost_ms[octave] = known_ms + GAIN_RATE * (cost_ms - known_ms)

    def worth_asking(self, num_rows: int, plain_ms: float) -> float | None:
        """The price of asking drafters that can propose only now and then; 0 where that pays.

        None: there is no such drafter.
        """
        if min(self._able.values(), default=1.0) > ALWAYS:
            return None
        octave = octave_of(num_rows)
        gain_ms = self._gain_ms.get(octave, plain_ms)  # optimistic until it was tried
        cost_ms = self._cost_ms.get(octave, 0.0)
        return 0.0 if gain_ms >= cost_ms else cost_ms

    def assumed(self, row: Row) -> Row:
        """The row with the drafters that can mostly propose, where they were not asked."""
        if row.drafters:
            return row
        names = tuple([name for name, share in self._able.items() if share >= USUALLY])
        return row._replace(drafters=names, grades=(), max_nodes=UNLIMITED)
