"""The value V of drafting for some rows of a step: the terms of the objective in auto.py, as numbers.

`StepView` holds what a step is judged by; `row_values` says what a draft is worth to each row beyond the
price of its nodes; `best_shares` distributes nodes by expected curves. It decides nothing; auto.py calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wager.policy.base import FloatArray, Row
from wager.policy.costs import MAX_TOKENS, CostModel
from wager.policy.experience import longest_context
from wager.policy.yields import CURVE_NODES, Group

NUM_NODES = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64])
"""Numbers of nodes of one row at which its expected curve is looked at before a draft."""
_PLACES = NUM_NODES - 1


class StepView(NamedTuple):
    """A step before anything is drafted in it."""

    base_tokens: int
    num_emitting: int
    base_ms: float
    """Time of the pass without nodes, prompts included."""
    plain_ms: float
    """Time of a plain step of the rows that emit, c(R)."""
    rate: float
    """What a millisecond costs in units of V: R / c(R)."""
    prices: FloatArray
    """Price in units of V of n nodes in the pass, from zero nodes on; infinite beyond the allowed places."""
    weights: FloatArray
    """Weight of each row's tokens in V: 1 / S_r."""
    context_len: int


def view_step(costs: CostModel, rows: Sequence[Row], speedups: Sequence[float], max_nodes: int) -> StepView:
    """The step of these rows; `max_nodes` bounds the nodes of all of them by configuration."""
    context_len = longest_context(rows)
    curve = costs.curve(len(rows), context_len)
    base = min(sum([row.num_pending for row in rows]), MAX_TOKENS)
    num_emitting = max(sum([row.emits for row in rows]), 1)
    plain_ms = float(curve[min(num_emitting, MAX_TOKENS)])
    rate = num_emitting / plain_ms
    most = max(0, min(max_nodes, MAX_TOKENS - base))
    prices = (curve[base : base + 1 + most] - curve[base]) * rate
    return StepView(
        base,
        num_emitting,
        float(curve[base]),
        plain_ms,
        rate,
        prices,
        1.0 / np.array(speedups),
        context_len,
    )


def limited(step: StepView, places: int, time_ms: float) -> StepView:
    """The same step with at most so many nodes, of which all but the first cost at most so much time."""
    allowed = max(1, int(np.searchsorted(step.prices, time_ms * step.rate, "right")) - 1)
    return step._replace(prices=step.prices[: max(min(places, allowed), 0) + 1])


def row_values(step: StepView, groups: Sequence[Group], num_rows: int) -> FloatArray:
    """What a draft that is read before the bet is worth to each row, if `num_rows` rows draft.

    Each of them is taken to verify as many nodes as the others, so that it pays its part of the common pass.
    The rows come in the order of the groups.
    """
    totals = NUM_NODES * num_rows
    count = int(np.searchsorted(totals, len(step.prices)))
    price = step.prices[totals[:count]] / num_rows
    found = []
    for places, frequencies, curves in groups:
        if not count:
            found.append(np.zeros(len(places)))
            continue
        known = curves[:, _PLACES[:count]]
        nets = step.weights[places][:, None, None] * known - price
        found.append((frequencies * np.maximum(nets.max(axis=2), 0.0)).sum(axis=1))
    return found[0] if len(found) == 1 else np.concatenate(found)


def best_shares(step: StepView, curves: Sequence[FloatArray]) -> tuple[list[int], float]:
    """The number of nodes of each row whose expected curves these are, and their value."""
    if len(curves) == 1:
        worth = step.weights[0] * curves[0][: len(step.prices) - 1]
        values = worth - step.prices[1 : 1 + len(worth)]
        best = int(values.argmax()) if len(values) else 0
        return ([best + 1], float(values[best])) if len(values) and values[best] > 0.0 else ([0], 0.0)
    amounts = np.concatenate(
        [weight * np.diff(curve, prepend=0.0) for weight, curve in zip(step.weights, curves, strict=True)]
    )
    order = np.argsort(-amounts, kind="stable")[: len(step.prices) - 1]
    values = amounts[order].cumsum() - step.prices[1 : 1 + len(order)]
    best = int(values.argmax()) if len(values) else 0
    if not len(values) or values[best] <= 0.0:
        return [0] * len(curves), 0.0
    rows = np.repeat(np.arange(len(curves)), [len(curve) for curve in curves])
    counts = np.bincount(rows[order[: best + 1]], minlength=len(curves))
    return counts.tolist(), float(values[best])


assert NUM_NODES[-1] == CURVE_NODES
