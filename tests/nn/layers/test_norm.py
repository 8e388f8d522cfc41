"""The norm's short spelling against the textbook one, small values and per-head weights included."""

import pytest
import torch

from wager.nn.layers.norm import RmsNorm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 100.0])
@pytest.mark.parametrize("shape", [(16,), (3, 16)])
def test_it_is_the_textbook_norm(shape: tuple[int, ...], scale: float, dtype: torch.dtype) -> None:
    weight = torch.randn(shape).to(dtype)
    x = (torch.randn(5, 3, 16) * scale).to(dtype)
    exact = x.double()
    want = weight.double() * exact / (exact.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
    before = x.clone()
    torch.testing.assert_close(RmsNorm(weight, 1e-6)(x).double(), want, rtol=tolerance, atol=tolerance)
    assert torch.equal(x, before)
