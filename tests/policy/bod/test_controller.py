"""The controller on simulated drafters with known optima, and its contract."""

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from wager.errors import ConfigError, InputError
from wager.policy.bod import BODConfig, BODController, BODObservation, bod_optimal_bet
from wager.policy.bod.closed_form import ChainGain, Costs, TreeGain, throughput
from wager.policy.bod.fit import AcceptanceFit, LineFit, RobustLineFit

FACTORS = (0.1, 1.0, 10.0)


@dataclass(frozen=True)
class Chain:
    """A drafter with constant acceptance and linear costs, autoregressive or block."""

    alpha: float
    costs: Costs
    noise: float = 0.0
    block: bool = False

    def accepted(self, bet: int, rng: random.Random) -> int:
        count = 0
        while count < bet - 1 and rng.random() < self.alpha:
            count += 1
        return count

    def times(self, bet: int, rng: random.Random) -> tuple[float, float]:
        """Draft and verify times: the autoregressive draft grows with the bet, the block's verify does."""
        if self.block:
            draft, verify = 0.3 * self.costs.fixed, 0.7 * self.costs.fixed + self.costs.scale * bet
        else:
            draft, verify = self.costs.scale * bet, self.costs.fixed
        return draft * self._jitter(rng), verify * self._jitter(rng)

    def _jitter(self, rng: random.Random) -> float:
        return max(1.0 + self.noise * rng.gauss(0.0, 1.0), 0.05)

    def best_rate(self) -> float:
        return max(self.rate(bet) for bet in range(2, 17))

    def rate(self, bet: int) -> float:
        return throughput(ChainGain(self.alpha), self.costs, bet)


def play(
    controller: BODController,
    chain: Chain,
    cycles: int,
    rng: random.Random,
    confidence: Callable[[random.Random], float] = lambda rng: 0.0,
) -> list[int]:
    bets = []
    for _ in range(cycles):
        bet = controller.optimal_bet()
        draft, verify = chain.times(bet, rng)
        controller.observe(bet, chain.accepted(bet, rng), draft + verify, draft, verify, confidence(rng))
        bets.append(bet)
    return bets


def share_of_optimum(chain: Chain, bets: list[int]) -> float:
    """Expected tokens over expected time of these bets, against the best constant bet."""
    tokens = sum(ChainGain(chain.alpha).tokens(bet) for bet in bets)
    return tokens / sum(chain.costs.at(bet) for bet in bets) / chain.best_rate()


def warmed(alpha: float = 0.85, seed: int = 0, cycles: int = 200) -> BODController:
    controller = BODController()
    play(controller, Chain(alpha, Costs(47.0, 8.0)), cycles, random.Random(seed))
    return controller


@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.85, 0.95])
@pytest.mark.parametrize(("noise", "block"), [(0.0, False), (0.1, False), (0.05, True), (0.1, True)])
def test_reaches_the_optimum_of_a_chain(alpha: float, noise: float, block: bool) -> None:
    for scale, fixed, seed in itertools.product(FACTORS, FACTORS, range(2)):
        chain = Chain(alpha, Costs(47.0 * fixed, 8.0 * scale), noise, block)
        controller = BODController()
        bets = play(controller, chain, 1000, random.Random(seed))
        assert share_of_optimum(chain, bets[100:]) >= 0.98, (scale, fixed, seed)
        assert controller.costs_learned
        assert all(2 <= bet <= 16 for bet in bets)


@pytest.mark.parametrize(
    "confidence",
    [lambda rng: 0.05, lambda rng: 1.0, lambda rng: rng.random(), lambda rng: rng.choice([0.0, 0.99])],
    ids=["low", "certain", "random", "sometimes"],
)
@pytest.mark.parametrize("alpha", [0.5, 0.95])
def test_misleading_confidence_does_no_harm(
    alpha: float, confidence: Callable[[random.Random], float]
) -> None:
    chain = Chain(alpha, Costs(47.0, 8.0), 0.1)
    for weight in (0.3, 1.0):
        controller = BODController(BODConfig(confidence_weight=weight))
        bets = play(controller, chain, 1000, random.Random(3), confidence)
        assert share_of_optimum(chain, bets[100:]) >= 0.98


def test_confidence_speaks_before_evidence_and_zero_means_none() -> None:
    timid, silent = BODController(), BODController()
    timid.observe(2, 1, 63.0, 16.0, 47.0, confidence=0.1)
    silent.observe(2, 1, 63.0, 16.0, 47.0, confidence=0.0)
    assert timid.alpha == pytest.approx((1 + 15 * (0.7 * 0.85 + 0.3 * 0.1)) / 16)
    assert silent.alpha == pytest.approx((1 + 15 * 0.85) / 16)


def test_starts_at_the_cold_optimum() -> None:
    assert BODController().optimal_bet() == bod_optimal_bet() == 7
    assert BODController().costs == Costs(47.0, 8.0)
    assert not BODController().costs_learned


def test_asking_changes_nothing() -> None:
    controller = warmed(cycles=50)
    for _ in range(40):
        asked = [controller.optimal_bet() for _ in range(3)]
        assert len(set(asked)) == 1
        controller.observe(asked[0], 0, 100.0, 50.0, 50.0)


def test_learned_costs_stay_learned_after_thousands_of_equal_bets() -> None:
    chain, rng = Chain(0.85, Costs(4.7, 2.0), 0.05), random.Random(1)
    controller = BODController()
    play(controller, chain, 200, rng)
    before = controller.costs
    for _ in range(5000):
        draft, verify = chain.times(3, rng)
        controller.observe(3, chain.accepted(3, rng), draft + verify, draft, verify)
        assert controller.costs_learned
    assert controller.costs.scale == pytest.approx(before.scale, rel=0.05)
    assert controller.costs.at(3) == pytest.approx(chain.costs.at(3), rel=0.05)


def test_verify_intercept_is_part_of_the_fixed_cost() -> None:
    controller = BODController()
    play(controller, Chain(0.85, Costs(100.0, 3.0), block=True), 60, random.Random(0))
    assert controller.costs.fixed == pytest.approx(100.0, rel=1e-6)
    assert controller.costs.scale == pytest.approx(3.0, rel=1e-6)


def test_exploration_is_sparse_once_costs_are_known() -> None:
    controller = BODController()
    bets = play(controller, Chain(0.85, Costs(47.0, 8.0)), 3000, random.Random(5))
    explored = sum(abs(bet - 7) > 2 for bet in bets[1000:])
    assert 0 < explored < 60
    assert len(set(bets[:16])) >= 3


def test_exploration_can_be_switched_off() -> None:
    controller = BODController(BODConfig(explore_budget=0.0))
    for _ in range(50):
        assert controller.optimal_bet() == controller.best().bet
        controller.observe(controller.optimal_bet(), 3, 103.0, 56.0, 47.0)


@pytest.mark.parametrize(("before", "after"), [(0.95, 0.5), (0.85, 0.5), (0.5, 0.95)])
def test_a_change_of_acceptance_is_followed_within_fifty_cycles(before: float, after: float) -> None:
    for seed in range(6):
        rng, controller = random.Random(seed), BODController()
        old = Chain(before, Costs(47.0, 8.0), 0.05)
        new = replace(old, alpha=after)
        play(controller, old, 600, rng)
        play(controller, new, 50, rng)
        bets = play(controller, new, 100, rng)
        assert share_of_optimum(new, bets) >= 0.95, seed


def test_a_change_of_costs_is_followed() -> None:
    rng, controller = random.Random(2), BODController()
    play(controller, Chain(0.85, Costs(47.0, 8.0), 0.05), 500, rng)
    doubled = Chain(0.85, Costs(94.0, 16.0), 0.05)
    play(controller, doubled, 300, rng)
    assert controller.costs.at(7) == pytest.approx(doubled.costs.at(7), rel=0.05)


def test_stalls_do_not_bend_the_costs() -> None:
    rng, controller, chain = random.Random(4), BODController(), Chain(0.85, Costs(47.0, 8.0), 0.02)
    for cycle in range(600):
        bet = controller.optimal_bet()
        draft, verify = chain.times(bet, rng)
        stall = 5000.0 if cycle == 0 or cycle % 97 == 0 else 0.0
        controller.observe(bet, chain.accepted(bet, rng), draft + verify + stall, draft, verify + stall)
    assert controller.costs.at(7) == pytest.approx(chain.costs.at(7), rel=0.1)
    assert controller.costs.scale == pytest.approx(8.0, rel=0.3)
    assert chain.rate(controller.best().bet) >= 0.98 * chain.best_rate()


def test_full_acceptance_is_censored() -> None:
    controller = BODController()
    for _ in range(20):
        controller.observe(5, 4, 87.0, 40.0, 47.0)
        controller.observe(5, 2, 87.0, 40.0, 47.0)
    assert controller.alpha == pytest.approx(120 / (120 + 20))


def test_acceptances_alone_do_not_prove_certainty() -> None:
    controller = BODController()
    for _ in range(40):
        controller.observe(2, 1, 63.0, 16.0, 47.0)
    assert controller.alpha == pytest.approx(40 / 40.5)


def test_estimate_is_unbiased_for_short_bets() -> None:
    fit, rng = AcceptanceFit(4000, 4000), random.Random(0)
    chain = Chain(0.85, Costs(47.0, 8.0))
    for _ in range(4000):
        fit.update(chain.accepted(5, rng), 4)
    assert fit.rate(0.5, 16) == pytest.approx(0.85, abs=0.01)


def test_a_bet_of_one_still_explores_guesses() -> None:
    controller = BODController(BODConfig(min_bet=1))
    hopeless = Chain(0.02, Costs(1.0, 20.0))
    bets = play(controller, hopeless, 600, random.Random(0))
    assert max(set(bets[100:]), key=bets[100:].count) == 1
    good = Chain(0.98, Costs(100.0, 0.5))
    bets = play(controller, good, 1500, random.Random(1))
    assert bets[-1] >= 12


def test_rho_uses_the_sweep() -> None:
    controller = BODController(BODConfig(rho=0.4))
    assert controller.best().tier == 3
    assert controller.best().bet == bod_optimal_bet(rho=0.4)


@dataclass(frozen=True)
class Tree:
    gain: TreeGain
    costs: Costs

    def accepted(self, bet: int, rng: random.Random) -> int:
        mean = self.gain.tokens(bet) - 1.0
        return math.floor(mean) + (rng.random() < mean - math.floor(mean))


def play_tree(controller: BODController, tree: Tree, cycles: int, rng: random.Random) -> list[int]:
    bets = []
    for _ in range(cycles):
        bet = controller.optimal_bet()
        time_ms = tree.costs.at(bet) * max(1.0 + 0.05 * rng.gauss(0.0, 1.0), 0.05)
        controller.observe(bet, tree.accepted(bet, rng), time_ms, 0.3 * time_ms, 0.7 * time_ms)
        bets.append(bet)
    return bets


@pytest.mark.parametrize(("slope", "offset"), [(0.71, 5.18), (0.4, 1.0), (1.5, 0.5)])
@pytest.mark.parametrize(("fixed", "scale"), [(100.0, 0.05), (47.0, 0.5), (47.0, 8.0), (47.0, 0.005)])
def test_reaches_the_optimum_of_a_tree(slope: float, offset: float, fixed: float, scale: float) -> None:
    tree = Tree(TreeGain(slope, offset), Costs(fixed, scale))
    best = max(throughput(tree.gain, tree.costs, bet) for bet in range(16, 1025))
    for seed in range(3):
        controller = BODController(BODConfig(mode="tree"))
        bets = play_tree(controller, tree, 1000, random.Random(seed))
        assert all(16 <= bet <= 1024 for bet in bets)
        rate = sum(map(tree.gain.tokens, bets[100:])) / sum(map(tree.costs.at, bets[100:]))
        assert rate >= 0.97 * best, seed


def test_tree_gain_leaves_the_bonus_out() -> None:
    tree = Tree(TreeGain(0.9, 2.0), Costs(100.0, 0.05))
    controller = BODController(BODConfig(mode="tree"))
    play_tree(controller, tree, 1000, random.Random(0))
    gain = controller.gain
    assert isinstance(gain, TreeGain)
    assert gain.tokens(150) == pytest.approx(tree.gain.tokens(150), rel=0.03)


def test_tree_needs_different_bets_before_it_learns() -> None:
    controller = BODController(BODConfig(mode="tree"))
    assert controller.best().tier == 3
    for _ in range(20):
        controller.observe(64, 3, 100.0, 30.0, 70.0)
    assert controller.gain == TreeGain(0.71, 5.18)
    controller.observe(128, 4, 110.0, 30.0, 80.0)
    assert controller.gain != TreeGain(0.71, 5.18)
    assert controller.best().tier != 3


def test_line_fit_is_exact_and_keeps_its_slope_over_a_drift() -> None:
    fit = LineFit(32, 1e6)
    for index in range(400):
        fit.update(2.0 + index % 5, 10.0 + 3.0 * (2.0 + index % 5))
    assert fit.line == (pytest.approx(10.0), pytest.approx(3.0))
    for index in range(4000):
        fit.update(4.0, 22.0 + 0.05 * index)
    assert fit.slope == pytest.approx(3.0, rel=0.05)


def test_robust_fit_waits_for_a_second_value() -> None:
    fit = RobustLineFit(LineFit(32, 100.0), 8, 4, 2)
    for _ in range(50):
        fit.update(4.0, 10.0)
    assert (fit.line, fit.learned) == (None, False)
    fit.update(6.0, 14.0)
    assert fit.line == (pytest.approx(2.0), pytest.approx(2.0))


@pytest.mark.parametrize("mode", ["chain", "tree"])
def test_ranges_follow_the_mode(mode: str) -> None:
    config = BODConfig(mode=mode)
    assert (config.min_bet, config.max_bet) == ((2, 16) if mode == "chain" else (16, 1024))
    assert replace(config, max_bet=99).max_bet == 99
    with pytest.raises(FrozenInstanceError):
        config.mode = "chain"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "forest"),
        ("min_bet", 17),
        ("max_bet", 1),
        ("acceptance_window", 0),
        ("acceptance_memory", 8),
        ("cost_window", 0),
        ("cost_min_observations", 0),
        ("cost_min_unique_bets", 1),
        ("max_obs_age", 0),
        ("confidence_weight", 1.5),
        ("rho", -0.1),
        ("cold_alpha", math.nan),
        ("cold_trials", -1),
        ("default_scale_cost", -1.0),
        ("default_fixed_cost", math.inf),
        ("default_log_slope", math.nan),
        ("dominance_ratio", -1.0),
        ("explore_budget", 2.0),
    ],
)
def test_bad_settings_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        BODConfig(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "cycle"),
    [
        ("bet", (0, 0, 1.0, 1.0, 1.0)),
        ("bet", (2.5, 0, 1.0, 1.0, 1.0)),
        ("accepted", (4, 4, 1.0, 1.0, 1.0)),
        ("accepted", (4, -1, 1.0, 1.0, 1.0)),
        ("cycle_time_ms", (4, 1, math.nan, 1.0, 1.0)),
        ("draft_time_ms", (4, 1, 1.0, -1.0, 1.0)),
        ("verify_time_ms", (4, 1, 1.0, 1.0, math.inf)),
        ("confidence", (4, 1, 1.0, 1.0, 1.0, 1.5)),
    ],
)
def test_impossible_cycles_are_refused_and_not_learned(field: str, cycle: tuple) -> None:
    controller = warmed()
    before = (controller.alpha, controller.costs, controller.cycles)
    with pytest.raises(InputError) as caught:
        controller.observe(*cycle)
    assert caught.value.field == field
    assert (controller.alpha, controller.costs, controller.cycles) == before


@pytest.mark.parametrize("mode", ["chain", "tree"])
def test_free_cycles_do_not_break_it(mode: str) -> None:
    controller = BODController(BODConfig(mode=mode))
    for _ in range(100):
        bet = controller.optimal_bet()
        controller.observe(bet, 0, 0.0, 0.0, 0.0)
    assert controller.config.min_bet <= controller.optimal_bet() <= controller.config.max_bet


def test_a_range_of_one_bet() -> None:
    controller = BODController(BODConfig(min_bet=4, max_bet=4))
    assert set(play(controller, Chain(0.5, Costs(47.0, 8.0)), 100, random.Random(0))) == {4}


def test_observation_costs_at_least_its_passes() -> None:
    assert BODObservation(4, 1, 10.0, 3.0, 4.0).time_ms == 10.0
    assert BODObservation(4, 1, 0.0, 3.0, 4.0).time_ms == 7.0
