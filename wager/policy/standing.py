"""Plain plans that stand for a few steps, so that steps in which nothing pays cost the host little.

A plan is computed from costs, yields and budgets that hardly change from one plain step to the next. If the
best draft was clearly not worth its time, and nothing was learned about drafts since, the next steps of the
same rows are plain, too. This module knows what such a plan depends on, but no objective. auto.py uses it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from wager.costs import MAX_TOKENS, context_range
from wager.policy.base import Plan, Row, StepOutcome

STANDING_STEPS = 8
"""Further steps for which a plan stands at most."""
CLEARLY = 0.1
"""V below zero from which a draft is clearly not worth its time: a few steps do not change that."""
NEARLY = 0.9
"""Share of an exploration's price from which it may soon be possible."""


class Price(NamedTuple):
    """What the budget and the ledger must cover for an exploration."""

    risk_ms: float = 0.0
    draft_ms: float = 0.0


class StandingPlan:
    """The latest plain plan, as long as it stands."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._keys: list[_Key] = []
        self._steps = 0
        self.price = Price()
        """If an exploration of this price is possible, the plan must be computed again."""

    def plan_of(self, rows: Sequence[Row]) -> Plan | None:
        """Returns the plan for a step of these rows; None if it has to be computed."""
        return self._plan if self._plan is not None and _keys(rows) == self._keys else None

    def learn(self, outcome: StepOutcome, price: Price | None, *, has_learned: bool) -> None:
        """A step was taken. `price` is set if its plan may stand; `has_learned`: drafts are known better."""
        plan = outcome.plan
        if has_learned or plan is None or plan.drafts or price is None:
            self._plan = None
        elif plan is self._plan:
            self._steps -= outcome.num_steps
            if self._steps <= 0:
                self._plan = None
        else:
            self._plan, self._keys = plan, _keys([share.row for share in outcome.rows])
            self._steps = STANDING_STEPS
            self.price = Price(NEARLY * price.risk_ms, NEARLY * price.draft_ms)


class _Key(NamedTuple):
    """What a plan of `auto` depends on in a row."""

    request_id: Hashable
    phase: str
    num_pending: int
    most_nodes: int
    range_of_context: int
    drafters: tuple[str, ...]
    grades: tuple[str, ...]
    emits: bool
    can_draft: bool
    native: bool


def _keys(rows: Sequence[Row]) -> list[_Key]:
    return [
        _Key(
            row.request_id,
            row.phase,
            row.num_pending,
            min(row.max_nodes, MAX_TOKENS),
            context_range(row.context_len),
            row.drafters,
            row.grades,
            row.emits,
            row.can_draft,
            row.native,
        )
        for row in rows
    ]
