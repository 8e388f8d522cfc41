"""The narrow products against float64: every kind and configuration, odd sizes, splits, bias, gate."""

import pytest
import torch
from torch import Tensor

from tests.nn.kernels.interpreter import BOUNDS, DTYPES, error, random
from wager.nn.kernels.device import Launch
from wager.nn.kernels.gate import gate_reference
from wager.nn.kernels.matmul import product_reference, product_space
from wager.nn.kernels.norm import Norm, add_norm, add_norm_reference
from wager.nn.kernels.quant_matmul import (
    GATED_CONFIGS,
    MAX_TOKENS,
    QUANT_CONFIGS,
    QuantConfig,
    default_quant_config,
    dequantised_product,
    quant_gated_product,
    quant_gated_product_reference,
    quant_product,
    quant_product_reference,
    quant_split_product,
)
from wager.nn.kernels.quant_weights import BITS, GROUPS, QuantWeight, dequantised, quantise

KINDS = [(bits, group) for bits in BITS for group in GROUPS]
SMALL = [QuantConfig(16, 1), QuantConfig(16, 3), QuantConfig(32, 4)]
CASES = [
    ((1, 1, 1), SMALL[0]),
    ((1, 16, 128), SMALL[1]),
    ((3, 33, 200), SMALL[0]),
    ((17, 70, 257), SMALL[2]),
    ((33, 40, 512), SMALL[1]),
]


def narrow(num_out: int, inner: int, bits: int, group: int, device: torch.device) -> QuantWeight:
    return quantise(random(num_out, inner, dtype=torch.float32, device=device, seed=num_out), bits, group)


def exact(x: Tensor, weight: QuantWeight, bias: Tensor | None = None) -> Tensor:
    wide = dequantised(weight, torch.float64)
    return product_reference(x.double(), wide, None if bias is None else bias.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("bits", "group"), KINDS)
@pytest.mark.parametrize(("shape", "config"), CASES, ids=str)
def test_it_is_the_float64_product(
    device: torch.device, shape: tuple[int, int, int], config: QuantConfig, bits: int, group: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    tokens, num_out, inner = shape
    x, weight = random(tokens, inner, dtype=dtype, device=device), narrow(num_out, inner, bits, group, device)
    want = exact(x, weight)
    space = product_space(tokens, num_out, device, config.splits)
    for _ in range(2):  # the room is left as the next product needs it
        space.partial.fill_(torch.nan)
        assert error(quant_product(x, weight, None, config, space), want) <= BOUNDS[dtype]
        assert not space.counters.any()


@pytest.mark.parametrize(("bits", "group"), [(8, 128), (4, 64)])
@pytest.mark.parametrize("config", QUANT_CONFIGS, ids=str)
def test_the_listed_configurations(device: torch.device, config: QuantConfig, bits: int, group: int) -> None:
    x = random(5, 600, dtype=torch.bfloat16, device=device)
    weight = narrow(200, 600, bits, group, device)
    bias = random(200, dtype=torch.bfloat16, device=device, seed=2)
    got = quant_product(x, weight, bias, config)
    assert error(got, exact(x, weight, bias)) <= BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", BITS)
def test_every_value_in_every_place_is_exact(device: torch.device, bits: int, dtype: torch.dtype) -> None:
    """One input at a time, over all values a weight can have: nothing is lost on the way to the product."""
    most, group = 127 if bits == 8 else 8, GROUPS[0]
    inner = 2 * group * 8 // bits
    values = torch.arange(inner, device=device) % (2 * most) - most
    weight = torch.stack([values.roll(shift) for shift in range(0, 256, 16)]).float()
    weight[:, ::group] = -most
    packed = quantise(weight, bits, group)
    assert torch.equal(dequantised(packed), weight)
    for start in range(0, inner, 64):
        x = torch.zeros(64, inner, dtype=dtype, device=device)
        x[torch.arange(64), start + torch.arange(64)] = 1.0
        assert torch.equal(quant_product(x, packed, None, SMALL[1]).float(), weight.T[start : start + 64])


def test_rows_may_have_strides(device: torch.device) -> None:
    x = random(4, 400, dtype=torch.float32, device=device)[:, :300]
    whole = narrow(60, 300, 4, 64, device)
    part = whole._replace(packed=whole.packed[:, 16:56], scales=whole.scales[:, 16:56])
    assert error(quant_product(x, part, None, SMALL[1]), exact(x, whole)[:, 16:56]) <= 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", BITS)
def test_parts_are_summed_by_the_norm(device: torch.device, dtype: torch.dtype, bits: int) -> None:
    x = random(6, 700, dtype=dtype, device=device)
    weight = narrow(48, 700, bits, 64, device)
    residual = random(6, 48, dtype=dtype, device=device, seed=2)
    norm = Norm(random(48, dtype=dtype, device=device, seed=3), 1e-6)
    parts = quant_split_product(x, weight, QuantConfig(16, 4))
    assert parts.shape == (4, 6, 48) and parts.dtype == torch.float32
    assert error(parts.sum(dim=0), exact(x, weight)) <= 2e-6
    want = add_norm_reference(exact(x, weight), residual.double(), Norm(norm.weight.double(), norm.eps))
    assert error(add_norm(parts, residual, norm).normed, want.normed) <= 2 * BOUNDS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("bits", "group"), KINDS)
@pytest.mark.parametrize("shape", [(1, 16, 128), (5, 37, 200)], ids=str)
def test_the_gated_product(
    device: torch.device, shape: tuple[int, int, int], bits: int, group: int, dtype: torch.dtype
) -> None:
    tokens, middle, inner = shape
    x = random(tokens, inner, dtype=dtype, device=device)
    weight = narrow(2 * middle, inner, bits, group, device)
    want = gate_reference(exact(x, weight))
    for config in (SMALL[0], *GATED_CONFIGS):
        assert error(quant_gated_product(x, weight, config), want) <= BOUNDS[dtype]


@pytest.mark.parametrize("bits", BITS)
def test_many_tokens_are_the_librarys(
    device: torch.device, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wager.nn.kernels.quant_matmul._PANEL_BYTES", 1)  # panels of 128 rows
    x = random(MAX_TOKENS + 1, 200, dtype=torch.float16, device=device)
    weight = narrow(300, 200, bits, 64, device)
    bias = random(300, dtype=torch.float16, device=device, seed=2)
    got = quant_product(x, weight, bias)
    assert error(got, exact(x, weight, bias)) <= 2 * BOUNDS[torch.float16]
    plain = dequantised_product(x, weight)
    assert error(plain, quant_product_reference(x, weight)) <= BOUNDS[torch.float16]
    assert torch.equal(quant_split_product(x, weight, SMALL[1]), plain[None])
    gated = quant_gated_product(x, weight)
    assert error(gated, quant_gated_product_reference(x, weight)) <= 2 * BOUNDS[torch.float16]


def test_as_many_tokens_as_there_may_be(device: torch.device) -> None:
    x = random(MAX_TOKENS, 130, dtype=torch.bfloat16, device=device)
    weight = narrow(72, 130, 4, 64, device)
    want = exact(x, weight)
    assert error(quant_product(x, weight), want) <= BOUNDS[torch.bfloat16]
    assert error(quant_gated_product(x, weight), gate_reference(want)) <= BOUNDS[torch.bfloat16]


def test_nothing_in_nothing_out(device: torch.device) -> None:
    weight = narrow(8, 64, 8, 64, device)
    assert quant_product(torch.ones(0, 64, device=device), weight).shape == (0, 8)
    with pytest.raises(AssertionError):
        quant_product(torch.ones(1, 65, device=device), weight)
    assert default_quant_config(1, 1 << 17).splits == 1


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 16, 64, 128])
@pytest.mark.parametrize(("bits", "group"), KINDS)
def test_the_shapes_of_a_real_model_on_the_device(
    device: torch.device, bits: int, group: int, tokens: int
) -> None:
    if device.type != "cuda":
        pytest.skip("too large for the interpreter")
    pdl = torch.cuda.get_device_capability(device) >= (9, 0)
    for num_out, inner in ((4096, 12288), (6144, 4096)):
        x = random(tokens, inner, dtype=torch.bfloat16, device=device)
        weight = narrow(num_out, inner, bits, group, device)
        want = exact(x, weight)
        for config in QUANT_CONFIGS:
            space = product_space(tokens, num_out, device)
            runs = [quant_product(x, weight, None, config, space, Launch(pdl)) for _ in range(20)]
            assert error(runs[0], want) <= BOUNDS[torch.bfloat16]
            assert all(torch.equal(run, runs[0]) for run in runs), f"{config} depends on timing"
        for config in GATED_CONFIGS:
            got = quant_gated_product(x, weight, config, Launch(pdl))
            assert error(got, gate_reference(want)) <= BOUNDS[torch.bfloat16]
