"""How the attention of a pass is cut and tiled, by its size: what `python -m bench.gpu.tune` found quickest.

A pass over few keys is bound by latency, so it is cut into short splits; one over many by reading them, so
that few programs with deep pipelines are best. Which of the two it is must be known when a pass is captured
(`is_long`). Measured with 1, 16 and 64 tokens of one row, four query heads to a key head, over 1,024 and
16,384 keys, and with 16 and 64 rows. Knows no rows' contents; used by whoever captures passes.
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
_MANY_ROWS = 32
_KEY_BYTES = 256  # of the keys that were measured; larger ones do not fit as often


class Cut(NamedTuple):
    """Keys of a step, warps and stages of a program; programs to a processor and their shortest split."""

    keys: int
    warps: int
    stages: int
    per_processor: int
    min_keys: int
    merge: str = "after"


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
    lines = choose_tiling(heads, size.rows, size.tokens).tile_rows
    cut = choose_cut(lines, size, -(-size.tokens * heads.group // lines)) if is_roomy else _NARROW
    tiling = choose_tiling(heads, size.rows, size.tokens, cut.per_processor * machine.processors)
    plan = plan_attention(heads, tiling._replace(min_keys=cut.min_keys), pool.page_size, device, cut.merge)
    return plan._replace(block_keys=cut.keys, num_warps=cut.warps, num_stages=cut.stages)


def choose_cut(lines: int, size: PassSize, tiles: int) -> Cut:
    """For tiles of that many lines; as many of them, or some more where rows do not fill theirs."""
    is_short = size.rows == 1 and not size.is_long
    if lines > 64:
        return _NARROW
    if lines <= 32:
        if size.rows >= _MANY_ROWS:
            return Cut(32, 2, 4, 2, 128)
        return Cut(64, 4, 4, 2, 64) if is_short else Cut(128, 4, 3, 1, 128)
    if tiles == 1:
        return Cut(64, 4, 4, 2 if is_short else 1, 128)
    return Cut(64, 4, 3, 2, 256, "last") if is_short and tiles <= 4 else Cut(64, 4, 3, 2, 128)
