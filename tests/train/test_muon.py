"""The stacked optimiser does what torch's own does, matrix by matrix."""

import pytest
import torch

from wager.train.muon import StackedMuon, orthogonalised

SHAPES = [(8, 8), (16, 8), (8, 16), (8, 8), (16, 8)]


def matrices(seed: int) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def test_a_few_updates_are_those_of_torch() -> None:
    ours, theirs = matrices(1), matrices(1)
    mine = StackedMuon(ours, lr=0.01, weight_decay=0.1)
    reference = torch.optim.Muon(theirs, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for update in range(4):
        grads = matrices(10 + update)
        for optimizer, weights in ((mine, ours), (reference, theirs)):
            for weight, grad in zip(weights, grads, strict=True):
                weight.grad = grad.detach().clone()
            optimizer.step()
    for a, b, start in zip(ours, theirs, matrices(1), strict=True):
        assert not torch.equal(a, start)
        torch.testing.assert_close(a, b, rtol=0, atol=2e-3)  # Newton-Schulz runs in bfloat16


def test_a_weight_without_gradient_stays() -> None:
    weights = matrices(2)
    before = [weight.detach().clone() for weight in weights]
    weights[0].grad = torch.ones_like(weights[0])
    StackedMuon(weights, lr=0.1).step()
    assert not torch.equal(weights[0], before[0])
    assert all(torch.equal(a, b) for a, b in zip(weights[1:], before[1:], strict=True))


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 24, 8), (2, 8, 24)])
def test_singular_values_come_near_one(shape: tuple[int, ...]) -> None:
    x = orthogonalised(torch.randn(shape, generator=torch.Generator().manual_seed(3))).float()
    values = torch.linalg.svdvals(x)
    assert values.max() < 1.4 and values.min() > 0.3


def test_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="matrices"):
        StackedMuon([torch.nn.Parameter(torch.ones(3))], lr=0.1)
