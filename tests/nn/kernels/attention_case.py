"""A pass to attend over: rows of every kind in a pool whose unused slots are poison.

Pages are scattered, contexts differ, and every slot that no row may read holds NaN.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tests.nn.kernels.interpreter import random
from wager.nn.kernels.tables import (
    AttentionTables,
    PassTables,
    TableLimits,
    TableRow,
    Tiling,
    choose_tiling,
    mask_words,
)
from wager.nn.layers.attention import HeadShape


class Kind(NamedTuple):
    """One row: pending tokens (causal), nodes behind them (0: none), context, and what the nodes are."""

    num_pending: int
    num_nodes: int
    context_len: int
    is_block: bool = False


class World(NamedTuple):
    queries: Tensor
    layer: Tensor
    tables: AttentionTables
    tiling: Tiling
    num_tokens: int
    """Tokens that belong to rows; the queries behind them are padding."""


class Shape(NamedTuple):
    heads: HeadShape
    page_size: int = 16
    dtype: torch.dtype = torch.float32
    num_programs: int = 8
    mask_words: int = 1


def node_parents(num_nodes: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """A random tree: each node's parent among those before it, -1 for the root."""
    return np.array([rng.integers(-1, node) for node in range(num_nodes)], np.int64)


def row_mask(kind: Kind, rng: np.random.Generator) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Who sees whom in a row, and how far behind the last pending token each token stands."""
    size, pending = kind.num_pending + kind.num_nodes, kind.num_pending
    mask = np.tril(np.ones((size, size), np.bool_))
    depths = np.concatenate((np.arange(pending) - pending + 1, np.zeros(kind.num_nodes, np.int64)))
    mask[pending:, pending:] = kind.is_block
    if kind.is_block:
        depths[pending:] = np.arange(kind.num_nodes) + 1
        return mask, depths
    for node, parent in enumerate(node_parents(kind.num_nodes, rng)):
        at = pending + node
        if parent >= 0:
            mask[at, pending:] = mask[pending + parent, pending:]
            depths[at] = depths[pending + parent]
        mask[at, at] = True
        depths[at] += 1
    return mask, depths


def make_world(
    kinds: list[Kind], shape: Shape, device: torch.device, padding: int = 0, seed: int = 0
) -> World:
    rng = np.random.default_rng(seed)
    heads, page_size = shape.heads, shape.page_size
    lengths = [kind.context_len + kind.num_pending + kind.num_nodes for kind in kinds]
    num_tokens = sum(kind.num_pending + kind.num_nodes for kind in kinds)
    needs = [-(-length // page_size) for length in lengths]
    num_pages = sum(needs) + 3
    tiling = choose_tiling(heads, len(kinds) + 1, num_tokens + padding, shape.num_programs)
    tiling = tiling._replace(min_keys=32)  # several splits of short contexts too
    limits = TableLimits(
        num_tokens + padding,
        len(kinds) + 1,
        max(needs) + 2,
        len(kinds) + 1,
        tiling.max_items,
        shape.mask_words,
    )
    tables = PassTables(limits, device)
    pages = rng.permutation(num_pages)
    used = np.zeros(num_pages * page_size, np.bool_)
    rows, start, taken = [], 0, 0
    for index, (kind, length, need) in enumerate(zip(kinds, lengths, needs, strict=True)):
        count = kind.num_pending + kind.num_nodes
        mask, depths = row_mask(kind, rng)
        own = pages[taken : taken + need]
        tables.host_pages[index + 1, :need] = own
        place = np.arange(length)
        used[own[place // page_size] * page_size + place % page_size] = True
        tables.host.positions[start : start + count] = kind.context_len + kind.num_pending - 1 + depths
        tables.host.masks[start : start + count] = mask_words(mask, kind.num_pending, shape.mask_words)
        rows.append(TableRow(start, count, kind.num_pending, kind.context_len, index + 1))
        start, taken = start + count, taken + need
    tables.write_rows(rows, tiling)
    tables.push()
    size = (2, heads.num_kv_heads, num_pages * page_size, heads.head_dim)
    layer = random(*size, dtype=shape.dtype, device=device, seed=seed + 1)
    layer[:, :, torch.from_numpy(~used).to(device)] = torch.nan
    queries = random(
        num_tokens + padding, heads.num_heads, heads.head_dim, dtype=shape.dtype, device=device, seed=seed + 2
    )
    return World(queries, layer, tables.attention(), tiling, num_tokens)
