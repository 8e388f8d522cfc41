"""From a request's wishes to a thinking budget: it may tighten every limit and loosen none.

Asked for outright, by an effort, or not at all; held against the limit of whoever runs the model and against
what the answer needs. The tightest wins and is named. Knows no HTTP and no tokens; the command line and the
server ask it.
"""

from __future__ import annotations

from typing import NamedTuple

from wager.cards.card import ModelCard
from wager.errors import RequestError

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


class BudgetDecision(NamedTuple):
    """What holds, and why."""

    budget: int | None
    """Tokens of thinking; None: as many as it takes."""
    asked: int | None
    """What the request itself wanted; None where it said nothing."""
    source: str
    """What the budget comes from: the request, its effort, the limit or the room for the answer."""

    @property
    def clamped(self) -> bool:
        """Whether the request gets less than it asked for."""
        return self.asked is not None and self.budget is not None and self.budget < self.asked


def decide_budget(
    card: ModelCard,
    max_tokens: int,
    asked: int | None = None,
    effort: str | None = None,
    most: int | None = None,
) -> BudgetDecision:
    """The tightest of what is asked, what the effort means, the limit `most` and the room beside the answer.

    Where nothing is asked and there is no limit, only the answer's room binds. Raises RequestError.
    """
    tier = _tier(card, effort)
    if asked is not None and (isinstance(asked, bool) or not isinstance(asked, int) or asked < 0):
        raise RequestError(f"{asked!r} is not a whole number from 0", "thinking_budget")
    options = [(asked, "request"), (tier, f"effort {effort}"), (most, "limit")]
    options.append((max_tokens - reply_room(card, max_tokens), "room for the answer"))
    known = [(value, source) for value, source in options if value is not None]
    budget, source = min(known, key=lambda one: one[0])
    wishes = [value for value in (asked, tier) if value is not None]
    return BudgetDecision(budget, min(wishes, default=None), source)


def reply_room(card: ModelCard, max_tokens: int) -> int:
    """Tokens kept for the answer: what the card says, of a short output at most half."""
    return min(card.reply_tokens.value, max_tokens // 2)


def _tier(card: ModelCard, effort: str | None) -> int | None:
    if effort is None:
        return None
    if effort == "none":
        return 0
    found = card.efforts.value.get(effort)
    if found is None:
        known = ", ".join(["none", *card.efforts.value])
        raise RequestError(f"{effort!r} is none of this model's: {known}", "effort")
    return found
