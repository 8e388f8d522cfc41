"""How far guesses survive: acceptance by depth, learned from depths that were reached, per phase.

A depth counts as tried only when every shallower guess of that draft stood; a full acceptance therefore says
"at least" and adds no refusal. Old evidence fades. Used where a drafter has no probabilities of its own, and
for display. It knows nothing of costs.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from wager.policy.base import FloatArray

MAX_DEPTH = 64


class Survival:
    """P(depth d stands | d was reached), by phase, shrunk to the pooled rate and to a cold start."""

    def __init__(self, *, fade: float = 0.98, prior: float = 0.5, prior_weight: float = 2.0) -> None:
        self.fade = fade
        self.prior = prior
        self.prior_weight = prior_weight
        self._counts: dict[Hashable, FloatArray] = {}

    def observe(self, accepted: int, offered: int, phase: Hashable = "") -> None:
        """A draft of which the first `accepted` of `offered` depths stood."""
        counts = self._counts.setdefault(phase, np.zeros((2, MAX_DEPTH)))
        counts *= self.fade
        reached = min(accepted + 1, offered, MAX_DEPTH)
        counts[1, :reached] += 1.0
        counts[0, : min(accepted, reached)] += 1.0

    def rates(self, num_depths: int, phase: Hashable = "") -> FloatArray:
        """Acceptance of depths 1..num_depths, each given that it is reached."""
        num_depths = min(num_depths, MAX_DEPTH)
        counts = self._counts.get(phase)
        if counts is None:
            return np.full(num_depths, self.prior)
        stood, tried = counts[:, :num_depths]
        weight = self.prior_weight
        pooled = (counts[0].sum() + weight * self.prior) / (counts[1].sum() + weight)
        return np.asarray((stood + weight * pooled) / (tried + weight))

    def among(self, others: FloatArray, phase: Hashable = "") -> FloatArray:
        """What was seen here, shrunk to the rates of `others`: those of one request among all."""
        counts = self._counts.get(phase)
        if counts is None:
            return others
        stood, tried = counts[:, : len(others)]
        weight = self.prior_weight
        return np.asarray((stood + weight * others) / (tried + weight))


def chain_curve(rates: FloatArray) -> FloatArray:
    """[..., n]: expected tokens of the first n guesses of a chain, by the acceptance of each depth."""
    return np.asarray(rates.cumprod(axis=-1).cumsum(axis=-1))
