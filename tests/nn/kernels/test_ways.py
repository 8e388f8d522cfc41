"""Which way a product is taken: what was measured is given back, and everything else fits the device."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nn.kernels import ways as _ways
from wager.nn.kernels.device import Machine
from wager.nn.kernels.matmul import ProductConfig
from wager.nn.kernels.ways import FEW, LIBRARY, MANY, Role, Ways, choose_products, choose_ways
from wager.nn.layers.decoder_layer import Linear

assert _ways

H200 = Machine(132, True, True)
MEASURED = {
    (6144, 4096, Role.SUMMED): {16: (64, 128, 4, 4, 3), 64: None},
    (4096, 4096, Role.SUMMED): {16: (64, 128, 4, 4, 4), 64: (64, 128, 4, 4, 3)},
    (24_576, 4096, Role.GATED): {4: None, 16: (32, 128, 1, 4, 3), 64: (64, 64, 1, 4, 4)},
    (4096, 12_288, Role.SUMMED): {16: (64, 128, 4, 4, 4), 64: (128, 128, 4, 8, 4)},
    (151_936, 4096, Role.WHOLE): {32: (64, 128, 1, 4, 3), 64: (128, 64, 1, 4, 3)},
}


@pytest.mark.parametrize(("shape", "found"), MEASURED.items(), ids=str)
def test_the_measured_shapes(shape: tuple[int, int, Role], found: dict[int, tuple[int, ...] | None]) -> None:
    ways = choose_products(*shape, H200.processors)
    for tokens, config in found.items():
        chosen = ways.config(tokens)
        assert (None if chosen is None else tuple(chosen[:5])) == config
    assert ways.config(MANY + 1) is None


@settings(deadline=None, max_examples=100)
@given(
    st.integers(2, 200_000), st.integers(1, 30_000), st.sampled_from(Role), st.integers(1, 200),
    st.sampled_from([1, FEW, MANY]),
)  # fmt: skip
def test_programs_fit_at_once_or_fill_their_rounds(
    num_out: int, inner: int, role: Role, processors: int, tokens: int
) -> None:
    config = choose_products(num_out, inner, role, processors).config(tokens)
    if config is None:
        return
    rows = num_out // 2 if role is Role.GATED else num_out
    programs = -(-rows // config.rows) * config.splits
    if config.splits > 1:
        assert role is Role.SUMMED and programs <= 3 * processors
        assert config.splits * config.inner <= inner
    elif role is not Role.SUMMED and tokens <= FEW:
        assert programs > 0.8 * 3 * processors


@pytest.mark.parametrize(
    ("linear", "machine"),
    [
        (Linear(torch.zeros(64, 64)), H200),
        (Linear(torch.zeros(64, 64, dtype=torch.bfloat16), torch.zeros(64)), H200),
        (Linear(torch.zeros(64, 64, dtype=torch.bfloat16)), H200._replace(is_roomy=False)),
    ],
    ids=["four bytes", "bias", "little room"],
)
def test_what_is_the_librarys(linear: Linear, machine: Machine) -> None:
    assert all(choose_ways(linear, role, machine) is LIBRARY for role in Role)


def test_ways_by_tokens() -> None:
    config = ProductConfig()
    ways = Ways(((4, None), (16, config)))
    assert [ways.config(count) for count in (1, 4, 5, 16, 17)] == [None, None, config, config, None]
