"""Weights in few bits: how far they are from what they stand for, their layout, and their way back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nn.kernels.interpreter import error, random
from wager.nn.kernels.quant_unpack import widen
from wager.nn.kernels.quant_weights import BITS, GROUPS, QuantWeight, dequantised, quantise

CPU = torch.device("cpu")
KINDS = [(bits, group) for bits in BITS for group in GROUPS]


def steps_of(weight: QuantWeight) -> torch.Tensor:
    """The step of every value, [out, in]."""
    steps = weight.scales.float().abs().transpose(0, 1).flatten(1)
    return steps.repeat_interleave(weight.group, dim=1)[:, : weight.num_in]


@pytest.mark.parametrize(
    ("bits", "group", "bound"), [(8, 64, 7e-3), (8, 128, 7e-3), (4, 64, 0.095), (4, 128, 0.1)]
)
def test_the_error_of_normal_weights(bits: int, group: int, bound: float) -> None:
    weight = random(64, 1024, dtype=torch.float32, device=CPU)
    assert 0.0 < error(dequantised(quantise(weight, bits, group)), weight) <= bound


@given(
    st.integers(1, 5), st.integers(1, 300), st.sampled_from(GROUPS), st.floats(-6.0, 6.0), st.integers(0, 99)
)
@settings(deadline=None, max_examples=30)
def test_eight_bits_are_within_half_a_step(rows: int, inner: int, group: int, size: float, seed: int) -> None:
    weight = random(rows, inner, dtype=torch.float32, device=CPU, seed=seed) * 10.0**size
    narrow = quantise(weight, 8, group)
    assert narrow.shape == (rows, inner)
    assert bool(((dequantised(narrow) - weight).abs() <= steps_of(narrow) * 0.50001).all())


@pytest.mark.parametrize("group", GROUPS)
def test_searching_is_never_worse_than_the_largest_value(group: int) -> None:
    weight = random(40, 4 * group, dtype=torch.float32, device=CPU) ** 3
    groups = weight.view(40, -1, group)
    step = groups.abs().amax(dim=2, keepdim=True) / 7.0
    plain = (groups / step).round() * step
    ours = dequantised(quantise(weight, 4, group)).view_as(groups)
    lost, plainly_lost = ((one - groups).square().sum(dim=2) for one in (ours, plain))
    assert float(lost.sum()) < 0.8 * float(plainly_lost.sum())
    whole = groups.gather(2, groups.abs().argmax(dim=2, keepdim=True)) / -8.0
    whole = whole.to(torch.bfloat16).float()
    unclipped = ((groups / whole).round().clamp(-8, 7) * whole - groups).square().sum(dim=2)
    assert bool((lost <= unclipped * 1.0001).all())


@pytest.mark.parametrize(("bits", "group"), KINDS)
def test_whole_numbers_come_back_as_they_are(bits: int, group: int) -> None:
    most = 127 if bits == 8 else 8
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-most, most, (7, 3 * group + 5), generator=generator).float()
    weight[:, ::group] = -most
    for scale in (1.0, 2.0**-9):
        assert torch.equal(dequantised(quantise(weight * scale, bits, group)), weight * scale)


@pytest.mark.parametrize(("bits", "group"), KINDS)
def test_zeros_stay_zeros_and_make_no_noise(bits: int, group: int) -> None:
    weight = torch.zeros(3, 2 * group + 1)
    weight[1, 5] = 2.5
    wide = dequantised(quantise(weight, bits, group))
    assert bool((wide[weight == 0] == 0).all()) and abs(float(wide[1, 5]) - 2.5) < 0.02


@pytest.mark.parametrize(("bits", "group"), KINDS)
def test_bytes_are_few_and_aligned(bits: int, group: int) -> None:
    narrow = quantise(torch.randn(32, 1024), bits, group)
    words = group // 2
    assert narrow.packed.shape == (1024 // narrow.chunk, 32, words) and words * 2 % 16 == 0
    per_weight = narrow.nbytes * 8 / (32 * 1024)
    assert per_weight == bits + (32 / group if bits == 8 else 16 / group)
    assert narrow.scale_words.shape == narrow.packed.shape[:2]
    narrow.check()


def test_slices_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random(37, 300, dtype=torch.float32, device=CPU)
    whole = quantise(weight, 4)
    monkeypatch.setattr("wager.nn.kernels.quant_weights._SLICE_VALUES", 5 * 384)
    sliced = quantise(weight, 4)
    assert torch.equal(sliced.packed, whole.packed) and torch.equal(sliced.scales, whole.scales)


def test_other_bits_and_groups_are_refused() -> None:
    with pytest.raises(AssertionError):
        quantise(torch.zeros(2, 2), 4, 48)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("bits", "group"), KINDS)
def test_rows_are_widened_into_a_frame(
    device: torch.device, bits: int, group: int, dtype: torch.dtype
) -> None:
    weight = random(70, 2 * group + 9, dtype=torch.float32, device=device)
    narrow = quantise(weight, bits, group)
    want = dequantised(narrow)[20:60]
    room = torch.full((42, weight.shape[1] + 3), 7.0, dtype=dtype, device=device)
    room[1:-1, :-3] = torch.nan
    out = widen(narrow, 20, room[1:-1, :-3])
    # The interpreter rounds bfloat16 towards zero.
    assert error(out, want) <= (0.0 if dtype == torch.float32 else 4e-3)
    assert bool((room[0] == 7).all()) and bool((room[-1] == 7).all()) and bool((room[:, -3:] == 7).all())
