"""Noise rows against the numpy recipe: the same bits, whoever asks for what together."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.nn.noise import NoiseSource, device_words, position_keys
from wager.tree.noise import gumbel, noise_bits, position_key

SEEDS = st.integers(-(2**63), 2**66)
PLACES = st.integers(0, 2**21)
KEYS = st.lists(st.tuples(SEEDS, PLACES), min_size=1, max_size=40)


@given(KEYS)
@settings(deadline=None, max_examples=60)
def test_position_keys_are_the_recipes(keys: list[tuple[int, int]]) -> None:
    want = np.array([position_key(seed, place) for seed, place in keys], np.uint32)
    assert np.array_equal(position_keys(keys), want)


@given(SEEDS, PLACES, st.sampled_from([1, 97, 8192, 20_001]))
@settings(deadline=None, max_examples=40)
def test_device_words_are_bit_equal(seed: int, place: int, vocab_size: int) -> None:
    keys = torch.from_numpy(position_keys([(seed, place)]).astype(np.int64))
    want = noise_bits(seed, place, np.arange(vocab_size)).astype(np.int64)
    assert np.array_equal(device_words(keys, vocab_size)[0].numpy(), want)


@pytest.mark.parametrize("vocab_size", [1, 97, 16_384, 40_003])
def test_rows_are_the_recipes_noise(vocab_size: int) -> None:
    keys = [(3, 0), (3, 1), (2**63 + 9, 70_000), (-1, 5)]
    strict, plain = NoiseSource(vocab_size, dtype=torch.float64), NoiseSource(vocab_size)
    want = np.stack([gumbel(seed, place, vocab_size) for seed, place in keys])
    assert np.abs(strict.rows(keys).numpy() - want).max() < 1e-12
    assert plain.rows(keys).dtype == torch.float32
    assert np.allclose(plain.rows(keys).numpy(), want, rtol=2e-7, atol=1e-7)


@given(st.lists(KEYS, min_size=1, max_size=6), st.integers(0, 12))
@settings(deadline=None, max_examples=40)
def test_a_row_does_not_depend_on_its_company(calls: list[list[tuple[int, int]]], capacity: int) -> None:
    source = NoiseSource(131, capacity=capacity)
    for keys in calls:
        alone = torch.cat([NoiseSource(131, capacity=1).rows([key]) for key in keys])
        assert torch.equal(source.rows(keys), alone)


def test_remembered_rows_are_not_the_callers() -> None:
    source = NoiseSource(16)
    first = source.rows([(1, 2), (1, 2)])
    kept = first.clone()
    first.zero_()
    assert torch.equal(source.rows([(1, 2), (1, 2)]), kept)
    assert source.rows([]).shape == (0, 16)


@pytest.mark.gpu
def test_a_device_agrees_to_the_last_digit_but_one() -> None:
    keys = [(5, place) for place in range(40)]
    on_device = NoiseSource(8192, "cuda").rows(keys).cpu()
    assert torch.allclose(on_device, NoiseSource(8192).rows(keys), rtol=2e-7, atol=1e-7)
