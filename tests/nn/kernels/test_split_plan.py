"""How attention is cut by default: every size gets a plan that its tables hold, and long passes their own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nn.kernels import interpreter as _interpreter
from wager.kvcache.pool import PoolSpec
from wager.nn.kernels.attention import AttentionPlan
from wager.nn.kernels.device import INTERPRETER_INFO, DeviceInfo
from wager.nn.kernels.split_plan import PassSize, plan_pass
from wager.nn.layers.attention import HeadShape

assert _interpreter

H200 = DeviceInfo(132, True, True)
HEADS = HeadShape(32, 8, 128)
POOL = PoolSpec(1, 1, 64, 8, 128, torch.bfloat16)


def plan(rows: int, tokens: int, is_long: bool = False) -> AttentionPlan:
    return plan_pass(HEADS, PassSize(rows, tokens, is_long), POOL, H200, "meta")


def cut(rows: int, tokens: int, is_long: bool = False) -> tuple[int, ...]:
    found = plan(rows, tokens, is_long)
    return found.block_keys, found.num_warps, found.num_stages, found.tiling.max_splits


def test_the_measured_sizes() -> None:
    assert cut(1, 1) == (64, 4, 4, 32) and cut(1, 1, is_long=True) == (128, 4, 3, 16)
    assert cut(1, 8) == (128, 4, 3, 16) == cut(1, 8, is_long=True)
    assert cut(1, 16) == (64, 4, 4, 16) == cut(1, 16, is_long=True)
    assert cut(1, 32) == (64, 4, 2, 32) and cut(1, 32, is_long=True) == (64, 4, 3, 32)
    assert cut(1, 64) == (64, 4, 4, 16) and cut(1, 64, is_long=True) == (64, 8, 3, 16)
    assert cut(16, 64) == (128, 4, 3, 16) and cut(32, 32) == (64, 4, 4, 16) and cut(64, 64) == (32, 2, 4, 32)


def test_tiles_are_higher_where_arithmetic_binds() -> None:
    lines = {
        tokens: plan(1, tokens, is_long=True).tiling.tile_rows for tokens in (1, 16, 32, 48, 64, 128, 256)
    }
    assert lines == {1: 16, 16: 64, 32: 64, 48: 64, 64: 128, 128: 128, 256: 128}
    assert plan(1, 64).tiling.tile_rows == 64 and plan(1, 128).tiling.tile_rows == 128


def test_a_second_kernel_merges_only_where_tiles_leave_the_device_empty() -> None:
    sizes = [(1, 1), (1, 64), (8, 8), (16, 16), (64, 64), (16, 256), (1, 128), (1, 256)]
    merges = [plan(rows, tokens).merge for rows, tokens in sizes]
    assert merges == ["after", "after", "after", "last", "last", "last", "after", "last"]


@pytest.mark.parametrize(
    "device_info",
    [INTERPRETER_INFO, H200._replace(has_large_shared_memory=False)],
    ids=["interpreter", "small"],
)
def test_little_room_is_respected(device_info: DeviceInfo) -> None:
    small = plan_pass(HEADS, PassSize(1, 1), POOL, device_info, "meta")
    assert small.num_stages * small.block_keys <= 64


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 8), st.integers(1, 16), st.integers(1, 64), st.integers(1, 600), st.booleans())
def test_every_size_has_a_plan(kv_heads: int, group: int, rows: int, tokens: int, is_long: bool) -> None:
    heads, size = HeadShape(kv_heads * group, kv_heads, 64), PassSize(rows, max(rows, tokens), is_long)
    found = plan_pass(heads, size, POOL, H200, "meta")
    tiling = found.tiling
    assert tiling.tile_tokens * group <= tiling.tile_rows
    assert found.space.counters.shape == (tiling.max_items, kv_heads)
    assert found.merge in ("last", "after") and found.block_keys <= 128
