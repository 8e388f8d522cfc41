"""Noise and ordering inside kernels, bit for bit what the host computes."""

import numpy as np
import pytest
import torch

from tests.nn.kernels.interpreter import random, tl, triton
from wager.nn.kernels.device import key_value, order_key
from wager.nn.kernels.noise import gumbel, position_words
from wager.nn.kernels.staging import signed_seed
from wager.nn.noise import NoiseSource

SEEDS = [0, 1, 123456789, 2**63 - 1, 2**63, 2**64 - 1, -5]
POSITIONS = [0, 1, 4095, 131_072, 2**31 + 7]


@triton.jit
def _fill(out, seeds, positions, vocab_size, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first, second = position_words(tl.load(seeds + row), tl.load(positions + row))
    tl.store(out + row * vocab_size + at, gumbel(first, second, at), mask=at < vocab_size)


@triton.jit
def _order(x, keys, back, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    key = order_key(tl.load(x + at))
    tl.store(keys + at, key.to(tl.int64))
    tl.store(back + at, key_value(key))


@pytest.mark.parametrize("vocab_size", [1, 1000, 5000])
def test_it_is_the_hosts_noise(device: torch.device, vocab_size: int) -> None:
    keys = [(seed, position) for seed in SEEDS for position in POSITIONS]
    want = NoiseSource(vocab_size, capacity=0).rows(keys)
    seeds = torch.tensor([signed_seed(seed) for seed, _ in keys], device=device)
    positions = torch.tensor([position for _, position in keys], device=device)
    got = torch.full((len(keys), vocab_size), torch.nan, device=device)
    _fill[(len(keys), triton.cdiv(vocab_size, 1024))](got, seeds, positions, vocab_size, BLOCK=1024)
    assert torch.equal(got.cpu(), want)


def test_keys_compare_as_scores_do(device: torch.device) -> None:
    special = [0.0, -0.0, torch.inf, -torch.inf, 1e-45, -1e-45, 1.0, -1.0, 3.4e38, -3.4e38]
    x = torch.cat((torch.tensor(special), random(1014, dtype=torch.float32, device=torch.device("cpu")))).to(
        device
    )
    keys, back = torch.zeros(1024, dtype=torch.int64, device=device), torch.full_like(x, torch.nan)
    _order[(1,)](x, keys, back, BLOCK=1024)
    assert torch.equal(back, x)
    pairs = np.sign(np.subtract.outer(keys.cpu().numpy(), keys.cpu().numpy()))
    values = x.cpu().double().numpy()
    assert np.array_equal(pairs > 0, np.greater.outer(values, values))
    assert np.array_equal(pairs == 0, np.equal.outer(values, values))
