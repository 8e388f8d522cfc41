"""Candidates from scores: noise where a row samples, the right ranks, the right log-probabilities."""

import pytest
import torch

from wager.draft.scores import Span, best, noised, to_host
from wager.nn.noise import NoiseSource


@pytest.mark.parametrize("vocab_size", [5, 97, 1024, 1000, 8192])
@pytest.mark.parametrize("ranks", [1, 8])
def test_the_best_ranks_are_those_of_a_full_sort(vocab_size: int, ranks: int) -> None:
    scores = torch.randn(9, vocab_size) * 30
    host = to_host(best(scores.clone(), ranks))
    want = scores.log_softmax(dim=1).sort(dim=1, descending=True)
    count = min(ranks, vocab_size)
    assert host.token_ids.shape == (9, count)
    assert torch.equal(torch.from_numpy(host.token_ids), want.indices[:, :count])
    assert torch.allclose(torch.from_numpy(host.logprobs), want.values[:, :count], atol=1e-5)


@pytest.mark.parametrize("temperatures", [(0.0,), (0.7,), (0.0, 0.7, 1.3), (0.5, 1.0), (0.0, 0.0)])
def test_only_sampling_rows_are_scaled_and_noised(temperatures: tuple[float, ...]) -> None:
    noise = NoiseSource(64, dtype=torch.float64)
    spans = [Span(value, 11 + order, 5 * order, order + 1) for order, value in enumerate(temperatures)]
    logits = torch.randn(sum(span.num_rows for span in spans), 50, dtype=torch.float64)
    got, at = noised(logits.clone(), spans, noise), 0
    for span in spans:
        rows = logits[at : at + span.num_rows]
        if span.temperature:
            keys = [(span.seed, span.position + step) for step in range(span.num_rows)]
            rows = rows / span.temperature + noise.rows(keys)[:, :50]
        assert torch.equal(got[at : at + span.num_rows], rows)
        at += span.num_rows


def test_half_precision_is_widened_before_the_noise() -> None:
    scores = noised(torch.randn(2, 16).bfloat16(), [Span(0.9, 1, 3, 2)], NoiseSource(16))
    assert scores.dtype == torch.float32


def test_with_the_targets_scores_rank_zero_is_the_targets_draw() -> None:
    logits = torch.randn(6, 97) * 3
    noise = NoiseSource(97)
    target = [(logits[step] / 0.8 + noise.rows([(42, 10 + step)])[0]).argmax().item() for step in range(6)]
    host = to_host(best(noised(logits.clone(), [Span(0.8, 42, 10, 6)], NoiseSource(97)), 3))
    assert host.token_ids[:, 0].tolist() == target
