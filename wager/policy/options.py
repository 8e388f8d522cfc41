"""The objective V of auto.py as numbers: what a step is judged by, the drafts that are possible, their nodes.

`view_step` prices the nodes of a step. `options_of` finds the drafts of one drafter, by depth and number of
rows, with their values before anything is drafted. `best_shares` distributes nodes by expected curves, and
`best_nodes` by the drafts themselves. It decides nothing; auto.py calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wager.costs import MAX_TOKENS, CostModel, DraftShape
from wager.policy.base import UNLIMITED, Draft, FloatArray, Row, limits_of, stack_scores
from wager.policy.experience import Experience, StepShape, shape_of_rows
from wager.policy.yields import Group, Yields
from wager.tree import Forest, build_forest, one_tree

NUM_NODES = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64])
"""Numbers of nodes of one row at which its expected curve is looked at before a draft."""
HORIZON = 16.0
"""Steps over which rows share the time that their start takes."""
SMALLEST_PART = 4
"""Rows up to which all of them draft or none does: a draft of fewer takes about as long."""
SAVING = 0.02
"""Share of a draft's time that a shorter one must save, because it shows less."""


class StepView(NamedTuple):
    """A step before anything is drafted in it."""

    shape: StepShape
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

    def limited(self, places: int, time_ms: float) -> StepView:
        """The same step with at most so many nodes, of which all but the first cost at most so much time."""
        allowed = max(1, int(np.searchsorted(self.prices, time_ms * self.rate, "right")) - 1)
        return self._replace(prices=self.prices[: max(min(places, allowed), 0) + 1])


class Option(NamedTuple):
    """A draft of some rows with one drafter, and its value."""

    value: float
    """V, where rows that start share the time of their start with the HORIZON steps behind it."""
    risk_ms: float
    """Time that this step is expected to lose, the whole start included; negative where it gains."""
    drafter: str
    depth: int
    rows: tuple[int, ...]
    gains: dict[int, float]
    """What the draft is worth to each row that could have it, without the draft's own time."""
    draft_ms: float


def view_step(costs: CostModel, rows: Sequence[Row], speedups: Sequence[float], max_nodes: int) -> StepView:
    """The step of these rows; `max_nodes` bounds the nodes of all of them by configuration."""
    shape = shape_of_rows(rows)
    curve = costs.curve(*shape)
    base = min(sum([row.num_pending for row in rows]), MAX_TOKENS)
    num_emitting = max(sum([row.emits for row in rows]), 1)
    plain_ms = float(curve[min(num_emitting, MAX_TOKENS)])
    rate = num_emitting / plain_ms
    most = max(0, min(max_nodes, MAX_TOKENS - base))
    prices = (curve[base : base + 1 + most] - curve[base]) * rate
    weights, base_ms = 1.0 / np.array(speedups), float(curve[base])
    return StepView(shape, base, num_emitting, base_ms, plain_ms, rate, prices, weights)


def options_of(
    step: StepView,
    rows: Sequence[Row],
    name: str,
    places: Sequence[int],
    yields: Yields,
    experience: Experience,
    *,
    whole_only: bool,
) -> list[Option]:
    """The drafts of one drafter for rows at some of these places: whole ones and shorter ones."""
    costs, found = experience.costs, list[Option]()
    groups = yields.groups(rows, places, name)
    ordered = [place for _, group in groups for place in group.places]
    running = experience.running.get(name, frozenset())
    runs = np.array([rows[place].request_id in running for place in ordered])
    # Rows that stop drafting will have to start again, so going on saves what starting costs.
    native = step.shape.native
    spread = step.rate * costs.start_ms(name, 1, begins=False, native=native) / HORIZON
    begin_ms = costs.start_ms(name, 0, begins=True, native=native) / HORIZON
    longest_ms = (1.0 - SAVING) * costs.draft_ms(name, DraftShape(len(places), native=native))
    for depth in (0,) if whole_only else (0, *yields.depths(name, groups[0][0][1])):
        if depth and costs.draft_ms(name, DraftShape(len(places), depth, native=native)) > longest_ms:
            continue
        own = [yields.at_depth(key, group, depth) for key, group in groups]
        num = len(places)
        while num:
            values = _row_values(step, own, num)
            worth = values + np.where(runs, spread, -spread)
            order = np.argsort(-worth, kind="stable")[:num]
            shape = DraftShape(num, depth, num - int(runs[order].sum()), native)
            draft_ms = costs.draft_ms(name, shape)
            start_ms = costs.start_ms(name, shape.num_starting, begins=shape.begins, native=native)
            spread_ms = draft_ms - start_ms + (begin_ms if shape.begins else -begin_ms)
            value = float(worth[order].sum()) - step.rate * spread_ms
            chosen = tuple(sorted([ordered[i] for i in order.tolist()]))
            gains = dict(zip(ordered, values.tolist(), strict=True))
            risk_ms = start_ms - value / step.rate
            found.append(Option(value, risk_ms, name, depth, chosen, gains, draft_ms))
            num = num // 2 if num > SMALLEST_PART else 0
    return found


def _row_values(step: StepView, groups: Sequence[Group], num_rows: int) -> FloatArray:
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
        known = curves[:, :, NUM_NODES[:count] - 1]
        nets = step.weights[places][:, None, None] * known - price
        found.append((frequencies * np.maximum(nets.max(axis=2), 0.0)).sum(axis=1))
    return found[0] if len(found) == 1 else np.concatenate(found)


def best_shares(step: StepView, curves: Sequence[FloatArray]) -> tuple[list[int], float]:
    """The number of nodes of each row whose expected curves these are, and their value."""
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


def best_nodes(
    step: StepView, rows: Sequence[Row], drafts: Sequence[Draft | None], yields: Yields, max_nodes: int
) -> Forest:
    """The nodes of these drafts, best first, by calibrated probability and their row's weight in V.

    All that the step has places for; `max_nodes` is the most of one row among several.
    """
    places, weights = len(step.prices) - 1, np.log(step.weights)

    def increments(i: int, draft: Draft) -> FloatArray:
        score = yields.log_acceptance(rows[i], draft)
        score[0] += weights[i]
        return score

    is_alone = len(rows) == 1
    if is_alone and drafts[0] is not None:
        calibrator = yields.calibrator_of(rows[0], drafts[0])
        is_free = rows[0].max_depth >= drafts[0].num_depths and not drafts[0].spine_only
        if is_free and calibrator is not None and calibrator.keeps_order:
            return one_tree(-increments(0, drafts[0]), places)
    limits = limits_of(rows, drafts, UNLIMITED if is_alone else max_nodes)
    return build_forest(
        stack_scores(drafts, increments),
        places,
        row_caps=None if is_alone else limits.row_caps,
        max_depths=limits.max_depths,
        spine_only=limits.spine_only,
    )
