"""Choices and noise in native code, against numpy and the sampler's own filters."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wager.nn.native.choose import NativeChooser
from wager.nn.native.library import Library
from wager.nn.noise import NoiseSource
from wager.records import SamplingParams
from wager.target.sampler import ChoiceRow, Sampler
from wager.tree import Tree, gumbel

VOCAB = 1009
SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1e-3},
    {"temperature": 20.0},
    {"temperature": 0.6, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.999},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 5000},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.95},
    {"temperature": 1.3, "min_p": 0.05},
    {"temperature": 0.9, "top_p": 0.99, "min_p": 0.02, "top_k": 300},
]


def scores_of(rows: int, vocab: int, scale: float, seed: int) -> Tensor:
    return scale * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def by_torch(scores: Tensor, params: SamplingParams, seed: int, first: int) -> list[int]:
    """The choices of the sampler without native code, behind a chain of as many nodes as there are rows."""
    sampler = Sampler(NoiseSource(scores.shape[1]))
    row = ChoiceRow(params, seed, [0] * first, 1, Tree.chain([0] * (len(scores) - 1)))
    return sampler.choose(scores, [row]).tokens


@pytest.mark.parametrize("scale", [0.5, 4.0, 40.0])
@pytest.mark.parametrize("settings", SETTINGS)
def test_the_same_tokens_as_the_filters_of_the_sampler(
    library: Library, settings: dict[str, float], scale: float
) -> None:
    params, chooser = SamplingParams(**settings), NativeChooser(library)
    for seed in range(8):
        scores = scores_of(16, VOCAB, scale, seed)
        first = 5 + 100 * seed
        found = chooser(scores, params, seed, range(first, first + 16))
        assert found == by_torch(scores, params, seed, first)


def test_the_sampler_uses_it(library: Library) -> None:
    chooser = NativeChooser(library)
    native = Sampler(NoiseSource(VOCAB), native=lambda: chooser)
    row = ChoiceRow(SamplingParams(temperature=0.8, top_p=0.9), 7, [0] * 5, 1, Tree.chain([0, 0]))
    scores = scores_of(3, VOCAB, 4.0, 1)
    calls = list[int]()
    chooser.fits = lambda logits: not calls.append(1)  # type: ignore[method-assign, func-returns-value]
    assert native.choose(scores, [row]).tokens == by_torch(scores, row.params, 7, 5) and calls


def test_equal_scores_go_to_the_lowest_token(library: Library) -> None:
    chooser, flat = NativeChooser(library), torch.zeros(1, VOCAB)
    greedy, sampled = SamplingParams(temperature=0.0), SamplingParams(temperature=1.0)
    assert chooser(flat, greedy, 0, [3]) == [0]
    wanted = [int(gumbel(5, place, VOCAB).astype(np.float32).argmax()) for place in range(40)]
    assert chooser(flat.expand(40, -1).contiguous(), sampled, 5, range(40)) == wanted
    masked = torch.full((64, VOCAB), -torch.inf)
    masked[:, [17, 400]] = 1.0
    assert set(chooser(masked, greedy, 0, range(64))) == {17}
    assert set(chooser(masked, sampled, 1, range(64))) == {17, 400}


@given(
    vocab=st.integers(1, 200),
    temperature=st.sampled_from([0.3, 1.0, 4.0]),
    seed=st.integers(0, 2**63),
    position=st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=80)
def test_any_seed_and_position(
    library: Library, vocab: int, temperature: float, seed: int, position: int
) -> None:
    scores, params = scores_of(1, vocab, 2.0, vocab), SamplingParams(temperature=temperature)
    scaled = (scores / temperature).numpy()[0] + gumbel(seed, position, vocab).astype(np.float32)
    assert NativeChooser(library)(scores, params, seed, [position]) == [int(scaled.argmax())]
