"""The mathematics of Bet-Optimal Drafting: which integer bet makes tokens per second highest.

Everything here is a pure function of numbers: acceptance, costs and a range of bets go in, a bet and the
tier that found it come out. It does not know where the numbers were measured and keeps no state;
`controller.py` calls it. Symbols and derivations: docs/bod.md.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_SWEEP_CHUNK = 65_536
_NEWTON_STEPS = 64


class Costs(NamedTuple):
    """A step's time as a line in the bet: fixed + scale * bet. Any unit of time, the same for both."""

    fixed: float
    scale: float

    def normalised(self) -> "Costs":
        """The same ratio with the larger cost 1, so that nothing overflows; both zero become (1, 0)."""
        unit = max(self.fixed, self.scale)
        return Costs(self.fixed / unit, self.scale / unit) if unit > 0.0 else Costs(1.0, 0.0)

    def at(self, bet: int) -> float:
        return self.fixed + self.scale * bet


class BetRange(NamedTuple):
    """The bets that may be chosen, both ends included."""

    low: int
    high: int

    def clamp(self, bet: float) -> int:
        return int(min(max(bet, self.low), self.high))


class Choice(NamedTuple):
    """A bet and the tier that found it: 1 dominance, 2 closed form, 3 sweep."""

    bet: int
    tier: int


@dataclass(frozen=True, slots=True)
class ChainGain:
    """Expected tokens of a chain whose bet counts the root: bet - 1 guesses, then the target's own token."""

    alpha: float
    rho: float = 0.0

    def tokens(self, bet: int) -> float:
        """Accepted guesses plus the bonus. At rho = 0 this is 1 + alpha + ... + alpha^(bet - 1)."""
        if self.rho > 0.0:
            return sum(self.survivals(bet))
        if self.alpha >= 1.0:
            return float(bet)
        if self.alpha <= 0.0:
            return 1.0
        return -math.expm1(bet * math.log(self.alpha)) / (1.0 - self.alpha)

    def survivals(self, bet: int) -> list[float]:
        """Chance that each of the `bet` tokens is kept, the sure one first: p -> rho + (alpha - rho) p."""
        chance, lam = 1.0, self.alpha - self.rho
        chances = []
        for _ in range(bet):
            chances.append(chance)
            chance = self.rho + lam * chance
        return chances

    def rises(self, bet: int, costs: Costs) -> bool:
        """Whether bet + 1 has the higher throughput (rho = 0).

        Compares the marginal token with the average one: no difference of nearly equal numbers is taken, so
        the answer holds where T itself is flat to the last digit.
        """
        return self.alpha**bet * costs.at(bet) > costs.scale * self.tokens(bet)


@dataclass(frozen=True, slots=True)
class TreeGain:
    """Expected tokens of a tree of `bet` guesses: slope * ln(bet) + offset accepted, plus the bonus."""

    slope: float
    offset: float

    def tokens(self, bet: int) -> float:
        return self.slope * math.log(bet) + self.offset + 1.0

    def rises(self, bet: int, costs: Costs) -> bool:
        """Whether bet + 1 has the higher throughput; see ChainGain.rises."""
        return self.slope * math.log1p(1.0 / bet) * costs.at(bet) > costs.scale * self.tokens(bet)


Gain = ChainGain | TreeGain


def throughput(gain: Gain, costs: Costs, bet: int) -> float:
    """T(bet): expected tokens per unit of time; infinite where the step costs nothing."""
    cost = costs.at(bet)
    return gain.tokens(bet) / cost if cost > 0.0 else math.inf


def best_chain_bet(gain: ChainGain, costs: Costs, bets: BetRange, dominance_ratio: float = 4.0) -> Choice:
    """The integer argmax of T for a chain; the smaller bet on a tie."""
    costs = costs.normalised()
    if gain.rho > 0.0:
        return Choice(_sweep_chain(gain, costs, bets), 3)
    if _dominates(gain, costs, bets, dominance_ratio):
        return Choice(bets.high, 1)
    return Choice(_better_neighbour(gain, costs, bets, chain_stationary_bet(gain.alpha, costs)), 2)


def best_tree_bet(gain: TreeGain, costs: Costs, bets: BetRange, dominance_ratio: float = 4.0) -> Choice:
    """The integer argmax of T for a tree; the smaller bet on a tie."""
    costs = costs.normalised()
    if gain.slope <= 0.0:
        return Choice(_better_end(gain, costs, bets), 3)
    if _dominates(gain, costs, bets, dominance_ratio):
        return Choice(bets.high, 1)
    return Choice(_better_neighbour(gain, costs, bets, tree_stationary_bet(gain, costs)), 2)


def sweep_tree(gain: TreeGain, costs: Costs, bets: BetRange) -> Choice:
    """Tier 3 of the tree: every bet tried. Used before anything was learned."""
    costs = costs.normalised()
    best, best_rate = bets.low, -math.inf
    for first in range(bets.low, bets.high + 1, _SWEEP_CHUNK):
        sizes = np.arange(first, min(first + _SWEEP_CHUNK, bets.high + 1), dtype=np.float64)
        with np.errstate(divide="ignore"):
            rates = (gain.slope * np.log(sizes) + gain.offset + 1.0) / (costs.fixed + costs.scale * sizes)
        index = int(np.argmax(rates))
        if float(rates[index]) > best_rate:
            best, best_rate = first + index, float(rates[index])
    return Choice(best, 3)


def chain_stationary_bet(alpha: float, costs: Costs) -> float:
    """gamma* = u / L, the real-valued maximum of T; 0 where T only falls, infinity where it only rises."""
    if alpha <= 0.0:
        return 0.0
    if costs.scale <= 0.0:
        return math.inf
    if costs.fixed <= 0.0:
        return 0.0
    if alpha >= 1.0:
        return math.inf
    decay = -math.log(alpha)
    return chain_root(math.log(costs.fixed) - math.log(costs.scale) + math.log(decay)) / decay


def chain_root(log_delta: float) -> float:
    """The positive u with e^u = u + K, given ln(K - 1): the log form of u = -W_-1(-e^-K) - K."""
    if log_delta > 40.0:
        # ln(u + K) = ln(delta) + (u + 1) / delta, whose second term is below rounding here.
        return log_delta
    delta = math.exp(log_delta)
    return _chain_root_small(delta) if delta < 0.5 else _chain_root_log(delta)


def tree_stationary_bet(gain: TreeGain, costs: Costs) -> float:
    """B* = R / W_0(R e^{k/a}) for a > 0, in logarithms."""
    if costs.scale <= 0.0:
        return math.inf
    tilt = (gain.offset + 1.0 - gain.slope) / gain.slope
    if costs.fixed <= 0.0:
        return _exp(-tilt)
    log_ratio = math.log(costs.fixed) - math.log(costs.scale)
    log_w = lambert_w0_log(log_ratio + tilt)
    # Two expressions for the same logarithm; each is the accurate one on its side of w = 1.
    return _exp(log_ratio - log_w) if log_w > 0.0 else _exp(math.exp(log_w) - tilt)


def lambert_w0_log(log_y: float) -> float:
    """v = ln W_0(y) from ln y, by Newton on e^v + v = ln y; neither y nor W need be representable."""
    if math.isinf(log_y):
        return log_y
    v = math.log(log_y) if log_y > 1.0 else log_y
    for _ in range(_NEWTON_STEPS):
        w = math.exp(v)
        step = (w + v - log_y) / (w + 1.0)
        v -= step
        if abs(step) <= 1e-15 * max(1.0, abs(v)):
            break
    return v


def _chain_root_log(delta: float) -> float:
    """Newton on u - ln(1 + u + delta), convex and rising, from the right of its root."""
    bend = math.log1p(delta)
    u = min(math.sqrt(2.0 * delta), bend + math.log1p(bend) + 1.0)
    for _ in range(_NEWTON_STEPS):
        step = (u - math.log1p(u + delta)) * (1.0 + u + delta) / (u + delta)
        u -= step
        if abs(step) <= 1e-15 * u:
            break
    return u


def _chain_root_small(delta: float) -> float:
    """Newton on e^u - 1 - u = delta by its power series: the log form loses its digits as K approaches 1."""
    u = math.sqrt(2.0 * delta)
    for _ in range(_NEWTON_STEPS):
        if u <= 0.0:
            return 0.0
        step = (_exp_remainder(u) - delta) / math.expm1(u)
        u -= step
        if abs(step) <= 1e-15 * u:
            break
    return u


def _exp_remainder(u: float) -> float:
    """e^u - 1 - u for 0 < u <= 1, without cancellation."""
    term = total = 0.5 * u * u
    order = 3
    while term > 1e-18 * total:
        term *= u / order
        total += term
        order += 1
    return total


def _exp(power: float) -> float:
    return math.exp(power) if power < 700.0 else math.inf


def _dominates(gain: Gain, costs: Costs, bets: BetRange, ratio: float) -> bool:
    """Tier 1: the fixed cost dwarfs the rest and T still rises at the top; with a single peak, that is it."""
    if costs.fixed <= ratio * costs.scale * bets.high or bets.high == bets.low:
        return False
    return gain.rises(bets.high - 1, costs)


def _better_neighbour(gain: Gain, costs: Costs, bets: BetRange, stationary: float) -> int:
    """The better of the two integers around the stationary point, within the range."""
    if stationary >= bets.high:
        return bets.high
    below = bets.clamp(math.floor(stationary))
    above = bets.clamp(math.floor(stationary) + 1)
    return above if above > below and gain.rises(below, costs) else below


def _better_end(gain: TreeGain, costs: Costs, bets: BetRange) -> int:
    """With a slope of zero or less T has no inner maximum (convex over linear): one of the ends is best."""
    if throughput(gain, costs, bets.high) > throughput(gain, costs, bets.low):
        return bets.high
    return bets.low


def _sweep_chain(gain: ChainGain, costs: Costs, bets: BetRange) -> int:
    best, best_rate, tokens = bets.low, -math.inf, 0.0
    for bet, chance in enumerate(gain.survivals(bets.high), start=1):
        tokens += chance
        rate = tokens / costs.at(bet)
        if bet >= bets.low and rate > best_rate:
            best, best_rate = bet, rate
    return best
