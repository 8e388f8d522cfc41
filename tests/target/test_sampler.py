"""Which rows need no more than an argmax, and what comes of scores that are no numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.nn.noise import NoiseSource
from wager.records import SamplingParams
from wager.target.sampler import ChoiceRow, Sampler, _best, is_bare
from wager.tree import Tree

VOCAB = 9
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7]),
    min_tokens=st.sampled_from([0, 3]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -0.5]),
    logit_bias=st.sampled_from([None, {2: 4.0}]),
)


@settings(deadline=None, max_examples=80)
@given(PARAMS, st.integers(0, 6))
def test_bare_params_are_plain_at_every_length_and_choose_alike(params: SamplingParams, written: int) -> None:
    tokens = [1, 2, 3, *[4] * written]
    row = ChoiceRow(params, 5, tokens, 3, Tree.empty(), (8,))
    bare = is_bare(params)
    assert not bare or row.is_plain
    # Longest of all is behind every minimum: there nothing but the params themselves decides.
    assert bare or params.min_tokens or not row.is_plain
    logits = torch.linspace(-1.0, 1.0, VOCAB)[None]
    sampler = Sampler(NoiseSource(VOCAB))
    assert sampler.choose(logits, [row]) == sampler.choose(logits, [row._replace(bare=bare)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_best_token_is_the_lowest_of_a_tie_with_its_score(dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [3.0, 1.0, 3.0]], dtype=dtype)
    assert _best(logits) == ([1, 0], [2.0, 3.0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_row_is_told_from_the_others(bad: float) -> None:
    logits = torch.zeros(3, VOCAB)
    logits[1, 4] = bad
    logits[2, 6] = 1.0
    row = ChoiceRow(SamplingParams(), 5, [1], 1, Tree.empty())
    choices = Sampler(NoiseSource(VOCAB)).choose(logits, [row] * 3)
    assert choices.broken == [False, True, False]
    assert (choices.tokens[0], choices.tokens[2]) == (0, 6)
    assert Sampler(NoiseSource(VOCAB)).choose(logits[:1], [row]).broken == []


def test_logprobs_are_those_of_the_rows_that_asked() -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(0))
    plain = ChoiceRow(SamplingParams(), 5, [1], 1, Tree.empty())
    asking = plain._replace(params=SamplingParams(logprobs=2))
    sampler = Sampler(NoiseSource(VOCAB))
    assert sampler.choose(logits, [plain, plain]).logprobs == []
    silent, told = sampler.choose(logits, [plain, asking]).logprobs
    assert silent is None
    assert told is not None and told.token_ids == logits[1].topk(2).indices.tolist()
