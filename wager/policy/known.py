"""What drafters have shown so far: to all requests, and to each of them.

A request starts as the others were lately and soon goes by what it sees itself; a new phase of a text starts
from what is known of its drafter elsewhere. It keeps and hands out; `auto` decides.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from wager.policy.base import MANY, Row, crowd_of
from wager.policy.calibration import Calibrator
from wager.policy.gain import Probe, SteadyMean
from wager.policy.reach import Reach
from wager.policy.survival import Survival

_RATE_MEMORY = 0.99  # per step, of the long-run speed-up
_QUICKEST = 4.0  # speed-up of a text that still says what time is worth in the rest of it: copies may have 30
_START = 20.0  # plain steps that count as plain decoding before anything was seen
_LOOKS = 3  # drafts in a row when one is tried again: the first pays for what it missed meanwhile
_OWN_STEPS = 8.0  # plain steps of its own after which a request's pace counts as much as the others'
_YOUNG = 8  # steps in which a drafter has not found its way into an answer yet: they say little of the rest
_WELL_KNOWN = 16.0  # drafts after which a crowd's gain is more than a guess


Gains = dict[int, SteadyMean]
"""What drafts were worth, by how crowded the step was in octaves of rows: what a guess costs hangs on it."""


@dataclass(slots=True)
class Line:
    """What is known of one drafter in one phase."""

    calibrator: Calibrator
    gains: Gains
    reach: Reach
    longest_probe: int
    probes: dict[int, Probe] = field(default_factory=dict)
    """When to look again: for few rows, and for each crowd, which may be worth drafting for or not."""

    def probe(self, num_rows: int) -> Probe:
        crowd = crowd_of(num_rows) if num_rows >= MANY else 0
        probe = self.probes.get(crowd)
        if probe is None:
            probe = self.probes[crowd] = Probe(self.longest_probe, _LOOKS)
        return probe

    def gain(self, crowd: int) -> SteadyMean:
        """In a crowd not seen yet as in the nearest one."""
        gain = self.gains.get(crowd)
        if gain is None:
            gain = self.gains[crowd] = self.gains[_nearest(self.gains, crowd)].copy()
        return gain


@dataclass(slots=True)
class _Pace:
    """Discounted plain time of what was emitted, and time spent on it, in plain steps."""

    worth: float
    spent: float

    @property
    def speedup(self) -> float:
        return min(max(1.0, self.worth / self.spent), _QUICKEST)

    def add(self, worth: float, spent: float) -> None:
        self.worth = _RATE_MEMORY * self.worth + worth
        self.spent = _RATE_MEMORY * self.spent + spent


@dataclass(slots=True)
class _Own:
    """What one request has shown."""

    pace: _Pace
    steps: int = 0
    gains: dict[tuple[str, str], Gains] = field(default_factory=dict)
    """What drafts were worth to it, by drafter and phase,"""
    reaches: dict[tuple[str, str], Reach] = field(default_factory=dict)
    """and what shorter ones would have kept of that."""
    survival: Survival = field(default_factory=Survival)
    """How far guesses without probabilities stood, by drafter and phase."""


class Known:
    """Lines by drafter and phase, and what each request has of its own."""

    def __init__(self, first_gain: float, longest_probe: int) -> None:
        """first_gain: tokens a draft is taken to be worth before one was seen."""
        self._first_gain = first_gain
        self._longest_probe = longest_probe
        self._lines: dict[tuple[str, str], Line] = {}
        self._own: dict[Hashable, _Own] = {}
        self._pace = _Pace(_START, _START)

    def line(self, drafter: str, phase: str) -> Line:
        line = self._lines.get((drafter, phase))
        if line is None:
            kin = next((known for (name, _), known in self._lines.items() if name == drafter), None)
            if kin is None:
                calibrator, gains, reach = Calibrator(), {0: SteadyMean(self._first_gain)}, Reach()
            else:
                calibrator, reach = kin.calibrator.copy(), kin.reach.copy()
                gains = {crowd: gain.copy() for crowd, gain in kin.gains.items()}
            line = self._lines[drafter, phase] = Line(calibrator, gains, reach, self._longest_probe)
        return line

    def gain(self, row: Row, drafter: str, num_rows: int) -> SteadyMean:
        """What drafts have been worth to this request in steps of so many rows.

        Until it has seen a draft itself it goes by what they are worth to all, better or worse by as much as
        it fared in other crowds.
        """
        return self.gain_of(row.request_id, drafter, row.phase_of(drafter), num_rows)

    def gain_of(self, request_id: Hashable, drafter: str, phase: str, num_rows: int) -> SteadyMean:
        """The same in a phase that the request need not be in now."""
        crowd, line = crowd_of(num_rows), self.line(drafter, phase)
        gains = self._of(request_id).gains.setdefault((drafter, phase), {})
        gain = gains.get(crowd)
        if gain is None or gain.is_copy:
            gain = line.gain(crowd).copy()
            seen = {own: known for own, known in gains.items() if not known.is_copy}
            if seen:
                near = _nearest(seen, crowd)
                gain.value += seen[near].value - line.gain(near).value
            gains[crowd] = gain
        return gain

    def reach(self, row: Row, drafter: str) -> Reach:
        """The same of what shorter drafts keep."""
        reaches, key = self._of(row.request_id).reaches, (drafter, row.phase_of(drafter))
        reach = reaches.get(key)
        if reach is None:
            reach = reaches[key] = self.line(*key).reach.copy()
        return reach

    def survival(self, row: Row) -> Survival:
        """How far guesses without probabilities stood in this request."""
        return self._of(row.request_id).survival

    def pace(self, rows: Sequence[Row]) -> float:
        """Tokens per plain step that these rows make together: what a millisecond is worth to them."""
        total = 0.0
        for row in rows:
            if row.emits:
                total += self._of(row.request_id).pace.speedup
        return max(total, 1.0)

    def enter(self, emitted: Mapping[Hashable, int], spent: float) -> None:
        """A step emitted so many tokens for each request and took so many plain steps' time."""
        self._pace.add(sum(emitted.values()) / len(emitted), spent)
        for request_id, tokens in emitted.items():
            own = self._of(request_id)
            own.pace.add(tokens, spent)
            own.steps += 1

    def youth(self, row: Row) -> int:
        """Steps until what drafts are worth to this request can be told; 0 where that is so."""
        return max(0, _YOUNG - self._of(row.request_id).steps)

    def knows_crowd(self, drafter: str, phase: str, num_rows: int) -> bool:
        """Whether drafts in steps of so many rows have been seen often."""
        return self.line(drafter, phase).gain(crowd_of(num_rows)).count >= _WELL_KNOWN

    def skip(self, steps: int, num_rows: int) -> None:
        """Nobody drafted for so many steps, and nobody asked; so many rows are asked now."""
        for line in self._lines.values():
            line.probe(num_rows).skip(steps)

    def restart(self, drafter: str, phase: str) -> None:
        """The drafter has changed: what its drafts were worth before says little, to anyone."""
        known = [self.line(drafter, phase).gains]
        known += [own.gains.get((drafter, phase), {}) for own in self._own.values()]
        for gains in known:
            for gain in gains.values():
                gain.restart()

    def forget(self, request_id: Hashable) -> None:
        self._own.pop(request_id, None)

    def _of(self, request_id: Hashable) -> _Own:
        own = self._own.get(request_id)
        if own is None:
            own = self._own[request_id] = _Own(_Pace(_OWN_STEPS * self._pace.speedup, _OWN_STEPS))
        return own


def _nearest(gains: Gains, crowd: int) -> int:
    return min(gains, key=lambda known: abs(known - crowd))
