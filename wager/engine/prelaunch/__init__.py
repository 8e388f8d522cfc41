"""Prelaunch strategies: each launches work for the next step on a device before the host can know it all.

    file      launches                             when                        assumption
    plain.py  the next plain pass                  behind this pass's choices  no row drafts in the next step
    blind.py  the verify pass of this step         behind its unread draft     the policy fixes node counts
    copy.py   the next verify pass of copied text  with the verdict            the copy is fully accepted
    draft.py  the next draft                       behind this pass's choices  rows that drafted draft again
                                                   or with the verdict

step.py calls each strategy at its moment. Without a device with kernels no strategy launches anything.
"""

from __future__ import annotations

from wager.engine.context import EngineParts
from wager.engine.drafting import Drafting
from wager.engine.pipeline import Pipeline
from wager.engine.prelaunch.blind import BlindPrelaunch
from wager.engine.prelaunch.copy import CopyPrelaunch
from wager.engine.prelaunch.draft import DraftPrelaunch
from wager.engine.prelaunch.plain import PlainPrelaunch

__all__ = ["Prelaunch"]


class Prelaunch:
    """The strategies of one engine."""

    def __init__(self, parts: EngineParts, drafting: Drafting, pipeline: Pipeline) -> None:
        self.plain = PlainPrelaunch(parts, drafting, pipeline)
        self.blind = BlindPrelaunch(parts, drafting, pipeline)
        self.copy = CopyPrelaunch(parts, drafting, pipeline)
        self.draft = DraftPrelaunch(parts, drafting, pipeline)
