"""Attention of one token per slot against plain torch in float64: positions, groups, head sizes, windows."""

import pytest
import torch
from torch import Tensor

from tests.nn.kernels.interpreter import BOUNDS, DTYPES, error, random
from wager.nn.kernels.slot_attention import attend_slots, attend_slots_reference

LENGTH = 150
POSITIONS = [0, 1, 63, 64, 100, 149]


def case(
    device: torch.device, dtype: torch.dtype, group: int, size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and positions; what lies behind a slot's position is NaN."""
    num_slots = len(POSITIONS)
    queries = random(num_slots, 2 * group, size, dtype=dtype, device=device)
    keys = random(num_slots, 2, LENGTH, size, dtype=dtype, device=device, seed=1)
    values = random(num_slots, 2, LENGTH, size, dtype=dtype, device=device, seed=2)
    for slot, position in enumerate(POSITIONS):
        keys[slot, :, position + 1 :] = values[slot, :, position + 1 :] = torch.nan
    return queries, keys, values, torch.tensor(POSITIONS, device=device)


def reference(queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor, window: int | None) -> Tensor:
    wide = [part.double().nan_to_num(0.0) for part in (queries, keys, values)]
    return attend_slots_reference(*wide, positions, window)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("group", "size"), [(3, 64), (1, 24), (20, 16)])
def test_it_is_the_float64_attention(device: torch.device, dtype: torch.dtype, group: int, size: int) -> None:
    queries, keys, values, positions = case(device, dtype, group, size)
    want = reference(queries, keys, values, positions, None)
    assert error(attend_slots(queries, keys, values, positions), want) <= BOUNDS[dtype]


@pytest.mark.parametrize("window", [1, 5, 64, 400])
def test_windows_end_at_the_position(device: torch.device, window: int) -> None:
    queries, keys, values, positions = case(device, torch.float32, 2, 16)
    want = reference(queries, keys, values, positions, window)
    assert error(attend_slots(queries, keys, values, positions, window), want) <= BOUNDS[torch.float32]
    if window == 1:
        own = values[torch.arange(len(POSITIONS)), :, POSITIONS].repeat_interleave(2, dim=1).flatten(1)
        assert error(want, own) <= 1e-6


def test_queries_may_be_a_part_of_a_fused_product(device: torch.device) -> None:
    queries, keys, values, positions = case(device, torch.float32, 2, 16)
    fused = torch.cat((queries, queries), dim=1)
    assert torch.equal(
        attend_slots(fused[:, :4], keys, values, positions), attend_slots(queries, keys, values, positions)
    )


def test_the_reference_is_causal_attention_over_the_last_token() -> None:
    queries, keys, values, positions = case(torch.device("cpu"), torch.float32, 3, 16)
    found = attend_slots_reference(queries, keys.nan_to_num(), values.nan_to_num(), positions)
    for slot, position in enumerate(POSITIONS):
        for head in range(6):
            own = keys[slot, head // 3, : position + 1]
            shares = (own @ queries[slot, head] / 4.0).softmax(dim=0)
            want = shares @ values[slot, head // 3, : position + 1]
            assert torch.allclose(found[slot, head * 16 : head * 16 + 16], want, atol=1e-5)
