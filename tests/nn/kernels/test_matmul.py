"""The small product against float64: every configuration, odd sizes, splits, bias, gate, poisoned room."""

import pytest
import torch

from tests.nn.kernels.interpreter import BOUNDS, DTYPES, error, random
from wager.nn.kernels.gate import gate_reference
from wager.nn.kernels.matmul import (
    CONFIGS,
    ProductConfig,
    gated_product,
    product,
    product_reference,
    product_space,
    split_product,
)
from wager.nn.kernels.norm import Norm, add_norm, add_norm_reference

SMALL = [ProductConfig(16, 16, 1), ProductConfig(16, 32, 3), ProductConfig(32, 16, 4)]
SHAPES = [(1, 1, 1), (1, 16, 16), (3, 33, 50), (17, 70, 129), (64, 40, 65)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("config", SMALL, ids=str)
def test_it_is_the_float64_product(
    device: torch.device, shape: tuple[int, int, int], config: ProductConfig, dtype: torch.dtype
) -> None:
    tokens, num_out, inner = shape
    x, weight = (random(n, inner, dtype=dtype, device=device, seed=n) for n in (tokens, num_out))
    want = product_reference(x.double(), weight.double())
    space = product_space(tokens, num_out, device, config.splits)
    for _ in range(2):  # the room is left as the next product needs it
        space.partial.fill_(torch.nan)
        assert error(product(x, weight, None, config, space), want) <= BOUNDS[dtype]
        assert not space.counters.any()


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_listed_configurations(device: torch.device, config: ProductConfig) -> None:
    x = random(5, 600, dtype=torch.bfloat16, device=device)
    weight = random(300, 600, dtype=torch.bfloat16, device=device, seed=1)
    bias = random(300, dtype=torch.bfloat16, device=device, seed=2)
    want = product_reference(x.double(), weight.double(), bias.double())
    assert error(product(x, weight, bias, config), want) <= BOUNDS[torch.bfloat16]


def test_rows_may_have_strides(device: torch.device) -> None:
    x = random(4, 90, dtype=torch.float32, device=device)[:, :64]
    weight = random(40, 100, dtype=torch.float32, device=device, seed=1)[:, 10:74]
    assert error(product(x, weight, None, SMALL[1]), product_reference(x.double(), weight.double())) <= 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_are_summed_by_the_norm(device: torch.device, dtype: torch.dtype) -> None:
    x = random(6, 96, dtype=dtype, device=device)
    weight = random(48, 96, dtype=dtype, device=device, seed=1)
    residual = random(6, 48, dtype=dtype, device=device, seed=2)
    norm = Norm(random(48, dtype=dtype, device=device, seed=3), 1e-6)
    parts = split_product(x, weight, ProductConfig(16, 16, 4))
    assert parts.shape == (4, 6, 48) and parts.dtype == torch.float32
    exact = product_reference(x.double(), weight.double())
    assert error(parts.sum(dim=0), exact) <= 2e-6
    want = add_norm_reference(exact, residual.double(), Norm(norm.weight.double(), norm.eps))
    assert error(add_norm(parts, residual, norm).normed, want.normed) <= 2 * BOUNDS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 16, 16), (5, 37, 50)], ids=str)
def test_the_gated_product(device: torch.device, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    tokens, middle, inner = shape
    x = random(tokens, inner, dtype=dtype, device=device)
    weight = random(2 * middle, inner, dtype=dtype, device=device, seed=1)
    want = gate_reference(product_reference(x.double(), weight.double()))
    assert error(gated_product(x, weight, SMALL[0]), want) <= BOUNDS[dtype]


def test_nothing_in_nothing_out(device: torch.device) -> None:
    weight = torch.ones(8, 4, device=device)
    assert product(torch.ones(0, 4, device=device), weight).shape == (0, 8)
    with pytest.raises(AssertionError):
        product(torch.ones(1, 5, device=device), weight)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 16, 64, 128])
def test_the_shapes_of_a_real_model_on_the_device(device: torch.device, tokens: int) -> None:
    if device.type != "cuda":
        pytest.skip("too large for the interpreter")
    for num_out, inner in ((4096, 12288), (6144, 4096)):
        x = random(tokens, inner, dtype=torch.bfloat16, device=device)
        weight = random(num_out, inner, dtype=torch.bfloat16, device=device, seed=1)
        want = product_reference(x.double(), weight.double())
        for config in CONFIGS:
            space = product_space(tokens, num_out, device)
            runs = [product(x, weight, None, config, space) for _ in range(20)]
            assert error(runs[0], want) <= BOUNDS[torch.bfloat16]
            assert all(torch.equal(run, runs[0]) for run in runs), f"{config} depends on timing"
