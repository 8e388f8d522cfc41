"""Bet-Optimal Drafting: the closed-form policy that learns acceptance and costs, and bets what pays best.

`bod_optimal_bet` answers for given numbers; `BODController` learns the numbers from observed cycles. A
chain's bet counts the root here (guesses + 1), a tree's counts guesses. It knows no tokens, drafts or zero
bet: the policy `bod` calls it and adds the zero. Mathematics in `closed_form.py`, estimators in `fit.py`,
the whole story in docs/bod.md.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from wager.errors import ConfigError, InputError
from wager.policy.bod.closed_form import (
    BetRange,
    ChainGain,
    Choice,
    Costs,
    Gain,
    TreeGain,
    best_chain_bet,
    best_tree_bet,
    sweep_tree,
    throughput,
)
from wager.policy.bod.fit import AcceptanceFit, LineFit, RobustLineFit

__all__ = ["BODConfig", "BODController", "BODObservation", "bod_optimal_bet"]

_RANGES = {"chain": BetRange(2, 16), "tree": BetRange(16, 1024)}
_LOSS_FLOOR = 0.02  # losses below this count alike when the worth of a trial is weighed
_SIGMAS = 3.0  # how wrong a learned slope may be, in standard errors,
_TOLERATED_LOSS = 0.005  # and how much throughput that may cost before exploration thins out


@dataclass(frozen=True, slots=True)
class BODConfig:
    """Settings of a controller. Times in milliseconds; min_bet and max_bet left at None follow the mode."""

    mode: str = "chain"
    # Optional only on the way in: __post_init__ replaces None, so that readers always see a number.
    min_bet: int = None  # type: ignore[assignment]
    max_bet: int = None  # type: ignore[assignment]
    default_scale_cost: float = 8.0
    default_fixed_cost: float = 47.0
    acceptance_window: int = 32
    acceptance_memory: int = 256
    cost_window: int = 16
    cost_min_observations: int = 4
    cost_min_unique_bets: int = 2
    max_obs_age: int = 64
    confidence_weight: float = 0.3
    rho: float = 0.0
    default_log_slope: float = 0.71
    default_log_offset: float = 5.18
    dominance_ratio: float = 4.0
    cold_alpha: float = 0.85
    cold_trials: int = 16
    explore_budget: float = 0.002

    def __post_init__(self) -> None:
        bets = _resolve_range(self.mode, self.min_bet, self.max_bet)
        object.__setattr__(self, "min_bet", bets.low)
        object.__setattr__(self, "max_bet", bets.high)
        for field in ("acceptance_window", "cost_window", "cost_min_observations", "max_obs_age"):
            _check_whole(field, getattr(self, field), 1)
        _check_whole("acceptance_memory", self.acceptance_memory, self.acceptance_window)
        _check_whole("cost_min_unique_bets", self.cost_min_unique_bets, 2)
        _check_whole("cold_trials", self.cold_trials, 0)
        for field in ("default_scale_cost", "default_fixed_cost", "dominance_ratio"):
            _check_number(field, getattr(self, field), 0.0)
        for field in ("confidence_weight", "rho", "cold_alpha", "explore_budget"):
            _check_number(field, getattr(self, field), 0.0, 1.0)
        for field in ("default_log_slope", "default_log_offset"):
            _check_number(field, getattr(self, field))

    @property
    def bets(self) -> BetRange:
        return BetRange(self.min_bet, self.max_bet)


@dataclass(frozen=True, slots=True)
class BODObservation:
    """One cycle as it happened. `accepted` leaves the bonus out; a confidence of 0 means none was given."""

    bet: int
    accepted: int
    cycle_time_ms: float
    draft_time_ms: float
    verify_time_ms: float
    confidence: float = 0.0

    def __post_init__(self) -> None:
        for field, low in (("bet", 1), ("accepted", 0)):
            value = getattr(self, field)
            if not _is_number(value) or value != int(value) or value < low:
                raise InputError(f"{value!r} is not a whole number from {low}", field)
        for field in ("cycle_time_ms", "draft_time_ms", "verify_time_ms"):
            value = getattr(self, field)
            if not _is_number(value) or value < 0.0:
                raise InputError(f"{value!r} is not a finite time of at least 0", field)
        if not _is_number(self.confidence) or not 0.0 <= self.confidence <= 1.0:
            raise InputError(f"{self.confidence!r} is not within 0 to 1", "confidence")

    @property
    def time_ms(self) -> float:
        """What the cycle cost: the whole of it, and at least its two passes."""
        return max(self.cycle_time_ms, self.draft_time_ms + self.verify_time_ms)


def bod_optimal_bet(
    mode: str = "chain",
    *,
    alpha: float = 0.85,
    c_scale: float = 8.0,
    c_fixed: float = 47.0,
    rho: float = 0.0,
    log_slope: float = 0.71,
    log_offset: float = 5.18,
    min_bet: int | None = None,
    max_bet: int | None = None,
) -> int:
    """The integer bet with the highest throughput T; the smaller one on a tie.

    chain: T = (1 + E) / (c_fixed + c_scale * bet), E the accepted of bet - 1 guesses; uses alpha and rho.
    tree: T = (1 + log_slope * ln(bet) + log_offset) / (c_fixed + c_scale * bet).
    The range is 2..16 for a chain and 16..1024 for a tree unless given. Raises ConfigError.
    """
    bets = _resolve_range(mode, min_bet, max_bet)
    _check_number("alpha", alpha, 0.0, 1.0)
    _check_number("rho", rho, 0.0, 1.0)
    _check_number("c_scale", c_scale, 0.0)
    _check_number("c_fixed", c_fixed, 0.0)
    _check_number("log_slope", log_slope)
    _check_number("log_offset", log_offset)
    costs = Costs(float(c_fixed), float(c_scale))
    if mode == "chain":
        return best_chain_bet(ChainGain(float(alpha), float(rho)), costs, bets).bet
    return best_tree_bet(TreeGain(float(log_slope), float(log_offset)), costs, bets).bet


class _Trial(NamedTuple):
    """A bet played to learn: information per loss, the time expected to be lost in cycles, and the bet."""

    worth: float
    loss: float
    bet: int


class BODController:
    """Learns from cycles and names the next bet, always within min_bet..max_bet.

    `optimal_bet` changes nothing and is deterministic; `observe` is the only method that learns. Costs and a
    tree's gain need different bets to be told apart, so now and then the bet is a trial near the best one.
    """

    def __init__(self, config: BODConfig | None = None) -> None:
        self.config = config if config is not None else BODConfig()
        self.cycles = 0
        self._bets = self.config.bets
        self._acceptance = AcceptanceFit(self.config.acceptance_window, self.config.acceptance_memory)
        self._costs = _cost_fit(self.config)
        self._tree_gain = _tree_gain_fit(self.config)
        self._tree_bets: set[int] = set()
        self._confidence = 0.0
        self._explore_at = 1.0 if self.config.explore_budget > 0.0 else math.inf
        self._explorations = 0

    @property
    def alpha(self) -> float:
        """Acceptance of one guess, by maximum likelihood once `cold_trials` guesses were judged."""
        weight = self.config.confidence_weight if self._confidence > 0.0 else 0.0
        prior = (1.0 - weight) * self.config.cold_alpha + weight * self._confidence
        return self._acceptance.rate(prior, self.config.cold_trials)

    @property
    def costs_learned(self) -> bool:
        return self._costs.learned

    @property
    def costs(self) -> Costs:
        """The cost line in milliseconds: learned once bets have differed, the configured defaults before."""
        line = self._costs.line
        if line is None:
            return Costs(self.config.default_fixed_cost, self.config.default_scale_cost)
        return Costs(max(line.intercept, 0.0), max(line.slope, 0.0))

    @property
    def gain(self) -> Gain:
        """What a bet is expected to yield, as learned so far."""
        if self.config.mode == "chain":
            return ChainGain(self.alpha, self.config.rho)
        if not self._tree_learned:
            return TreeGain(self.config.default_log_slope, self.config.default_log_offset)
        line = self._tree_gain.line
        return TreeGain(line.slope, line.intercept)

    def optimal_bet(self) -> int:
        """The next bet: the best one as far as is known, or, when that knowledge needs it, a trial."""
        if self.cycles < self._explore_at:
            return self.best().bet
        if not self.costs_learned:
            return self._bets.clamp(4 * self.best().bet) if self._explorations % 2 == 0 else self._bets.low
        return self._trial().bet

    def best(self) -> Choice:
        """The best bet by what is known now, without exploration, and the tier that found it."""
        gain, costs = self.gain, self.costs
        if isinstance(gain, TreeGain) and not self._tree_learned:
            return sweep_tree(gain, costs, self._bets)
        return self._solve(gain, costs)

    def observe(
        self,
        bet: int,
        accepted: int,
        cycle_time_ms: float,
        draft_time_ms: float,
        verify_time_ms: float,
        confidence: float = 0.0,
    ) -> None:
        """Learn from one cycle: the bet played, guesses accepted (no bonus), times, draft confidence.

        Raises InputError on impossible values; nothing is learned then.
        """
        cycle = BODObservation(bet, accepted, cycle_time_ms, draft_time_ms, verify_time_ms, confidence)
        guesses = bet - 1 if self.config.mode == "chain" else bet
        if accepted > guesses:
            raise InputError(f"{accepted} accepted of {guesses} guesses", "accepted")
        self._learn(cycle, guesses)
        self.cycles += 1
        if self._explore_at < self.cycles:
            self._explorations += 1
            self._explore_at = self.cycles + self._pause()

    @property
    def _tree_learned(self) -> bool:
        config = self.config
        enough = self._tree_gain.count >= config.cost_min_observations
        return enough and len(self._tree_bets) >= config.cost_min_unique_bets

    def _solve(self, gain: Gain, costs: Costs) -> Choice:
        if isinstance(gain, ChainGain):
            return best_chain_bet(gain, costs, self._bets, self.config.dominance_ratio)
        return best_tree_bet(gain, costs, self._bets, self.config.dominance_ratio)

    def _learn(self, cycle: BODObservation, guesses: int) -> None:
        self._costs.update(float(cycle.bet), cycle.time_ms)
        if self.config.mode == "chain":
            self._acceptance.update(cycle.accepted, guesses)
        else:
            self._tree_gain.update(math.log(cycle.bet), float(cycle.accepted))
            if len(self._tree_bets) < self.config.cost_min_unique_bets:
                self._tree_bets.add(cycle.bet)
        if cycle.confidence > 0.0:
            self._confidence = cycle.confidence

    def _pause(self) -> int:
        """Cycles until the next trial, so that all of them together lose about the budget.

        The budget is generous at first, a small share later, and a fraction of that once all is well known.
        """
        budget = self.config.explore_budget
        if self._well_known():
            budget /= 8.0
        else:
            budget += 1.0 / self.cycles
        return max(2, min(math.ceil(self._trial().loss / budget), 16 * self.config.max_obs_age))

    def _well_known(self) -> bool:
        """Whether the present bet would still do if each learned slope were wrong by its likely error."""
        bet = self.best().bet
        if self.config.mode == "chain" and bet == 1:
            # A bet without guesses teaches nothing about acceptance, however well the costs are known.
            return False
        likely = [(gain, costs) for gain in self._likely_gains() for costs in self._likely_costs()]
        return bool(likely) and all(self._does(bet, gain, costs) for gain, costs in likely)

    def _does(self, bet: int, gain: Gain, costs: Costs) -> bool:
        best = throughput(gain, costs, self._solve(gain, costs).bet)
        return throughput(gain, costs, bet) >= (1.0 - _TOLERATED_LOSS) * best

    def _likely_costs(self) -> list[Costs]:
        return [
            Costs(max(line.intercept, 0.0), max(line.slope, 0.0))
            for line in self._costs.likely_lines(_SIGMAS)
        ]

    def _likely_gains(self) -> list[Gain]:
        if self.config.mode == "chain":
            return [self.gain]
        return [TreeGain(line.slope, line.intercept) for line in self._tree_gain.likely_lines(_SIGMAS)]

    def _trial(self) -> "_Trial":
        """The bet that tells most about the slopes for the time it is expected to lose."""
        gain, costs, best = self.gain, self.costs, self.best().bet
        cycle = costs.at(best) or 1.0
        time_per_token = cycle / max(gain.tokens(best), 1e-9)
        chosen = _Trial(-1.0, 0.0, best)
        for bet in self._candidates(best):
            loss = max(costs.at(bet) - gain.tokens(bet) * time_per_token, 0.0) / cycle
            worth = self._information(bet, best, costs) / (loss + _LOSS_FLOOR)
            if worth > chosen.worth:
                chosen = _Trial(worth, loss, bet)
        return chosen

    def _information(self, bet: int, best: int, costs: Costs) -> float:
        """What a trial adds to the slopes' precision, up to a factor; dear cycles scatter more."""
        cost = ((bet - best) / (costs.at(bet) or 1.0)) ** 2
        if self.config.mode == "chain":
            return cost
        return cost * costs.at(best) ** 2 / best**2 + math.log(bet / best) ** 2

    def _candidates(self, best: int) -> Iterator[int]:
        """Other bets of the range: all of a short one, steps of a quarter of a long one."""
        for sign in (1, -1):
            bet, end = best, self._bets.high if sign > 0 else self._bets.low
            while bet != end:
                step = 1 if self._bets.high <= 64 else max(bet // 4, 1)
                bet = self._bets.clamp(bet + sign * step)
                yield bet


def _cost_fit(config: BODConfig) -> RobustLineFit:
    reach = max(config.max_bet - config.min_bet, 1) / 4.0
    line = LineFit(config.max_obs_age, 2 * config.cost_window * reach * reach, relative=True)
    return RobustLineFit(line, config.cost_window, config.cost_min_observations, config.cost_min_unique_bets)


def _tree_gain_fit(config: BODConfig) -> LineFit:
    reach = max(math.log(config.max_bet / config.min_bet), 0.1) / 4.0
    fit = LineFit(config.acceptance_memory, config.acceptance_memory * reach * reach)
    fit.shrink_towards(config.default_log_slope, 16 * reach * reach)
    return fit


def _resolve_range(mode: str, min_bet: int | None, max_bet: int | None) -> BetRange:
    if mode not in _RANGES:
        raise ConfigError("mode", mode, "chain or tree")
    usual = _RANGES[mode]
    low = usual.low if min_bet is None else min_bet
    high = usual.high if max_bet is None else max_bet
    _check_whole("min_bet", low, 1)
    _check_whole("max_bet", high, 1)
    if low > high:
        field, value = ("max_bet", max_bet) if min_bet is None else ("min_bet", min_bet)
        raise ConfigError(field, value, f"min_bet <= max_bet, not {low}..{high}")
    return BetRange(int(low), int(high))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_whole(field: str, value: object, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ConfigError(field, value, f"a whole number from {low}")


def _check_number(field: str, value: object, low: float = -math.inf, high: float = math.inf) -> None:
    if not isinstance(value, (int, float)) or not _is_number(value) or not low <= value <= high:
        bounds = "a finite number" if math.isinf(low) else f"a number from {low:g}"
        raise ConfigError(field, value, bounds if math.isinf(high) else f"{bounds} to {high:g}")
