"""A narrow weight behind the face of a matrix, and a network's weights made narrow as they are read."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.nn.kernels.interpreter import BOUNDS, error, random
from tests.nn.tiny import save_drafter, save_target
from wager.nn import kernels
from wager.nn.kernels.device import INTERPRETER_INFO
from wager.nn.kernels.gate import gate_reference
from wager.nn.kernels.matmul import product_reference
from wager.nn.kernels.passes import KernelLinear, kernel_linear
from wager.nn.kernels.product_plan import ProductRole
from wager.nn.kernels.quant_layers import HEAD_BITS, Quantisation, QuantLinear, linear_of, stacked
from wager.nn.kernels.quant_linear import QuantKernelLinear
from wager.nn.kernels.quant_matmul import MAX_TOKENS
from wager.nn.kernels.quant_weights import BITS, dequantised, quantise
from wager.nn.layers.decoder_layer import Linear
from wager.nn.models import load_target, tensors
from wager.nn.models.decoder import QuantDecoder
from wager.nn.models.dflash import QuantDFlash, context_projection, kernel_context, load_drafter
from wager.nn.models.tensors import read_layer
from wager.nn.native.loader import PassOptions

DTYPE = torch.float32


def linear(num_out: int, inner: int, device: torch.device, has_bias: bool) -> Linear:
    bias = random(num_out, dtype=DTYPE, device=device, seed=2) if has_bias else None
    return Linear(random(num_out, inner, dtype=DTYPE, device=device, seed=1), bias)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 5, MAX_TOKENS + 3])
@pytest.mark.parametrize("bits", BITS)
def test_every_product_is_that_of_the_rounded_weight(
    device: torch.device, bits: int, num_tokens: int, has_bias: bool
) -> None:
    narrow = Quantisation(bits).linear(linear(48, 200, device, has_bias))
    made = kernel_linear(narrow, ProductRole.SUMMED, INTERPRETER_INFO)
    assert isinstance(made, QuantKernelLinear)
    x = random(num_tokens, 200, dtype=DTYPE, device=device)
    bias = None if narrow.bias is None else narrow.bias.double()
    want = product_reference(x.double(), dequantised(narrow.weight, torch.float64), bias)
    room = x.new_full((num_tokens, 48), torch.nan)
    assert made(x, room) is room
    parts = made.partial_sums(x)
    for found in (made(x), room, parts.sum(0) if parts.dim() == 3 else parts):
        assert error(found, want) < BOUNDS[DTYPE]
    assert error(made.gated(x), gate_reference(want)) < 2 * BOUNDS[DTYPE]


def test_the_factory_takes_both_kinds(device: torch.device) -> None:
    wide = linear_of(random(16, 64, dtype=DTYPE, device=device))
    assert isinstance(wide, Linear) and isinstance(
        kernel_linear(wide, ProductRole.WHOLE, INTERPRETER_INFO), KernelLinear
    )
    narrow = linear_of(quantise(wide.weight, 8))
    assert isinstance(narrow, QuantLinear)
    assert isinstance(kernel_linear(narrow, ProductRole.WHOLE, INTERPRETER_INFO), QuantKernelLinear)


def test_rows_below_each_other_are_those_of_the_parts(device: torch.device) -> None:
    parts = [Quantisation(4).linear(linear(8 + index, 100, device, True)) for index in range(2)]
    both = stacked(parts, 3)
    both.weight.check()
    want = torch.cat([dequantised(part.weight)[3:] for part in parts])
    assert torch.equal(dequantised(both.weight), want)
    assert both.bias is not None and len(both.bias) == len(want)


@pytest.fixture
def narrow_wish(monkeypatch: pytest.MonkeyPatch) -> PassOptions:
    monkeypatch.setattr(kernels, "has_kernels", lambda device: True)
    return PassOptions(weights="int4", kernels=True)


def test_a_target_is_read_layer_by_layer(
    tmp_path: Path, narrow_wish: PassOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_target(tmp_path, "qwen3")
    wide = load_target(tmp_path, device="cpu", layout="out_in", options=PassOptions(kernels=True))
    order: list[str] = []
    narrow_layer = Quantisation.layer

    def layer(self: Quantisation, weights: Any) -> Any:
        order.append("rounded")
        return narrow_layer(self, weights)

    def read(*args: Any) -> Any:
        order.append("read")
        return read_layer(*args)

    monkeypatch.setattr(Quantisation, "layer", layer)
    monkeypatch.setattr(tensors, "read_layer", read)
    decoder = load_target(tmp_path, device="cpu", options=narrow_wish)
    weights = decoder.weights
    assert isinstance(weights, QuantDecoder) and wide.weights is not None
    assert order == ["read", "rounded"] * decoder.spec.num_layers
    assert weights.head.bits == HEAD_BITS and weights.layers[0].qkv.weight.bits == 4
    assert torch.equal(weights.embedding, wide.weights.embedding)
    down = wide.weights.layers[0].down.weight
    assert isinstance(down, torch.Tensor)
    assert torch.equal(dequantised(weights.layers[0].down.weight), dequantised(quantise(down, 4)))


def test_a_drafters_context_is_cut_out_of_its_narrow_layers(tmp_path: Path, narrow_wish: PassOptions) -> None:
    save_drafter(tmp_path)
    net, wide = load_drafter(tmp_path, options=narrow_wish), load_drafter(tmp_path, layout="out_in")
    assert isinstance(net.weights, QuantDFlash) and not net.has_plain_passes
    assert wide.weights is not None and not isinstance(wide.weights, QuantDFlash)
    found = kernel_context(net.spec, net.weights)
    want = context_projection(wide.spec, wide.weights.layers)
    assert isinstance(found, QuantLinear)
    assert torch.equal(dequantised(found.weight), dequantised(quantise(want.weight, 4)))


def test_blocks_that_kernels_do_not_know_stay_wide(tmp_path: Path, narrow_wish: PassOptions) -> None:
    windows: dict[str, Any] = {
        "sliding_window": 8,
        "use_sliding_window": True,
        "layer_types": ["sliding_attention"] * 2,
    }
    own = {"mask_token_id": 96, "target_layer_ids": [0, 2], "block_causal_in_sliding": True}
    save_drafter(tmp_path, dflash_config=own, **windows)
    net = load_drafter(tmp_path, layout="out_in", options=narrow_wish)
    assert net.has_plain_passes and net.native_loader.options.weights == "auto"
