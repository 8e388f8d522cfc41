"""The running speed-up of every request over plain decoding, S_r in the objective of auto.py.

Times are those of the cost model, so that a stall does not move a speed-up. It knows no drafts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from wager.costs import MAX_TOKENS, CostModel, DraftShape
from wager.policy.base import Row, StepOutcome
from wager.policy.experience import shape_of

PACE_MEMORY = 0.99
"""Share of its past that each further step leaves in a speed-up."""
COMMON_PACE_STEPS = 20.0
"""Plain steps that count as plain decoding before anything was seen."""
OWN_PACE_STEPS = 8.0
"""Plain steps after which a request's own speed-up counts as much as the common one."""
HIGHEST_PACE = 4.0
"""Speed-up above which a passage does not say what time is worth: copies reach 30 for a short while."""


@dataclass(slots=True)
class Pace:
    """Discounted plain time of the emitted tokens, and the time spent on them, both in plain steps."""

    plain: float
    spent: float

    @property
    def speedup(self) -> float:
        return min(max(1.0, self.plain / self.spent), HIGHEST_PACE)

    def add(self, plain: float, spent: float, num_steps: int = 1) -> None:
        """Take in the tokens and the time of a step, or of several equal ones."""
        kept, weight = PACE_MEMORY, 1.0
        if num_steps > 1:
            kept = PACE_MEMORY**num_steps
            weight = (1.0 - kept) / (1.0 - PACE_MEMORY)
        self.plain = kept * self.plain + weight * plain
        self.spent = kept * self.spent + weight * spent


class Paces:
    """The pace of all requests together, and of each."""

    def __init__(self) -> None:
        self._common = Pace(COMMON_PACE_STEPS, COMMON_PACE_STEPS)
        self._own: dict[Hashable, Pace] = {}

    def speedups(self, rows: Sequence[Row]) -> list[float]:
        """The speed-up of every row; a new request starts with the common one."""
        common = self._common.speedup
        own = [self._own.get(row.request_id) for row in rows]
        return [common if pace is None else pace.speedup for pace in own]

    def learn(self, outcomes: Sequence[StepOutcome], costs: CostModel) -> None:
        """Take in steps of decoding rows; a step that reads a prompt says nothing of bets."""
        for outcome in outcomes:
            if outcome.rows and all(share.row.emits for share in outcome.rows):
                self._learn_step(outcome, costs)

    def _learn_step(self, outcome: StepOutcome, costs: CostModel) -> None:
        shares, shape = outcome.rows, shape_of(outcome)
        num_rows, curve = shape.num_rows, costs.curve(*shape)
        drafting = Counter([share.offer for share in shares if share.offer.drafter])
        spent_ms = float(curve[min(outcome.num_tokens, MAX_TOKENS)])
        for (drafter, depth), num_drafting in drafting.items():
            if drafter is not None:
                spent_ms += costs.draft_ms(drafter, DraftShape(num_drafting, depth, native=shape.native))
        spent = spent_ms / float(curve[min(num_rows, MAX_TOKENS)])
        for share in shares:
            own = self._own.get(share.row.request_id)
            if own is None:
                own = Pace(OWN_PACE_STEPS * self._common.speedup, OWN_PACE_STEPS)
                self._own[share.row.request_id] = own
            own.add(share.accepted + 1.0, spent, outcome.num_steps)
        emitted = sum([share.accepted + 1.0 for share in shares]) / num_rows
        self._common.add(emitted, spent, outcome.num_steps)

    def forget(self, request_id: Hashable) -> None:
        self._own.pop(request_id, None)
