"""Closed forms against brute force, exact arithmetic and scipy's Lambert W."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import lambertw

from wager.errors import ConfigError
from wager.policy.bod import bod_optimal_bet
from wager.policy.bod.closed_form import (
    BetRange,
    ChainGain,
    Costs,
    TreeGain,
    best_chain_bet,
    best_tree_bet,
    chain_root,
    lambert_w0_log,
    sweep_tree,
)

COST = st.one_of(st.just(0.0), st.floats(1e-6, 1e6), st.sampled_from([1e-300, 1e300]))
ALPHA = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 1.0, 1e-12, 1.0 - 1e-15, 0.5, 0.999999]))
RANGE = st.tuples(st.integers(1, 60), st.integers(0, 60)).map(lambda pair: (pair[0], pair[0] + pair[1]))
MANY = settings(max_examples=300, deadline=None)


def exact_chain_rates(
    alpha: float, c_scale: float, c_fixed: float, low: int, high: int
) -> dict[int, Fraction]:
    """T(bet) = (1 + alpha + ... + alpha^(bet - 1)) / (c_fixed + c_scale * bet), without rounding."""
    rates, tokens, power = {}, Fraction(0), Fraction(1)
    for bet in range(1, high + 1):
        tokens += power
        power *= Fraction(alpha)
        if bet >= low:
            rates[bet] = tokens / (Fraction(c_fixed) + Fraction(c_scale) * bet)
    return rates


@pytest.mark.parametrize(("alpha", "bet"), [(0.85, 7), (0.95, 13)])
def test_chain_check_values(alpha: float, bet: int) -> None:
    assert bod_optimal_bet("chain", alpha=alpha, c_scale=8.0, c_fixed=47.0, max_bet=16) == bet


def test_tree_check_value() -> None:
    assert bod_optimal_bet("tree", log_slope=0.71, log_offset=5.18, c_scale=0.05, c_fixed=100.0) == 157


def test_every_argument_has_a_default() -> None:
    assert bod_optimal_bet() == 7
    assert 16 <= bod_optimal_bet("tree") <= 1024


@MANY
@given(ALPHA, COST, COST, RANGE)
@example(1.0 - 1e-15, 1e6, 1e-6, (1, 120))
@example(1e-12, 1e-300, 1e300, (2, 60))
@example(1.0, 3.0, 0.0, (2, 16))
@example(0.0, 0.0, 5.0, (2, 16))
@example(0.5, 1e-3, 1e3, (1, 100))
def test_chain_is_the_exact_argmax(
    alpha: float, c_scale: float, c_fixed: float, bets: tuple[int, int]
) -> None:
    low, high = bets
    bet = bod_optimal_bet("chain", alpha=alpha, c_scale=c_scale, c_fixed=c_fixed, min_bet=low, max_bet=high)
    assert low <= bet <= high
    if c_scale == 0.0 and c_fixed == 0.0:
        c_fixed = 1.0
    rates = exact_chain_rates(alpha, c_scale, c_fixed, low, high)
    top = max(rates.values())
    # Differences below one part in 1e15 are beyond the doubles that the bet is decided in.
    assert rates[bet] >= top * (1 - Fraction(1, 10**15))


@MANY
@given(st.floats(0.05, 0.99), st.floats(0.01, 100.0), st.floats(0.01, 1000.0))
def test_chain_prefers_the_smallest_exact_argmax(alpha: float, c_scale: float, c_fixed: float) -> None:
    rates = exact_chain_rates(alpha, c_scale, c_fixed, 2, 24)
    wanted = min(bet for bet, rate in rates.items() if rate == max(rates.values()))
    bet = bod_optimal_bet("chain", alpha=alpha, c_scale=c_scale, c_fixed=c_fixed, min_bet=2, max_bet=24)
    assert bet == wanted or rates[wanted] - rates[bet] < rates[wanted] * Fraction(1, 10**15)


def test_an_exact_tie_goes_to_the_smaller_bet() -> None:
    # T(2) = 1.5 / 3 and T(3) = 1.75 / 3.5 are both 0.5.
    assert bod_optimal_bet("chain", alpha=0.5, c_scale=0.5, c_fixed=2.0, min_bet=2, max_bet=3) == 2
    assert bod_optimal_bet("chain", alpha=1.0, c_scale=3.0, c_fixed=0.0) == 2


def test_dominance_is_taken_only_where_it_is_the_argmax() -> None:
    bets = BetRange(2, 64)
    flat = best_chain_bet(ChainGain(0.3), Costs(1000.0, 1.0), bets)
    assert (flat.tier, flat.bet < 64) == (2, True)
    steep = best_chain_bet(ChainGain(0.99), Costs(1000.0, 1.0), bets)
    assert steep == (64, 1)


@MANY
@given(ALPHA, st.floats(1e-6, 1.0), st.floats(1e-3, 100.0), st.floats(0.0, 1000.0), RANGE)
@example(0.0, 1.0, 1.0, 0.0, (1, 9))
def test_markov_sweep_is_the_argmax(
    alpha: float, rho: float, c_scale: float, c_fixed: float, bets: tuple[int, int]
) -> None:
    low, high = bets
    lam, d = alpha - rho, 1.0 - alpha + rho

    def rate(bet: int) -> float:
        n = bet - 1
        expected = n * rho / d + lam * (1.0 - alpha) * (1.0 - lam**n) / d**2
        return (expected + 1.0) / (c_fixed + c_scale * bet)

    options = {"c_scale": c_scale, "c_fixed": c_fixed, "min_bet": low, "max_bet": high}
    bet = bod_optimal_bet("chain", alpha=alpha, rho=rho, **options)
    # This form divides by d twice and loses digits as d falls; the tolerance is its, not the sweep's.
    assert rate(bet) >= max(rate(other) for other in range(low, high + 1)) * (1.0 - 1e-15 / d**2 - 1e-12)


@MANY
@given(st.floats(-5.0, 5.0), st.floats(-10.0, 20.0), COST, COST, st.integers(1, 400), st.integers(0, 700))
@example(1e-300, 5.0, 1.0, 100.0, 16, 500)
@example(1e-3, -8.0, 1.0, 100.0, 16, 500)
@example(5e-324, -3.0, 1.0, 100.0, 16, 500)
@example(0.71, 5.18, 0.05, 0.0, 16, 1008)
@example(-1.0, 5.0, 0.05, 10.0, 16, 1008)
@example(0.0, -3.0, 0.05, 10.0, 16, 1008)
def test_tree_is_the_argmax(a: float, b: float, c_scale: float, c_fixed: float, low: int, span: int) -> None:
    costs, bets = Costs(c_fixed, c_scale).normalised(), BetRange(low, low + span)
    options = {"c_scale": c_scale, "c_fixed": c_fixed, "min_bet": bets.low, "max_bet": bets.high}
    bet = bod_optimal_bet("tree", log_slope=a, log_offset=b, **options)
    assert bets.low <= bet <= bets.high
    sizes = np.arange(bets.low, bets.high + 1, dtype=np.float64)
    tokens, cost = a * np.log(sizes) + b + 1.0, costs.fixed + costs.scale * sizes
    rates = tokens / cost
    # Rounding of T: a few units in the last place of its terms, which may cancel.
    slack = 1e-14 * (abs(a) * np.log(bets.high + 1.0) + abs(b) + 1.0) / cost.min()
    assert rates[bet - bets.low] >= rates.max() - slack


@MANY
@given(st.floats(0.05, 5.0), st.floats(-1.0, 20.0), st.floats(1e-3, 10.0), st.floats(0.0, 1000.0))
def test_tree_sweep_agrees_with_the_closed_form(a: float, b: float, c_scale: float, c_fixed: float) -> None:
    gain, costs, bets = TreeGain(a, b), Costs(c_fixed, c_scale), BetRange(16, 1024)
    closed, swept = best_tree_bet(gain, costs, bets), sweep_tree(gain, costs, bets)
    rates = [gain.tokens(bet) / costs.at(bet) for bet in (closed.bet, swept.bet)]
    assert rates[0] == pytest.approx(rates[1], rel=1e-13)
    assert swept.tier == 3


def test_sweep_crosses_its_chunks() -> None:
    gain, costs, bets = TreeGain(2.0, 0.0), Costs(1e6, 1.0), BetRange(1, 200_000)
    assert sweep_tree(gain, costs, bets).bet == best_tree_bet(gain, costs, bets).bet > 65_536


@MANY
@given(st.floats(-690.0, 600.0))
def test_chain_root_solves_its_equation(log_delta: float) -> None:
    u = chain_root(log_delta)
    if log_delta < -30.0:
        # u**2 / 2 (1 + u / 3 + ...) = delta, so log u = (log 2 + log delta) / 2 - u / 6 to first order.
        assert math.log(u) == pytest.approx(0.5 * (math.log(2.0) + log_delta) - u / 6.0, rel=1e-12)
    elif log_delta > 30.0:
        assert u == pytest.approx(log_delta + (u + 1.0) * math.exp(-log_delta), rel=1e-12)
    else:
        delta = math.exp(log_delta)
        terms = math.fsum(u**k / math.factorial(k) for k in range(2, 160))
        assert terms == pytest.approx(delta, rel=1e-11)


@given(st.floats(1.5, 600.0))
@settings(max_examples=100, deadline=None)
def test_chain_root_agrees_with_lambert(k: float) -> None:
    reference = float(-lambertw(-math.exp(-k), -1).real - k)
    assert chain_root(math.log(k - 1.0)) == pytest.approx(reference, rel=1e-9, abs=1e-9)


@given(st.floats(-600.0, 700.0))
@settings(max_examples=100, deadline=None)
def test_log_lambert_agrees_with_lambert(log_y: float) -> None:
    assert lambert_w0_log(log_y) == pytest.approx(
        math.log(float(lambertw(math.exp(log_y)).real)), abs=1e-12, rel=1e-12
    )


@pytest.mark.parametrize("log_y", [1e4, 1e17, -1e5])
def test_log_lambert_beyond_doubles(log_y: float) -> None:
    v = lambert_w0_log(log_y)
    assert math.exp(v) + v == pytest.approx(log_y, rel=1e-14)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("mode", {"mode": "forest"}),
        ("alpha", {"alpha": 1.5}),
        ("alpha", {"alpha": -0.1}),
        ("alpha", {"alpha": math.nan}),
        ("alpha", {"alpha": "high"}),
        ("rho", {"rho": 2.0}),
        ("c_scale", {"c_scale": -1.0}),
        ("c_scale", {"c_scale": math.inf}),
        ("c_fixed", {"c_fixed": -1.0}),
        ("c_fixed", {"c_fixed": math.nan}),
        ("log_slope", {"mode": "tree", "log_slope": math.nan}),
        ("log_offset", {"mode": "tree", "log_offset": math.inf}),
        ("min_bet", {"min_bet": 9, "max_bet": 8}),
        ("min_bet", {"min_bet": 0}),
        ("min_bet", {"min_bet": 2.5}),
        ("max_bet", {"max_bet": 1}),
        ("max_bet", {"max_bet": True}),
    ],
)
def test_bad_arguments_are_named(field: str, options: dict) -> None:
    with pytest.raises(ConfigError) as caught:
        bod_optimal_bet(**options)
    assert caught.value.field == field
