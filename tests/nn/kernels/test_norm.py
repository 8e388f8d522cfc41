"""Residual add and norm against float64, with poisoned outputs, strided rows and parts of a split product."""

import pytest
import torch

from tests.nn.kernels.interpreter import BOUNDS, DTYPES, error, framed, random
from wager.nn.kernels.device import Launch, prefetch_of
from wager.nn.kernels.norm import Norm, Normed, add_norm, add_norm_reference

SHAPES = [(1, 1), (1, 256), (3, 257), (5, 1000), (2, 4096)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_residual", [True, False])
def test_it_is_the_float64_norm(
    device: torch.device, shape: tuple[int, int], dtype: torch.dtype, has_residual: bool
) -> None:
    addend = random(*shape, dtype=dtype, device=device)
    residual = random(*shape, dtype=dtype, device=device, seed=1) * 3 if has_residual else None
    norm = Norm(random(shape[1], dtype=dtype, device=device, seed=2), 1e-6)
    exact = Norm(norm.weight.double(), norm.eps)
    want = add_norm_reference(addend.double(), None if residual is None else residual.double(), exact)
    with (
        framed(*shape, dtype=dtype, device=device) as stream,
        framed(*shape, dtype=dtype, device=device) as normed,
    ):
        got = add_norm(addend, residual, norm, Normed(stream, normed))
        assert error(got.residual, want.residual) <= BOUNDS[dtype]
        assert error(got.normed, want.normed) <= 2 * BOUNDS[dtype]  # of the rounded stream, rounded again


@pytest.mark.parametrize("num_parts", [1, 3])
def test_parts_are_summed(device: torch.device, num_parts: int) -> None:
    parts = random(num_parts, 4, 96, dtype=torch.float32, device=device)
    residual = random(4, 96, dtype=torch.bfloat16, device=device, seed=1)
    norm = Norm(random(96, dtype=torch.bfloat16, device=device, seed=2), 1e-5)
    want = add_norm_reference(parts.double(), residual.double(), Norm(norm.weight.double(), norm.eps))
    got = add_norm(parts, residual, norm)
    assert got.residual.dtype == got.normed.dtype == torch.bfloat16
    assert error(got.residual, want.residual) <= BOUNDS[torch.bfloat16]
    assert error(got.normed, want.normed) <= 2 * BOUNDS[torch.bfloat16]


def test_the_stream_may_be_updated_in_place(device: torch.device) -> None:
    addend, stream = (random(3, 64, dtype=torch.float32, device=device, seed=seed) for seed in (0, 1))
    norm = Norm(torch.ones(64, device=device), 1e-6)
    want = add_norm_reference(addend, stream.clone(), norm)
    normed = torch.full_like(stream, torch.nan)
    add_norm(addend, stream, norm, Normed(stream, normed))
    assert error(stream, want.residual) <= 1e-6 and error(normed, want.normed) <= 2e-6


def test_the_plain_reference_is_what_the_layers_do(device: torch.device) -> None:
    from wager.nn.layers.norm import RmsNorm

    x, weight = random(3, 64, dtype=torch.float32, device=device), torch.rand(64, device=device)
    want = RmsNorm(weight, 1e-6)(x)
    assert error(add_norm_reference(x, None, Norm(weight, 1e-6)).normed, want) <= 1e-6


def test_zeros_stay_zeros_and_nothing_is_nothing(device: torch.device) -> None:
    norm = Norm(torch.ones(48, device=device), 1e-6)
    got = add_norm(torch.zeros(2, 48, device=device), torch.zeros(2, 48, device=device), norm)
    assert not got.residual.any() and not got.normed.any()
    empty = add_norm(torch.zeros(0, 48, device=device), torch.zeros(0, 48, device=device), norm)
    assert empty.normed.shape == empty.residual.shape == (0, 48)


def test_fetching_ahead_changes_nothing(device: torch.device) -> None:
    x, residual = (random(3, 96, dtype=torch.float32, device=device, seed=seed) for seed in (0, 1))
    norm, weight = Norm(torch.ones(96, device=device), 1e-6), torch.ones(64, 96, device=device)
    want = add_norm(x, residual, norm)
    for num_bytes in (0, 1000, 1 << 30):
        got = add_norm(
            x, residual, norm, None, Launch(prefetch=prefetch_of(weight, num_bytes), prefetch_programs=5)
        )
        assert torch.equal(got.residual, want.residual) and torch.equal(got.normed, want.normed)
    whole = prefetch_of(weight, 1 << 30, pieces=3)
    assert whole.num_rows * whole.num_pieces * whole.piece == weight.nbytes
    assert prefetch_of(weight, 64 * 70).piece == 64 and prefetch_of(weight, 64 * 70).step == 96 * 4


def test_shapes_that_do_not_fit_are_refused(device: torch.device) -> None:
    x = torch.zeros(2, 48, device=device)
    with pytest.raises(AssertionError):
        add_norm(x, x, Norm(torch.ones(47, device=device), 1e-6))
    with pytest.raises(AssertionError):
        add_norm(x, x[:1], Norm(torch.ones(48, device=device), 1e-6))
