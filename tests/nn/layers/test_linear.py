"""Projections in every layout give the same product; the choice is visible and can be overridden."""

import pytest
import torch

from wager.errors import ConfigError
from wager.nn.layers.linear import (
    LAYOUT_NAMES,
    Layout,
    LayoutChoice,
    Projection,
    available_layouts,
    choose_layout,
)


@pytest.mark.parametrize("tokens", [0, 1, 2, 5, 17])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("way", LAYOUT_NAMES)
def test_every_layout_is_the_same_map(way: str, bias: bool, tokens: int) -> None:
    weight, offset = torch.randn(24, 40), torch.randn(24) if bias else None
    if way not in available_layouts(weight):
        pytest.skip(f"this build has no {way} layout")
    x, residual = torch.randn(tokens, 40), torch.randn(tokens, 24)
    want = x.double() @ weight.double().T + (0 if offset is None else offset.double())
    projection = Projection(weight, offset, LayoutChoice(way, way))
    before = residual.clone()
    torch.testing.assert_close(projection(x).double(), want, rtol=0, atol=1e-4)
    torch.testing.assert_close(projection.add_to(residual, x).double(), want + residual, rtol=0, atol=1e-4)
    assert torch.equal(residual, before)


def test_one_and_many_may_differ() -> None:
    weight = torch.randn(8, 8)
    projection = Projection(weight, None, LayoutChoice("out_in", "in_out"))
    for tokens in (1, 3):
        x = torch.randn(tokens, 8)
        torch.testing.assert_close(projection(x), x @ weight.T)


def test_the_probe_names_a_layout_for_every_shape() -> None:
    weights = [torch.randn(32, 16), torch.randn(16, 48), torch.randn(16, 48)]
    layout = choose_layout(weights)
    assert set(layout.choices) == {(32, 16), (16, 48)}
    assert all(c.one in LAYOUT_NAMES and c.many in LAYOUT_NAMES for c in layout.choices.values())
    assert layout.source.startswith("probed") and "32x16" in str(layout)


def test_large_models_hold_each_weight_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wager.nn.layers.linear.TWO_COPIES_MAX_BYTES", 0)
    layout = choose_layout([torch.randn(512, 256)])
    choice = layout.of((512, 256))
    assert choice.one == choice.many


def test_a_request_overrides_the_probe() -> None:
    layout = choose_layout([torch.randn(4, 6)], "in_out")
    assert layout.of((4, 6)) == LayoutChoice("in_out", "in_out") and layout.source == "requested"
    assert Layout().of((1, 2)) == LayoutChoice("out_in", "out_in")


def test_unknown_and_unavailable_layouts_are_refused() -> None:
    with pytest.raises(ConfigError, match="layout = 'sideways'"):
        choose_layout([torch.randn(4, 4)], "sideways")
    with pytest.raises(ConfigError, match="float64"):
        choose_layout([torch.randn(4, 4, dtype=torch.float64)], "packed")
