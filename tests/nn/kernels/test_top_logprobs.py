"""A draft's candidates against float64 log-softmax: ranks, ties, noise, odd vocabularies."""

import pytest
import torch

from tests.nn.kernels.interpreter import DTYPES, random
from wager.nn.kernels.top_logprobs import RowSampling, top_logprobs, top_logprobs_reference


def heat(temperatures: list[float], device: torch.device) -> RowSampling:
    rows = len(temperatures)
    return RowSampling(
        torch.tensor(temperatures, dtype=torch.float32, device=device),
        torch.arange(rows, device=device) * 11,
        torch.arange(rows, device=device) + 100,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 5, 4096, 8200])
@pytest.mark.parametrize("ranks", [1, 8])
def test_ranks_and_logprobs(device: torch.device, dtype: torch.dtype, vocab: int, ranks: int) -> None:
    temperatures = [0.0, 0.8, 1.5]
    logits = random(3, vocab, dtype=dtype, device=device) * 3
    got = top_logprobs(logits, ranks, heat(temperatures, device))
    cpu = torch.device("cpu")
    want = top_logprobs_reference(logits.cpu(), ranks, heat(temperatures, cpu))
    assert got.token_ids.tolist() == want.token_ids.tolist()
    exact = top_logprobs_reference(logits.cpu().double(), ranks, heat(temperatures, cpu))
    assert float((got.logprobs.cpu().double() - exact.logprobs).abs().max()) <= 1e-5


def test_ties_go_to_the_lower_id(device: torch.device) -> None:
    logits = torch.zeros(1, 9000, device=device)
    logits[0, [8999, 4100, 3]] = 1.0
    got = top_logprobs(logits, 6, heat([0.0], device))
    assert got.token_ids.tolist() == [[3, 4100, 8999, 0, 1, 2]]
    assert bool((got.logprobs[0, :3] == got.logprobs[0, 0]).all())


def test_masked_scores_come_last_with_no_probability(device: torch.device) -> None:
    logits = torch.full((1, 50), -torch.inf, device=device)
    logits[0, [7, 30]] = torch.tensor([1.0, 2.0], device=device)
    got = top_logprobs(logits, 3, heat([0.0], device))
    assert got.token_ids.tolist() == [[30, 7, 0]]
    assert float(got.logprobs[0, :2].exp().sum()) == pytest.approx(1.0, abs=1e-6)
    assert got.logprobs[0, 2] == -torch.inf


def test_no_rows_and_too_many_ranks(device: torch.device) -> None:
    assert top_logprobs(torch.zeros(0, 10, device=device), 4, heat([], device)).token_ids.shape == (0, 4)
    with pytest.raises(AssertionError):
        top_logprobs(torch.zeros(1, 100, device=device), 65, heat([0.0], device))


@pytest.mark.gpu
def test_a_large_vocabulary_on_the_device(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("too large for the interpreter")
    temperatures = [0.0, 0.8] * 8
    logits = random(16, 151_936, dtype=torch.bfloat16, device=device) * 4
    got = top_logprobs(logits, 16, heat(temperatures, device))
    want = top_logprobs_reference(logits.cpu(), 16, heat(temperatures, torch.device("cpu")))
    assert got.token_ids.tolist() == want.token_ids.tolist()
    assert float((got.logprobs.cpu() - want.logprobs).abs().max()) <= 2e-5
