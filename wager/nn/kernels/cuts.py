"""How the attention of a pass is cut and tiled, by its size: what was quickest on an H200.

The grid that was tried is that of `python -m bench.gpu.tune --only attention`.

A pass over few keys is bound by latency, so it is cut into short splits; one over many by reading them, so
that few programs with deep pipelines are best. Which of the two it is must be known when a pass is captured
(`is_long`). Where tiles alone fill the device few are split at all, and whoever ends last merges those: the
programs of a second kernel would all be started in vain. Measured with 1 to 512 tokens of one row, four query
heads to a key head, over 1,024 to 16,384 keys, and with 2 to 64 rows of 1 to 32 tokens. Knows no rows'
contents; used by whoever captures passes.
"""

from typing import NamedTuple

import torch

from wager.kvcache.pool import PoolSpec
from wager.nn.kernels.attention import AttentionPlan, plan_attention
from wager.nn.kernels.device import Machine
from wager.nn.kernels.tables import choose_tiling
from wager.nn.layers.attention import HeadShape

LONG_KEYS = 4096
"""Keys of one row from which on its pass is long."""
_KEY_BYTES = 256  # of the keys that were measured; larger ones do not fit as often


class Cut(NamedTuple):
    """Keys of a step, warps and stages of a program; programs to a processor and their shortest split.

    `lines`: of a tile, where more of them than usual are best.
    """

    keys: int
    warps: int
    stages: int
    per_processor: int
    min_keys: int
    lines: int = 0


_NARROW = Cut(32, 4, 2, 2, 128)  # for devices with little room


class PassSize(NamedTuple):
    """What the cut of a pass depends on; several rows are always taken for long."""

    rows: int
    tokens: int
    is_long: bool = False


def plan_pass(
    heads: HeadShape, size: PassSize, pool: PoolSpec, machine: Machine, device: torch.device | str
) -> AttentionPlan:
    """The plan of passes of that size at most, with space of its own on the device."""
    is_roomy = machine.is_roomy and pool.head_dim * pool.dtype.itemsize <= _KEY_BYTES
    usual = choose_tiling(heads, size.rows, size.tokens).tile_rows
    tiles = max(size.rows, -(-size.tokens * heads.group // usual))
    cut = choose_cut(usual, size, tiles) if is_roomy else _NARROW
    merge = "last" if 8 * tiles * heads.num_kv_heads >= 7 * machine.processors else "after"
    programs, most_lines = cut.per_processor * machine.processors, max(64, cut.lines)
    tiling = choose_tiling(heads, size.rows, size.tokens, programs, most_lines)
    plan = plan_attention(heads, tiling._replace(min_keys=cut.min_keys), pool.page_size, device, merge)
    return plan._replace(block_keys=cut.keys, num_warps=cut.warps, num_stages=cut.stages)


def choose_cut(lines: int, size: PassSize, tiles: int) -> Cut:
    """For so many tiles of that many lines, or some more where rows do not fill theirs."""
    is_short = size.rows == 1 and not size.is_long
    if lines > 64:
        return _NARROW
    if lines <= 32:
        if size.rows > 16:
            return Cut(64, 4, 4, 1, 128) if size.rows <= 32 else Cut(32, 2, 4, 2, 128)
        return Cut(64, 4, 4, 2, 64) if is_short and lines <= 16 else Cut(128, 4, 3, 1, 128)
    if size.rows > 16:
        return Cut(64, 4, 3, 1, 128)
    if size.rows == 1 and tiles > 1:
        if tiles % 2 == 0 and (tiles >= 4 if size.is_long else 6 <= tiles <= 8):
            return Cut(64, 8, 3, 1, 128, lines=128)
        if tiles > 8 or size.is_long:
            return Cut(64, 4, 3, 2, 128)
        if tiles == 2:
            return Cut(64, 4, 2, 2, 128)
    return Cut(64, 4, 4, 1, 128)
