"""Bets sight unseen: how many guesses to take of a draft that nobody has looked at yet.

A look at a draft tells which bet is best for it, and costs the time a device stands idle meanwhile. What the
best n nodes are worth differs less from draft to draft than that: so the expected worth of every n, a mean of
what the request's own drafts have shown lately, takes the place of the draft's own. Called by `auto`, which
learns from every draft afterwards what a look would have told.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from wager.policy.auto_step import Room
from wager.policy.base import MANY, Blind, Draft, FloatArray, Row
from wager.policy.known import Known
from wager.tree import Forest

MOST = 64
"""Nodes of one row that are foreseen,"""
MOST_OF_MANY = 16
"""and of a row in a crowd, on the mean, of one twice as many at most: building them takes time for every row.
"""
_OWN_RATE = 0.3  # share of the newest draft in what a request expects,
_RATE = 0.02  # and in what all do

ChainWorth = Callable[[Row, Draft], FloatArray]
"""What each number of guesses of such a draft is expected to be worth in tokens, from one on."""

_Key = tuple[str, str]
"""Drafter and phase of the text."""


class Foresight:
    """What each number of a draft's best nodes is expected to be worth: to all requests, and to each."""

    def __init__(self) -> None:
        self._all: dict[_Key, FloatArray] = {}
        self._own: dict[Hashable, dict[_Key, FloatArray]] = {}

    def expected(self, row: Row, draft: Draft) -> FloatArray | None:
        """[MOST] in tokens, from one node on; None where no draft of its kind was seen."""
        curve = self._curve(row, draft)
        return None if curve is None else np.minimum(curve, draft.num_depths)

    def _curve(self, row: Row, draft: Draft) -> FloatArray | None:
        key = draft.drafter, row.phase_of(draft.drafter)
        return self._own.get(row.request_id, {}).get(key, self._all.get(key))

    def learn(self, rows: Sequence[Row], drafts: Sequence[Draft | None], forest: Forest) -> None:
        """Drafts that were seen, and the best `MOST` nodes of each."""
        for i, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
            if draft is None or draft.logprobs is None or row.max_depth < draft.num_depths:
                continue  # a row near its end shows less than a whole draft
            worth = forest.path_probs[forest.row == i][:MOST].cumsum()
            if not len(worth):
                continue
            worth = np.pad(worth, (0, MOST - len(worth)), mode="edge")
            key = (draft.drafter, row.phase_of(draft.drafter))
            before = self._curve(row, draft)
            own = self._own.setdefault(row.request_id, {})
            own[key] = worth if before is None else before + _OWN_RATE * (worth - before)
            among = self._all.get(key, worth)
            self._all[key] = among + _RATE * (worth - among)

    def forget(self, request_id: Hashable) -> None:
        self._own.pop(request_id, None)


def blind_bet(
    rows: Sequence[Row],
    drafts: Sequence[Draft | None],
    room: Room,
    foresight: Foresight,
    known: Known,
    chain_worth: ChainWorth,
) -> tuple[Blind | None, float]:
    """How many guesses to take of each draft, by what drafts of these rows have been like, and their worth.

    None where no number is worth anything, or a draft must be seen. Of those that have come `chain_worth`
    tells what they are worth.
    """
    curves, weights = list[FloatArray](), list[tuple[float, float, float] | None]()
    most = 2 * MOST_OF_MANY if len(rows) >= MANY else MOST
    for row, draft in zip(rows, drafts, strict=True):
        if draft is None:
            curves.append(np.empty(0))
            weights.append(None)
            continue
        if draft.has_come:
            curves.append(chain_worth(row, draft)[: min(row.max_nodes, most)])
            weights.append(None)
            continue
        calibrator = known.line(draft.drafter, row.phase_of(draft.drafter)).calibrator
        curve = foresight.expected(row, draft)
        if curve is None or not calibrator.keeps_order:
            return None, 0.0
        curves.append(curve[: min(row.max_nodes, most)])
        weights.append((calibrator.weights[0], calibrator.weights[1], calibrator.weights[2]))
    nodes, value = best_shares(curves, room)
    return (Blind(nodes, weights) if value > 0.0 else None), value


def best_shares(curves: Sequence[FloatArray], room: Room) -> tuple[list[int], float]:
    """How many nodes each row takes whose expected worths these are, and what all of them gain.

    Of several rows, as with drafts that are seen, the logarithm of each one's speed is what counts.
    """
    if len(curves) == 1:
        worth, order = curves[0][: room.places], None  # as it is: a device waits for this
    else:
        amounts = _amounts(curves)
        order = np.argsort(-amounts, kind="stable")[: room.places]
        worth = amounts[order].cumsum()
    values = worth - room.prices[: len(worth)]
    best = int(values.argmax()) if len(values) else 0
    if not len(values) or values[best] <= 0.0:
        return [0] * len(curves), 0.0
    if order is None:
        return [best + 1], float(values[best])
    rows = np.repeat(np.arange(len(curves)), [len(curve) for curve in curves])
    counts = np.bincount(rows[order[: best + 1]], minlength=len(curves))
    return counts.tolist(), float(values[best])


def _amounts(curves: Sequence[FloatArray]) -> FloatArray:
    """What each node adds to the logarithm of its row's speed, row after row, in one go."""
    every = np.log1p(np.concatenate(curves))
    amounts = np.diff(every, prepend=0.0)
    firsts = np.cumsum([0, *[len(curve) for curve in curves[:-1]]])
    firsts = firsts[[len(curve) > 0 for curve in curves]]
    amounts[firsts] = every[firsts]
    return amounts
