"""Which way a product is taken: what was measured is given back, and everything else fits the device."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nn.kernels import interpreter as _interpreter
from wager.nn.kernels.device import DeviceInfo
from wager.nn.kernels.matmul import ProductConfig
from wager.nn.kernels.product_plan import (
    CUBLAS_ONLY,
    FEW,
    MANY,
    ProductPlan,
    ProductRole,
    plan_products,
    plan_shape,
)
from wager.nn.layers.decoder_layer import Linear

assert _interpreter

H200 = DeviceInfo(132, True, True)
MEASURED = {
    (6144, 4096, ProductRole.SUMMED): {16: (64, 128, 4, 4, 3), 64: None},
    (4096, 4096, ProductRole.SUMMED): {16: (64, 128, 4, 4, 4), 64: (64, 128, 4, 4, 3)},
    (24_576, 4096, ProductRole.GATED): {4: None, 16: (32, 128, 1, 4, 3), 64: (64, 64, 1, 4, 4)},
    (4096, 12_288, ProductRole.SUMMED): {16: (64, 128, 4, 4, 4), 64: (128, 128, 4, 8, 4)},
    (151_936, 4096, ProductRole.WHOLE): {32: (64, 128, 1, 4, 3), 64: (128, 64, 1, 4, 3)},
}


@pytest.mark.parametrize(("shape", "found"), MEASURED.items(), ids=str)
def test_the_measured_shapes(
    shape: tuple[int, int, ProductRole], found: dict[int, tuple[int, ...] | None]
) -> None:
    ways = plan_shape(*shape, H200.num_sms)
    for tokens, config in found.items():
        chosen = ways.config(tokens)
        assert (None if chosen is None else tuple(chosen[:5])) == config
    assert ways.config(MANY + 1) is None


@settings(deadline=None, max_examples=100)
@given(
    st.integers(2, 200_000), st.integers(1, 30_000), st.sampled_from(ProductRole), st.integers(1, 200),
    st.sampled_from([1, FEW, MANY]),
)  # fmt: skip
def test_programs_fit_at_once_or_fill_their_rounds(
    num_out: int, inner: int, role: ProductRole, num_sms: int, tokens: int
) -> None:
    config = plan_shape(num_out, inner, role, num_sms).config(tokens)
    if config is None:
        return
    rows = num_out // 2 if role is ProductRole.GATED else num_out
    programs = -(-rows // config.rows) * config.splits
    if config.splits > 1:
        assert role is ProductRole.SUMMED and programs <= 3 * num_sms
        assert config.splits * config.inner <= inner
    elif role is not ProductRole.SUMMED and tokens <= FEW:
        assert programs > 0.8 * 3 * num_sms


@pytest.mark.parametrize(
    ("linear", "device_info"),
    [
        (Linear(torch.zeros(64, 64)), H200),
        (Linear(torch.zeros(64, 64, dtype=torch.bfloat16), torch.zeros(64)), H200),
        (Linear(torch.zeros(64, 64, dtype=torch.bfloat16)), H200._replace(has_large_shared_memory=False)),
    ],
    ids=["four bytes", "bias", "little room"],
)
def test_what_is_the_librarys(linear: Linear, device_info: DeviceInfo) -> None:
    assert all(plan_products(linear, role, device_info) is CUBLAS_ONLY for role in ProductRole)


def test_ways_by_tokens() -> None:
    config = ProductConfig()
    ways = ProductPlan(((4, None), (16, config)))
    assert [ways.config(count) for count in (1, 4, 5, 16, 17)] == [None, None, config, config, None]
