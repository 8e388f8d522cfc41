"""What a step cost and yielded: stage times, counts, and one report per step.

The nine stage names are the timer labels, metric labels and log fields everywhere. Telemetry keeps totals and
hands each report to a listener. It decides nothing, and nothing depends on whether there is a listener. Times
are of the host's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

STAGES = ("plan", "bet", "draft", "arrange", "verify", "accept", "commit", "emit", "learn")


class StageClock:
    """Times the stages of one step; `mark` ends the stage of that name and begins the next."""

    __slots__ = ("_last", "ms")

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._last = time.perf_counter()

    def divided(self, steps: Sequence[tuple[float, float]]) -> list[StageClock]:
        """Clocks of steps that were taken at once, with their times of drafting and of verifying.

        What was marked so far, and the rest of the time since then, is shared by them.
        """
        now = time.perf_counter()
        rest_ms = max((now - self._last) * 1e3 - sum([sum(step) for step in steps]), 0.0) / len(steps)
        found = []
        for draft_ms, verify_ms in steps:
            clock = StageClock()
            clock.ms = {stage: ms / len(steps) for stage, ms in self.ms.items()}
            clock.ms |= {
                "draft": draft_ms,
                "arrange": 0.0,
                "verify": verify_ms,
                "accept": 0.0,
                "commit": rest_ms,
            }
            found.append(clock)
        return found

    def start(self) -> None:
        """Begin the next stage now."""
        self._last = time.perf_counter()

    def mark(self, stage: str) -> None:
        now = time.perf_counter()
        self.ms[stage] = (now - self._last) * 1e3
        self._last = now


class StepReport(NamedTuple):
    """One step in numbers."""

    num_rows: int
    num_tokens: int
    """Tokens of its rows in the target's pass."""
    num_nodes: int
    num_drafting: int
    accepted: int
    emitted: int
    stage_ms: dict[str, float]
    bets: Sequence[int] = ()
    """Number of nodes of every row."""
    drafters: Sequence[str] = ()
    num_steps: int = 1
    """Number of equal plain steps that this report is about; times and emitted tokens are those of all."""

    @property
    def total_ms(self) -> float:
        return sum(self.stage_ms.values())


@dataclass
class Telemetry:
    """Totals over all steps, and a listener for each report."""

    steps: int = 0
    emitted: int = 0
    accepted: int = 0
    verified: int = 0
    drafter_failures: int = 0
    failed_requests: int = 0
    stage_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    listener: Callable[[StepReport], None] | None = None
    last: StepReport | None = None

    def record(self, report: StepReport) -> None:
        self.steps += report.num_steps
        self.emitted += report.emitted
        self.accepted += report.accepted
        self.verified += report.num_nodes
        for stage, ms in report.stage_ms.items():
            self.stage_ms[stage] += ms
        self.last = report
        if self.listener is not None:
            self.listener(report)
