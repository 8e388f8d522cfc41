"""The parts of an engine that the stages of a step, the drafters' keeper and the prelaunch strategies use.

The engine itself has these attributes. Whoever needs them asks for this protocol, so that no module below
engine.py imports it. The attributes are read at every use, because recordings and benchmarks exchange some of
them while the engine is idle.
"""

from __future__ import annotations

from typing import Protocol

from wager.draft.base import Drafter
from wager.engine.draft_outcomes import DraftOutcomes
from wager.engine.scheduler import Scheduler
from wager.engine.telemetry import Telemetry
from wager.nn.noise import NoiseSource
from wager.policy import Controller
from wager.target import Sampler, TargetRunner


class EngineParts(Protocol):
    """What runs, decides, proposes and counts in an engine."""

    runner: TargetRunner
    sampler: Sampler
    scheduler: Scheduler
    controller: Controller
    drafters: dict[str, Drafter]
    draft_outcomes: DraftOutcomes
    telemetry: Telemetry

    @property
    def noise(self) -> NoiseSource:
        """The noise that target and drafters share."""
        ...

    @property
    def wants_p1(self) -> bool:
        """Whether the policy needs the target's highest probability at every judged position."""
        ...

    def takes_several_steps(self, num_rows: int) -> bool:
        """Whether native code may take several steps of so many rows, if it can take steps of each."""
        ...
