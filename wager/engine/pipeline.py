"""The pipeline: the verify pass that was launched before the step it belongs to, if there is one.

A device is idle while the host reads choices, hands out tokens and plans. A pass that is launched before the
host knows all of its input avoids that. Every such pass rests on an assumption about the step it is for; the
strategies in `prelaunch/` state it. The step takes the pass if the assumption holds, and otherwise launches
the pass that it needs. At most one verify pass is in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from enum import Enum

from wager.engine.context import EngineParts
from wager.engine.rows import StepRow
from wager.engine.scheduler import Planned
from wager.target import RunResult


class Strategy(Enum):
    """The prelaunch strategy that launched a pass; see the file of that name in `prelaunch/`."""

    PLAIN = "plain"
    BLIND = "blind"
    COPY = "copy"


@dataclass(slots=True)
class InFlight:
    """A verify pass that was launched before its step."""

    strategy: Strategy
    planned: list[Planned]
    """The sequences in the pass, with the number of their pending tokens that it reads."""
    result: RunResult
    holds_for: Callable[[Many[StepRow]], bool]
    """Whether the assumption under which the pass was launched holds for these rows of a step."""


class Pipeline:
    """Holds the verify pass in flight."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._in_flight: InFlight | None = None
        self.num_plain = 0
        """Steps in a row, up to the latest one that was verified, in which no row drafted."""

    @property
    def strategy(self) -> Strategy | None:
        """The strategy that launched the pass in flight."""
        return None if self._in_flight is None else self._in_flight.strategy

    @property
    def in_flight(self) -> InFlight | None:
        return self._in_flight

    def add(self, in_flight: InFlight | None) -> None:
        """Register a pass that has just been launched. It replaces one whose assumption has failed."""
        if in_flight is not None:
            self._in_flight = in_flight

    def planned(self) -> list[Planned]:
        """The rows that the next step must have: those of a plain pass in flight that are still running.

        Empty where no such pass is in flight; the scheduler then plans the step.
        """
        in_flight = self._in_flight
        if in_flight is None or in_flight.strategy is not Strategy.PLAIN:
            return []
        running = set(map(id, self._parts.scheduler.running))
        found = [row for row in in_flight.planned if id(row.sequence) in running]
        if not found:
            self._in_flight = None
        return found

    def take(self, rows: Many[StepRow]) -> InFlight | None:
        """The pass in flight if it is the pass of these rows, with their share of its result.

        None where nothing is in flight or its assumption does not hold: the step then launches its own pass.
        Called once in every step, and counts the plain ones.
        """
        in_flight, self._in_flight = self._in_flight, None
        has_drafts = any(row.offer.drafter is not None for row in rows)
        self.num_plain = 0 if has_drafts else self.num_plain + 1
        if in_flight is None or not in_flight.holds_for(rows):
            return None
        if len(rows) < len(in_flight.planned):
            places = {id(row.sequence): place for place, row in enumerate(in_flight.planned)}
            kept = [places[id(row.sequence)] for row in rows]
            in_flight.result = self._parts.runner.only(in_flight.result, kept)
        return in_flight

    def drop(self) -> None:
        """Discard the pass in flight: its result will not be read."""
        self._in_flight = None


def is_typical(rows: Many[StepRow], taken: InFlight | None, can_follow: bool) -> bool:
    """Whether the time of a step is that of others of its kind; `taken` is the pass that it took, if any.

    It is not for the first of several plain passes that follow each other (`can_follow`), because the device
    was idle before it. Nor is it for a copy's pass in flight, which began before the step.
    """
    if taken is None:
        return not (can_follow and all(row.num_tokens == 1 for row in rows))
    return taken.strategy is not Strategy.COPY
