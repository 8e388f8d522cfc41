"""From what a drafter says to what the target does: draft log-probability to acceptance probability, online.

    logit P(stands | reached) = w0 + w1 * logit(draft probability) + w2 * (min(depth, 5) - 1) / 4

Three weights, started at "the drafter is right" (0, 1, 0), so it is sensible before the first observation;
each draft set against the emitted tokens moves them by one AdaGrad update whose memory fades, and is wiped
when hits and prediction part beyond chance, so that it keeps learning and follows a shift at once. Trained on
every candidate of every reached depth. It knows nothing of trees or costs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wager.policy.base import Evidence, FloatArray, LogOddsMap

LOWEST, HIGHEST = math.log(1e-6), math.log(1.0 - 1e-3)
"""Bounds of the log-probabilities of which log-odds are taken."""
MAX_DEPTH = 64
"""Depths for which `log_odds_map` has a value."""
_ZERO = np.zeros(())
_EDGE = 12.0  # logits beyond this are certainty for every practical purpose
_MAX_DEPTH = 4096
_LARGEST = 3.0  # one deviation counts for no more standard deviations than this
_LEAST_SCATTER = 0.1  # a certain prediction that fails is one surprise, not infinitely many
_DEPTH_TERM = np.minimum(np.arange(_MAX_DEPTH), 4.0)[:, None] / 4.0


class Surprise(NamedTuple):
    """How a draft's hits differed from prediction: in standard deviations (positive: more hits), and whether
    drafts have differed beyond chance for some time."""

    deviation: float = 0.0
    shifted: bool = False


class ShiftTest:
    """Page's test for a shift in either direction, fed with deviations in standard deviations.

    `add` answers True when deviations since some moment have added up beyond `alarm`; then it starts anew. A
    deviation within the slack counts against a shift.
    """

    __slots__ = ("_alarm", "_down", "_slack", "_up")

    def __init__(self, slack: float, alarm: float) -> None:
        self._slack = slack
        self._alarm = alarm
        self._up = self._down = 0.0

    def add(self, deviation: float) -> bool:
        deviation = max(-_LARGEST, min(_LARGEST, deviation))
        self._up = max(0.0, self._up + deviation - self._slack)
        self._down = max(0.0, self._down - deviation - self._slack)
        if max(self._up, self._down) <= self._alarm:
            return False
        self._up = self._down = 0.0
        return True


class Calibrator:
    """The map of one drafter in one phase."""

    def __init__(self, *, rate: float = 0.2, fade: float = 0.99) -> None:
        self.rate = rate
        self.fade = fade
        self.weights = [0.0, 1.0, 0.0]
        self._squares = [1.0, 1.0, 1.0]
        self._test = ShiftTest(slack=0.5, alarm=6.0)
        self.num_drafts = 0
        self._laid, self._laid_for = _DEPTH_TERM[:0], (0.0, 0.0)
        """The offsets of as many depths as were asked for, and the weights they were made of."""

    def copy(self) -> Calibrator:
        other = Calibrator(rate=self.rate, fade=self.fade)
        other.weights = list(self.weights)
        return other

    def log_acceptance(self, logprobs: npt.NDArray[np.floating]) -> FloatArray:
        """log P(stands | reached) of each candidate, [..., depths, ranks]; never above 0."""
        return -self.costs(logprobs)

    def costs(self, logprobs: npt.NDArray[np.floating]) -> FloatArray:
        """The same negated, as the builder of one tree wants it; a device waits for this."""
        costs = _log_odds(logprobs)
        costs *= -self.weights[1]
        costs -= self._offsets(costs.shape[-2])
        np.logaddexp(_ZERO, costs, out=costs)  # log(1 + exp(-logit)), whatever the size of the logit
        if np.minimum.reduce(logprobs, axis=None) == -math.inf:
            costs[np.isneginf(logprobs)] = np.inf  # not offered at all
        return costs

    @property
    def keeps_order(self) -> bool:
        """Whether what the drafter holds more likely is the more likely to stand."""
        return self.weights[1] > 0.0

    @property
    def log_odds_map(self) -> LogOddsMap:
        """The map for the first MAX_DEPTH depths, as numbers."""
        return LogOddsMap(self.weights[1], self._offsets(MAX_DEPTH)[:, 0].copy(), LOWEST, HIGHEST)

    def acceptance(self, logprobs: npt.NDArray[np.floating]) -> FloatArray:
        return np.exp(self.log_acceptance(logprobs))

    def learn(self, evidence: Evidence) -> Surprise:
        """One update from the reached depths of a draft; says how far its hits were from the prediction."""
        num_reached = reached_depths(evidence.ranks, spine_only=evidence.spine_only)
        if evidence.logprobs is None or num_reached == 0:
            return Surprise()
        odds = _log_odds(evidence.logprobs[:num_reached])
        errors = 1.0 / (1.0 + np.exp(-self._logits(odds)))
        scatter = float((errors * (1.0 - errors)).sum())
        for depth, rank in enumerate(evidence.ranks[:num_reached].tolist()):
            if rank >= 0:
                errors[depth, rank] -= 1.0
        by_depth = errors.sum(axis=1)
        total = float(by_depth.sum())
        deviation = -total / math.sqrt(scatter + _LEAST_SCATTER)
        shifted = self._test.add(deviation)
        if shifted:
            self._squares = [1.0, 1.0, 1.0]
            if deviation > 0:  # better than thought: what it says of itself is the best guess again
                self.weights = [0.0, 1.0, 0.0]
        self._update(
            total,
            float(np.vdot(errors, odds)),
            float(by_depth @ _DEPTH_TERM[:num_reached, 0]),
        )
        self._offsets(len(self._laid))  # while nobody waits
        return Surprise(deviation, shifted)

    def _offsets(self, num_depths: int) -> FloatArray:
        """[depths, 1]: what is added to a logit at each depth."""
        intercept, _, depth_weight = self.weights
        if self._laid_for != (intercept, depth_weight) or len(self._laid) < num_depths:
            self._laid = depth_weight * _DEPTH_TERM[: max(num_depths, len(self._laid))] + intercept
            self._laid_for = intercept, depth_weight
        return self._laid[:num_depths]

    def _logits(self, odds: FloatArray) -> FloatArray:
        """The map, bounded, for learning."""
        logits = self.weights[1] * odds
        logits += self._offsets(len(odds))
        # Two ufuncs: np.clip spends longer on its arguments than on a small array.
        np.maximum(logits, -_EDGE, out=logits)
        return np.minimum(logits, _EDGE, out=logits)

    def _update(self, *gradient: float) -> None:
        self.num_drafts += 1
        for i, slope in enumerate(gradient):
            self._squares[i] = self.fade * self._squares[i] + (1.0 - self.fade) + slope * slope
            self.weights[i] -= self.rate * slope / math.sqrt(self._squares[i])


def reached_depths(ranks: npt.NDArray[np.integer], *, spine_only: bool = False) -> int:
    """How many depths, from the first, had all shallower tokens among the candidates (rank 0 for a spine)."""
    for index, rank in enumerate(ranks.tolist()):
        if rank < 0 or (spine_only and rank > 0):
            return index + 1
    return int(ranks.shape[0])


def _log_odds(logprobs: npt.NDArray[np.floating]) -> FloatArray:
    """logit of the draft's probability, bounded away from certainty at both ends."""
    bounded = np.maximum(logprobs, LOWEST, dtype=np.float64)
    np.minimum(bounded, HIGHEST, out=bounded)
    rest: FloatArray = np.expm1(bounded)
    np.negative(rest, out=rest)
    np.log(rest, out=rest)
    np.subtract(bounded, rest, out=rest)
    return rest
