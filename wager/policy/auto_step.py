"""The step that `auto` has under way, between offer and learn: what it goes by, and what it decided.

Whatever can wait is kept here and worked out after the step: between a draft and its verification a device
stands idle. It decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wager.policy.base import Blind, Draft, FloatArray, Row
from wager.policy.cost import MAX_TOKENS, CostModel
from wager.policy.gain import Probe
from wager.tree import Forest

StepMark = tuple[Hashable, int]
"""A request and how much of it was cached: no two steps have its row in common."""


class Arranged(NamedTuple):
    """What was decided on drafts, and on what grounds: looked at again after the step, when nobody waits."""

    rows: Sequence[Row]
    drafts: Sequence[Draft | None]
    forest: Forest
    """All that there was room for, best first,"""
    worth: FloatArray
    """what each number of its nodes is worth in tokens,"""
    num_nodes: int
    """and the number chosen."""


class Weighed(NamedTuple):
    """Nodes in the order in which they are taken."""

    forest: Forest
    worth: FloatArray
    """What each number of them is worth in tokens, from one on,"""
    values: FloatArray
    """and what is left of that, counted as their rows are, behind their price."""


class Room(NamedTuple):
    """Places for guesses, and the price of each number of them, from one on.

    In tokens; of several rows in logarithms, as their guesses are counted.
    """

    places: int
    prices: FloatArray


class Foreseen(NamedTuple):
    """A bet sight unseen on drafts like these, thought of before its step."""

    drafts: Sequence[Draft | None]
    """Without what they propose."""
    bet: Blind | None


@dataclass(slots=True)
class Step:
    """The step under way, between offer and learn."""

    rate: float = 0.0
    base_tokens: int = 0
    base_ms: float = 0.0
    """The pass without any guess,"""
    num_emitting: float = 1.0
    """which gives so many tokens."""
    costs: FloatArray | None = None
    plain_ms: float = 0.0
    """A pass of one token for each row that emits."""
    room: Room | None = None
    probes: list[Probe] = field(default_factory=list)
    """Of the drafters that were not worth running for somebody."""
    num_worthy: int = 0
    """Rows for which a drafter runs because it is worth it."""
    postponed: int = 0
    """Steps for which looks are put off, until requests have got under way."""
    probing: set[int] = field(default_factory=set)
    """Places of rows for which a drafter runs only to see whether it is worth it again."""
    depths: dict[str, int] = field(default_factory=dict)
    """How deep each drafter was asked to go; 0: whole."""
    begun: Collection[str] = ()
    """Drafters whose drafts are under way before they are asked for."""
    drafts_ms: float = 0.0
    """What the drafts of this step are expected to take, with what a crowd that drafts is late by."""
    arranged: Arranged | None = None
    has_rested: bool = False
    """Whether no drafter was asked."""
    foreseen: Foreseen | None = None
    is_thought: bool = False
    """Whether it was decided before it had come: nobody is looked at in it, and no step counted."""
    was_blind: bool = False
    """Whether that was decided before the drafts were seen."""
    mark: StepMark | None = None
    """Of its first row, by which it is known again."""

    def price(self, num_nodes: int, costs: FloatArray, num_rows: int) -> float:
        """What one of so many nodes in a pass of so many rows costs, counted as they are (`Room`)."""
        if not num_nodes:
            return 0.0
        more_ms = float(costs[min(self.base_tokens + num_nodes, MAX_TOKENS)]) - self.base_ms
        if num_rows == 1:
            return self.rate * more_ms / num_nodes
        return self.num_emitting * math.log1p(more_ms / (self.base_ms + self.drafts_ms)) / num_nodes

    def expected(self, arranged: Arranged, costs: FloatArray) -> dict[int, float]:
        """Each drafted row's expected gain: its nodes' worth, less its share of what they cost."""
        _, drafts, forest, worth, num_nodes = arranged
        price = self.price(num_nodes, costs, len(drafts))
        if len(drafts) == 1 and drafts[0] is not None:
            return {0: float(worth[num_nodes - 1]) - price * num_nodes if num_nodes else 0.0}
        probs, places = forest.path_probs[:num_nodes], forest.row[:num_nodes]
        expected = {}
        for i, draft in enumerate(drafts):
            if draft is not None:
                own = places == i
                expected[i] = gained(float(probs[own].sum()), price * int(own.sum()), len(drafts))
        return expected


def gained(tokens: float, price: float, num_rows: int) -> float:
    """What guesses were worth to a row that had so many tokens of them: in tokens that cost nothing.

    Of several rows prices are counted in logarithms: they are the part by which everybody's time is longer.
    """
    return tokens - price if num_rows == 1 else (1.0 + tokens) * math.exp(-price) - 1.0


def open_step(costs: CostModel, rows: Sequence[Row]) -> Step:
    """A step of these rows about which nothing is decided."""
    context_len = tokens = num_emitting = 0
    for row in rows:
        context_len = max(context_len, row.context_len)
        tokens += row.num_pending
        num_emitting += row.emits
    curve = costs.curve(len(rows), context_len)
    tokens, num_emitting = min(tokens, MAX_TOKENS), max(num_emitting, 1)
    base_ms = plain_ms = float(curve[tokens])
    if num_emitting != tokens:
        plain_ms = float(curve[min(num_emitting, MAX_TOKENS)])
    return Step(num_emitting / plain_ms, tokens, base_ms, float(num_emitting), curve, plain_ms)
