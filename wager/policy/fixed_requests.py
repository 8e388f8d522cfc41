"""Rows whose request says itself how many guesses it wants: they bypass the policy.

To the policy such a row is a plain one whose guesses are part of the pass anyway, so that the guesses of the
other rows are priced right and it learns nothing from bets it did not make. The controller calls this, and
only for steps that have such rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wager.policy.base import PLAIN, Draft, Offer, Row, StepOutcome, fixed_forest
from wager.tree import ROOT, Forest


def any_sized(rows: Sequence[Row]) -> bool:
    """Whether a row of this step sizes its own bet."""
    return any(row.nodes for row in rows)


def as_plain(rows: Sequence[Row]) -> list[Row]:
    """The rows as the policy sees them."""
    return [
        row._replace(drafters=(), max_nodes=0, num_pending=row.num_pending + row.nodes) if row.nodes else row
        for row in rows
    ]


def own_offers(rows: Sequence[Row], offers: Sequence[Offer]) -> list[Offer]:
    """The policy's offers, and their own for the rows that asked."""
    return [_own_offer(row) if row.nodes else offer for row, offer in zip(rows, offers, strict=True)]


def _own_offer(row: Row) -> Offer:
    able = row.drafters and min(row.max_depth, row.max_nodes) > 0
    return Offer(row.drafters[0], row.nodes) if able else PLAIN


def others_only(rows: Sequence[Row], drafts: Sequence[Draft | None]) -> list[Draft | None]:
    """The drafts that the policy arranges."""
    return [None if row.nodes else draft for row, draft in zip(rows, drafts, strict=True)]


def own_forest(rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
    """A chain of the length it asked for, for every row that did."""
    capped = [row._replace(max_nodes=min(row.max_nodes, row.nodes)) for row in rows]
    own = [draft if row.nodes else None for row, draft in zip(rows, drafts, strict=True)]
    return fixed_forest(capped, own, max(row.nodes for row in rows), chain=True)


def joined(first: Forest, second: Forest) -> Forest:
    """Two forests of different rows as one."""
    parents = np.where(second.parent == ROOT, ROOT, second.parent + first.num_nodes).astype(np.int32)
    return Forest(
        np.concatenate((first.row, second.row)),
        np.concatenate((first.depth, second.depth)),
        np.concatenate((first.rank, second.rank)),
        np.concatenate((first.parent, parents)),
        np.concatenate((first.score, second.score)),
    )


def without_own(outcome: StepOutcome) -> StepOutcome:
    """The step as far as it was the policy's: rows that asked were plain ones."""
    rows, num_tokens = [], outcome.num_tokens
    for share in outcome.rows:
        if share.row.nodes:
            num_tokens -= share.num_nodes
            share = share._replace(offer=PLAIN, num_nodes=0, accepted=0, emitted=min(share.emitted, 1))
        rows.append(share)
    return outcome._replace(rows=rows, num_tokens=num_tokens)
