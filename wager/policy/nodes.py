"""The nodes of the drafts of a step, best first, by calibrated probability and their row's weight in V.

Called by auto.py when the drafts are there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wager.policy.base import UNLIMITED, Draft, FloatArray, Row, limits_of
from wager.policy.valuation import StepView
from wager.policy.yields import Yields
from wager.tree import Forest, build_forest, one_tree


def best_nodes(
    step: StepView, rows: Sequence[Row], drafts: Sequence[Draft | None], yields: Yields, max_nodes: int
) -> Forest:
    """All nodes that the step has places for; `max_nodes` is the most of one row among several."""
    places, increments = len(step.prices) - 1, list[FloatArray | None]()
    for row, draft, weight in zip(rows, drafts, step.weights.tolist(), strict=True):
        score = None if draft is None else yields.log_acceptance(row, draft)
        if score is not None:
            score[0] += math.log(weight)
        increments.append(score)
    alone = len(rows) == 1
    if alone and drafts[0] is not None and increments[0] is not None:
        row, draft = rows[0], drafts[0]
        calibrator = yields.calibrator(draft.drafter, row.phase_of(draft.drafter))
        is_free = row.max_depth >= draft.num_depths and not draft.spine_only
        if is_free and draft.logprobs is not None and calibrator.keeps_order:
            return one_tree(-increments[0], places)
    depths = max([score.shape[0] for score in increments if score is not None])
    ranks = max([score.shape[1] for score in increments if score is not None])
    stacked = np.full((len(rows), depths, ranks), -np.inf)
    for i, score in enumerate(increments):
        if score is not None:
            stacked[i, : score.shape[0], : score.shape[1]] = score
    limits = limits_of(rows, drafts, UNLIMITED if alone else max_nodes)
    return build_forest(
        stacked,
        places,
        row_caps=None if alone else limits.row_caps,
        max_depths=limits.max_depths,
        spine_only=limits.spine_only,
    )
