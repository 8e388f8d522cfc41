"""How the attention of a pass is split and tiled, by its size; the values were fastest on an H200.

`python -m bench.gpu.tune --only attention` has the grid of the measurement. A pass over few keys is limited
by latency, so it is cut into short splits. A pass over many keys is limited by reading them, so few programs
with deep pipelines are best. Which case holds must be known when a pass is captured (`is_long`). If the tiles
alone fill the device, few of them are split, and the split that ends last merges them, because the programs
of a second kernel would mostly do nothing. Measured with 1 to 512 tokens of one row, four query heads per key
head, over 1,024 to 16,384 keys, and with 2 to 64 rows of 1 to 32 tokens.
"""

from typing import NamedTuple

import torch

from wager.kvcache.pool import PoolSpec
from wager.nn.kernels.attention import AttentionPlan, plan_attention
from wager.nn.kernels.device import DeviceInfo
from wager.nn.kernels.tables import choose_tiling
from wager.nn.layers.attention import HeadShape

LONG_KEYS = 4096
"""Number of keys of one row from which its pass is long."""
_KEY_BYTES = 256  # bytes per key in the measurement; fewer programs fit with larger keys


class SplitConfig(NamedTuple):
    """Keys per step, warps and stages of a program; programs per multiprocessor and their shortest split.

    `lines` is the number of lines per tile, if more than usual is best.
    """

    keys: int
    warps: int
    stages: int
    per_processor: int
    min_keys: int
    lines: int = 0


_NARROW = SplitConfig(32, 4, 2, 2, 128)  # for devices with little shared memory


class PassSize(NamedTuple):
    """The values that the split of a pass depends on; several rows always count as long."""

    rows: int
    tokens: int
    is_long: bool = False


def plan_pass(
    heads: HeadShape, size: PassSize, pool: PoolSpec, device_info: DeviceInfo, device: torch.device | str
) -> AttentionPlan:
    """Returns the plan of passes up to this size, with memory of its own on the device."""
    has_large_shared_memory = (
        device_info.has_large_shared_memory and pool.head_dim * pool.dtype.itemsize <= _KEY_BYTES
    )
    usual = choose_tiling(heads, size.rows, size.tokens).tile_rows
    tiles = max(size.rows, -(-size.tokens * heads.group // usual))
    cut = choose_split_config(usual, size, tiles) if has_large_shared_memory else _NARROW
    merge = "last" if 8 * tiles * heads.num_kv_heads >= 7 * device_info.num_sms else "after"
    programs, max_tile_rows = cut.per_processor * device_info.num_sms, max(64, cut.lines)
    tiling = choose_tiling(heads, size.rows, size.tokens, programs, max_tile_rows)
    plan = plan_attention(heads, tiling._replace(min_keys=cut.min_keys), pool.page_size, device, merge)
    return plan._replace(block_keys=cut.keys, num_warps=cut.warps, num_stages=cut.stages)


def choose_split_config(lines: int, size: PassSize, tiles: int) -> SplitConfig:
    """Returns the configuration for `tiles` tiles of `lines` lines, or of some more lines if rows do not fill
    theirs.
    """
    is_short = size.rows == 1 and not size.is_long
    if lines > 64:
        return _NARROW
    if lines <= 32:
        if size.rows > 16:
            return SplitConfig(64, 4, 4, 1, 128) if size.rows <= 32 else SplitConfig(32, 2, 4, 2, 128)
        return SplitConfig(64, 4, 4, 2, 64) if is_short and lines <= 16 else SplitConfig(128, 4, 3, 1, 128)
    if size.rows > 16:
        return SplitConfig(64, 4, 3, 1, 128)
    if size.rows == 1 and tiles > 1:
        if tiles % 2 == 0 and (tiles >= 4 if size.is_long else 6 <= tiles <= 8):
            return SplitConfig(64, 8, 3, 1, 128, lines=128)
        if tiles > 8 or size.is_long:
            return SplitConfig(64, 4, 3, 2, 128)
        if tiles == 2:
            return SplitConfig(64, 4, 2, 2, 128)
    return SplitConfig(64, 4, 4, 1, 128)
