"""The next bet of rows that draft, thought over while their pass is under way.

Between the verdict and the next pass a device waits for whatever the host still has to decide. Nothing that
the next bet hangs on is learned in that time where learning comes a step late, so it can be made before: it
is what it would be then. Where drafting would not be worth it nothing is thought, since looks and rests count
steps. Kept by `auto`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from wager.policy.auto_step import Foreseen, Step, open_step
from wager.policy.base import MANY, Blind, Draft, Offer, Row
from wager.policy.experience import Experience, longest_context
from wager.policy.worth import Worth

Decide = Callable[[Step, Sequence[Row]], list[Offer]]
BlindBet = Callable[[Step, Sequence[Row], Sequence[Draft | None]], Blind | None]


_ALL_HEARD = 8  # steps after which drafters are asked that are not thought to run: asking takes time as well


class Thought(NamedTuple):
    """A step, decided before it has come."""

    rows: Sequence[Row]
    """As they are expected."""
    step: Step
    offers: list[Offer]


class Forethought:
    """At most one thought, good until something is learned."""

    def __init__(self, experience: Experience, worth: Worth, decide: Decide, blind: BlindBet) -> None:
        """`decide` offers drafts in a step that is opened, `blind` bets on them sight unseen."""
        self._experience, self._worth = experience, worth
        self._decide, self._blind = decide, blind
        self._thought: Thought | None = None
        self._num_steps = 0

    def drop(self) -> None:
        """Something is learned: what was thought may be wrong."""
        self._thought = None

    def think(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> None:
        """Of the step behind the one under way, whose rows and drafts these are."""
        costs = self._experience.costs
        if not costs.measured or not all(row.emits for row in rows):
            return
        rows = [row._replace(num_pending=1) for row in rows]
        step = open_step(costs, rows)
        if costs.shape(len(rows), longest_context(rows)).is_doubtful(step.base_tokens):
            return
        step.is_thought = True
        offers = self._decide(step, rows)
        if not step.num_worthy or step.room is None or not step.room.places:
            return
        if [offer.drafter for offer in offers] == [draft and draft.drafter for draft in drafts]:
            like = [
                draft and Draft(draft.drafter, draft.num_depths, has_come=draft.logprobs is None)
                for draft in drafts
            ]
            step.foreseen = Foreseen(like, self._blind(step, rows, like))
        self._thought = Thought(rows, step, offers)

    def suffices(self, drafter: str, num_rows: int) -> bool:
        """Whether so many rows are thought to draft with this one, and the others are not to be heard now."""
        thought, hears_all = self._thought, self._num_steps % _ALL_HEARD == 0
        if thought is None or hears_all or len(thought.rows) != num_rows:
            return False
        return any(offer.drafter == drafter for offer in thought.offers)

    def take(self, rows: Sequence[Row]) -> Thought | None:
        """What was thought of these rows, if they came as they were thought to."""
        self._num_steps += 1
        thought, self._thought = self._thought, None
        if thought is None or len(rows) != len(thought.rows) or not self._holds(thought, rows):
            return None
        probes = thought.step.probes
        if any(probe.left <= 1 for probe in probes):
            return None  # somebody is to be looked at
        for probe in probes:
            probe.due()
        return thought

    def _holds(self, thought: Thought, rows: Sequence[Row]) -> bool:
        """Whether only tokens have come, and no drafter that is better.

        In a crowd, where one drafter runs, it is the one that ran as long as it can.
        """
        step, offers, able = thought.step, thought.offers, True
        if self._experience.costs.curve(len(rows), longest_context(rows)) is not step.costs:
            return False
        for row, known, offer in zip(rows, thought.rows, offers, strict=True):
            if row.drafters == known.drafters and row.grades == known.grades:
                same = known
            else:
                same, able = known._replace(drafters=row.drafters, grades=row.grades), False
                if not _has_kept(row, known, offer):
                    return False
            if row.max_depth <= 0 or row != same._replace(
                context_len=row.context_len, max_depth=row.max_depth
            ):
                return False
        if able or len(rows) >= MANY:
            return True
        best = self._worth.drafters(rows, step.rate, step.begun)
        return all(names[:1] == (offer.drafter,) for names, offer in zip(best, offers, strict=True))


def _has_kept(row: Row, known: Row, offer: Offer) -> bool:
    """Whether the draft that a row was to be offered is still to be had, and of the same grade."""
    drafter = offer.drafter
    if drafter is None:
        return True
    return drafter in row.drafters and row.phase_of(drafter) == known.phase_of(drafter)
