"""How attention is cut by default: every size gets a plan that its tables hold, and long passes their own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nn.kernels import ways as _ways
from wager.kvcache.pool import PoolSpec
from wager.nn.kernels.cuts import PassSize, plan_pass
from wager.nn.kernels.device import INTERPRETER, Machine
from wager.nn.layers.attention import HeadShape

assert _ways

H200 = Machine(132, True, True)
HEADS = HeadShape(32, 8, 128)
POOL = PoolSpec(1, 1, 64, 8, 128, torch.bfloat16)


def cut(rows: int, tokens: int, is_long: bool = False) -> tuple[int, ...]:
    plan = plan_pass(HEADS, PassSize(rows, tokens, is_long), POOL, H200, "meta")
    return plan.block_keys, plan.num_warps, plan.num_stages, plan.tiling.max_splits


def test_the_measured_sizes() -> None:
    assert cut(1, 1) == (64, 4, 4, 32) and cut(1, 1, is_long=True) == (128, 4, 3, 16)
    assert cut(1, 16) == (64, 4, 4, 32) and cut(1, 16, is_long=True) == (64, 4, 4, 16)
    assert cut(1, 64) == (64, 4, 3, 32) == cut(1, 64, is_long=True)
    assert cut(16, 64) == (128, 4, 3, 16) and cut(64, 64) == (32, 2, 4, 32)


@pytest.mark.parametrize(
    "machine", [INTERPRETER, H200._replace(is_roomy=False)], ids=["interpreter", "small"]
)
def test_little_room_is_respected(machine: Machine) -> None:
    plan = plan_pass(HEADS, PassSize(1, 1), POOL, machine, "meta")
    assert plan.num_stages * plan.block_keys <= 64


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 8), st.integers(1, 16), st.integers(1, 64), st.integers(1, 600), st.booleans())
def test_every_size_has_a_plan(kv_heads: int, group: int, rows: int, tokens: int, is_long: bool) -> None:
    heads, size = HeadShape(kv_heads * group, kv_heads, 64), PassSize(rows, max(rows, tokens), is_long)
    plan = plan_pass(heads, size, POOL, H200, "meta")
    tiling = plan.tiling
    assert tiling.tile_tokens * group <= tiling.tile_rows
    assert plan.space.counters.shape == (tiling.max_items, kv_heads)
    assert plan.merge in ("last", "after") and plan.block_keys <= 128
