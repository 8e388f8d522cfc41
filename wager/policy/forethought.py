"""The next bet of a row that runs alone, thought over while its pass is under way.

Between the verdict and the next pass a device waits for whatever the host still has to decide. Nothing that
the next bet hangs on is learned in that time where learning comes a step late, so it can be made before: it
is what it would be then. Where drafting would not be worth it nothing is thought, since looks and rests count
steps. Kept by `auto`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from wager.policy.auto_step import Foreseen, Step, open_step
from wager.policy.base import Blind, Draft, Offer, Row
from wager.policy.experience import Experience
from wager.policy.known import Known
from wager.policy.stake import Stake
from wager.policy.worth import Worth

BlindBet = Callable[[Step, Sequence[Row], Sequence[Draft | None]], Blind | None]


class Thought(NamedTuple):
    """A step of one row, decided before it has come."""

    row: Row
    """As it is expected."""
    step: Step
    offer: Offer


class Forethought:
    """At most one thought, good until something is learned."""

    def __init__(self, experience: Experience, known: Known, worth: Worth, stake: Stake) -> None:
        self._experience, self._known, self._worth, self._stake = experience, known, worth, stake
        self._thought: Thought | None = None

    def drop(self) -> None:
        """Something is learned: what was thought may be wrong."""
        self._thought = None

    def think(self, row: Row, draft: Draft | None, blind: BlindBet) -> None:
        """Of the step behind the one under way; row and draft are that one's, `blind` bets sight unseen."""
        row, costs = row._replace(num_pending=1), self._experience.costs
        step = open_step(costs, [row])
        if not costs.measured or costs.shape(1, row.context_len).is_doubtful(step.base_tokens):
            return
        step.rate = self._known.pace([row]) / step.plain_ms
        drafter = self._worth.best_drafter(row, step.rate)
        if drafter is None or not (self._stake.bears_row(row, step) and self._stake.bears_all(step)):
            return
        depth = self._worth.depth_alone(step, row, drafter)
        if depth is None:
            return
        step.room = self._stake.room(step, [row])
        if not step.room.places:
            return
        step.depths[drafter], step.num_worthy = depth, 1
        step.drafts_ms = costs.draft_ms(drafter, 1, row.context_len, depth)
        if draft is not None and draft.drafter == drafter:
            bet = blind(step, [row], [Draft(drafter, draft.num_depths)])
            step.foreseen = Foreseen(drafter, draft.num_depths, bet)
        self._thought = Thought(row, step, Offer(drafter, depth))

    def take(self, rows: Sequence[Row]) -> Thought | None:
        """What was thought of these rows, if they came as they were thought to."""
        thought, self._thought = self._thought, None
        if thought is None or len(rows) != 1:
            return None
        return thought if self._holds(thought, rows[0]) else None

    def _holds(self, thought: Thought, row: Row) -> bool:
        """Whether only tokens have come, and no drafter that is better."""
        known = thought.row._replace(
            context_len=row.context_len, max_depth=row.max_depth, drafters=row.drafters
        )
        if row != known or row.max_depth <= 0:
            return False
        if self._experience.costs.curve(1, row.context_len) is not thought.step.costs:
            return False
        if row.drafters == thought.row.drafters:
            return True
        return self._worth.best_drafter(row, thought.step.rate) == thought.offer.drafter
