"""SiLU(gate) * up against float64, with poisoned and framed outputs."""

import pytest
import torch

from tests.nn.kernels.interpreter import BOUNDS, DTYPES, error, framed, random
from wager.nn.kernels.device import Launch, prefetch_of
from wager.nn.kernels.gate import gate, gate_reference


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 1024), (3, 1025), (7, 300)])
def test_it_is_the_float64_gate(device: torch.device, shape: tuple[int, int], dtype: torch.dtype) -> None:
    tokens, middle = shape
    both = random(tokens, 2 * middle, dtype=dtype, device=device) * 4
    want = gate_reference(both.double())
    with framed(*shape, dtype=dtype, device=device) as out:
        gate(both, out)
        assert error(out, want) <= BOUNDS[dtype]


def test_extremes_do_not_overflow(device: torch.device) -> None:
    both = torch.tensor([[-200.0, 200.0, 0.0, 2.0, 3.0, 4.0]], device=device)
    assert gate(both).tolist() == [[0.0, 600.0, 0.0]]


def test_rows_may_have_a_stride_and_may_be_none(device: torch.device) -> None:
    wide = random(4, 100, dtype=torch.float32, device=device)
    assert error(gate(wide[:, :60]), gate_reference(wide[:, :60].double())) <= 1e-6
    assert gate(wide[:0]).shape == (0, 50)


def test_fetching_ahead_changes_nothing(device: torch.device) -> None:
    both = random(3, 4000, dtype=torch.float32, device=device)
    prefetch = prefetch_of(torch.ones(64, 96, device=device), 4096)
    assert torch.equal(gate(both, None, Launch(prefetch=prefetch, prefetch_programs=5)), gate(both))


def test_halves_must_be_equal(device: torch.device) -> None:
    with pytest.raises(AssertionError):
        gate(torch.zeros(2, 5, device=device))
