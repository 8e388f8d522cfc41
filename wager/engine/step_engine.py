"""The engine as run_step sees it: the parts of context.py, and those that are built on them."""

from __future__ import annotations

from typing import Protocol

from wager.engine.context import EngineParts
from wager.engine.delivery import Delivery
from wager.engine.drafting import Drafting
from wager.engine.learning import Learning
from wager.engine.multi_step import MultiSteps
from wager.engine.pipeline import Pipeline
from wager.engine.prelaunch import Prelaunch


class StepEngine(EngineParts, Protocol):
    """Everything that one step uses."""

    drafting: Drafting
    pipeline: Pipeline
    prelaunch: Prelaunch
    multi_step: MultiSteps
    delivery: Delivery
    learning: Learning
