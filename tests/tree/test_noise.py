"""The noise: pinned values, a second reckoning in wrapping int64, and its statistics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from wager.tree import derive_seed, gumbel, noise_bits, target_choice

WORD = 0xFFFFFFFF

GOLDEN_ZERO = [49623764, 3460934776, 1386516839, 2047962415]
GOLDEN_SEED = [1358250758, 3102719722, 3954717910, 1180102884]
GOLDEN_GUMBEL = [-1.49531229032527, 1.5329157556855915, -0.12279198955679758]
GOLDEN_DERIVED = [42, 13679457532755275413, 2949826092126892291]


def _wrapping_mix(words: np.ndarray) -> np.ndarray:
    """The recipe on int64 that overflows and is masked, as a device without unsigned words does it."""
    words = words & WORD
    words = ((words ^ (words >> 16)) * np.int64(0x85EBCA6B)) & WORD
    words = ((words ^ (words >> 13)) * np.int64(0xC2B2AE35)) & WORD
    return words ^ (words >> 16)


def _wrapping_bits(seed: int, positions: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    low, high = np.array([seed & WORD]), np.array([seed >> 32 & WORD])
    first = _wrapping_mix(_wrapping_mix(low + 0x9E3779B9) ^ high)
    second = _wrapping_mix(_wrapping_mix(high + 0x7F4A7C15) ^ low)
    k1 = _wrapping_mix(first + positions * np.int64(0x9E3779B1))[:, None]
    k2 = _wrapping_mix(second ^ (positions * np.int64(0x85EBCA77)))[:, None]
    return _wrapping_mix(_wrapping_mix(tokens * np.int64(0xC2B2AE3D) + k1) ^ k2)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 5))
def test_wrapping_int64_gives_the_same_bits(seed: int, start: int) -> None:
    positions, tokens = np.arange(start, start + 4), np.array([0, 1, 77, 151_935, 2**31 - 1])
    assert np.array_equal(noise_bits(seed, positions, tokens), _wrapping_bits(seed, positions, tokens))


def test_golden_values() -> None:
    tokens = np.array([0, 1, 2, 151_935])
    assert noise_bits(0, 0, tokens).tolist() == GOLDEN_ZERO
    assert noise_bits(0x0123456789ABCDEF, 4096, tokens).tolist() == GOLDEN_SEED
    assert gumbel(0, 0, 3) == pytest.approx(GOLDEN_GUMBEL, rel=1e-13)
    assert [derive_seed(42, i) for i in range(3)] == GOLDEN_DERIVED


def test_shapes_and_purity() -> None:
    positions = np.array([[3, 4], [5, 6]])
    block = gumbel(9, positions, 11)
    assert block.shape == (2, 2, 11) and block.dtype == np.float64
    assert np.array_equal(block[1, 0], gumbel(9, 5, 11))
    # A wider vocabulary extends the noise and leaves what was there.
    assert np.array_equal(gumbel(9, 5, 30)[:11], gumbel(9, 5, 11))


def test_noise_is_finite_at_the_ends_of_the_range() -> None:
    ends = (np.array([0, WORD], np.uint32) + 0.5) / 2.0**32
    assert np.isfinite(-np.log(-np.log(ends))).all()
    assert np.isfinite(gumbel(1, np.arange(50), 4096)).all()


def test_seed_is_taken_modulo_two_to_the_64() -> None:
    assert np.array_equal(gumbel(-1, 3, 5), gumbel(2**64 - 1, 3, 5))
    assert derive_seed(-1, 0) == 2**64 - 1


@pytest.mark.parametrize("seed", [0, 1, 2**32, 0xDEADBEEFCAFEF00D])
def test_words_are_uniform_along_tokens_and_positions(seed: int) -> None:
    for bits in (
        noise_bits(seed, 17, np.arange(40_000)),
        noise_bits(seed, np.arange(40_000), np.array([17])),
    ):
        assert stats.kstest((bits.ravel() + 0.5) / 2.0**32, "uniform").pvalue > 1e-3
        for byte in range(4):
            counts = np.bincount(bits.ravel() >> np.uint32(8 * byte) & np.uint32(255), minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("lag", [1, 2, 3, 16, 256])
def test_neighbours_are_uncorrelated(lag: int) -> None:
    here = noise_bits(5, 100, np.arange(40_000)).astype(float)
    others = {
        "position": noise_bits(5, 100 + lag, np.arange(40_000)),
        "seed": noise_bits(5 + lag, 100, np.arange(40_000)),
        "high seed": noise_bits(5 + (lag << 32), 100, np.arange(40_000)),
        "token": noise_bits(5, 100, np.arange(lag, 40_000 + lag)),
        "diagonal": noise_bits(5, 100 + lag, np.arange(lag, 40_000 + lag)),
        "choice": noise_bits(derive_seed(5, lag), 100, np.arange(40_000)),
    }
    for name, other in others.items():
        # Four and a half standard errors of a correlation that is truly zero.
        assert abs(np.corrcoef(here, other.astype(float))[0, 1]) < 4.5 / 200, name


def test_choices_follow_the_softmax() -> None:
    logits, temperature = np.array([2.0, 1.0, 0.5, -1.0, -2.5, 0.0]), 0.8
    choices = target_choice(logits, temperature, gumbel(2024, np.arange(60_000), 6))
    probs = np.exp(logits / temperature)
    expected = probs / probs.sum() * choices.size
    assert stats.chisquare(np.bincount(choices, minlength=6), expected).pvalue > 1e-3


def test_consecutive_choices_are_independent() -> None:
    choices = target_choice(np.zeros(4), 1.0, gumbel(7, np.arange(40_000), 4))
    table = np.zeros((4, 4))
    np.add.at(table, (choices[:-1], choices[1:]), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_choices_of_one_request_have_seeds_of_their_own() -> None:
    seeds = [derive_seed(seed, index) for seed in range(50) for index in range(50)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)
