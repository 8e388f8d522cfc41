"""Attention of the rows of a pass over their cached context and their own tokens, in plain torch.

Slots and masks are determined once per pass and window (`plan_rows`) and used by every layer (`attend`).
Query heads that share a key head are folded into the query rows, so keys are read once and never repeated.
Windows count positions, not slots: the window of a tree node reaches as far back as it would in plain text.
This module knows no weights. The decoder uses it; the block drafter plans its own rows and shares
`attend_one`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from wager.kvcache.pool import KVPool, Place
from wager.nn.batch import PassBatch, PassRow


class HeadShape(NamedTuple):
    """The heads of an attention layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Number of query heads per key head."""
        return self.num_heads // self.num_kv_heads


class RowView(NamedTuple):
    """What one row reads in every layer: its range in the pass, the slots of its keys, its additive mask."""

    start: int
    stop: int
    place: Place
    mask: Tensor | None
    is_causal: bool


def plan_rows(
    batch: PassBatch, pool: KVPool, heads: HeadShape, windows: Sequence[int | None]
) -> list[list[RowView]]:
    """Returns for every layer the views of all rows; layers with the same window share one list."""
    by_window = {
        window: [_plan_row(batch, row, pool, heads, window) for row in batch.rows] for window in set(windows)
    }
    return [by_window[window] for window in windows]


def _plan_row(batch: PassBatch, row: PassRow, pool: KVPool, heads: HeadShape, window: int | None) -> RowView:
    if window is not None and row.kv_len <= window:
        window = None
    # Every query has position context_len or more, so keys before this are outside all windows.
    first = 0 if window is None else max(0, row.context_len - window + 1)
    place = pool.span(row.pages, first, row.kv_len)
    if row.num_tokens == 1:
        return RowView(row.start, row.stop, place, None, False)
    if row.context_len == 0 and row.mask is None and window is None:
        return RowView(row.start, row.stop, place, None, True)
    positions = batch.positions[row.start : row.stop]
    mask = _row_mask(positions, row, first, window, heads.group, pool.spec.dtype)
    return RowView(row.start, row.stop, place, mask, False)


def _row_mask(
    positions: Tensor, row: PassRow, first: int, window: int | None, group: int, dtype: torch.dtype
) -> Tensor:
    """Returns an additive mask [tokens * group, keys]: the context from `first` on, then the row's own
    tokens.
    """
    count, device = row.num_tokens, positions.device
    if row.mask is None:
        own = torch.ones(count, count, dtype=torch.bool, device=device).tril_()
    else:
        own = torch.as_tensor(row.mask, device=device)
    if window is None:
        return F.pad(additive(own, group, dtype), (row.context_len, 0))
    own = own & (positions[:, None] - positions[None, :] < window)
    context = positions[:, None] - torch.arange(first, row.context_len, device=device) < window
    return additive(torch.cat((context, own), dim=1), group, dtype)


def additive(visible: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """Converts a bool mask [tokens, keys] to an additive mask [tokens * group, keys].

    NOTE: The mask uses half the lowest finite number. With -inf, a fully masked tile becomes NaN in some
    attention kernels, and the lowest number overflows when a score is added.
    """
    scores = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    scores.masked_fill_(~visible, torch.finfo(dtype).min / 2)
    return scores.repeat_interleave(group, dim=0) if group > 1 else scores


def attend(queries: Tensor, pool: KVPool, layer: int, views: Sequence[RowView]) -> Tensor:
    """Returns the attention of all rows' queries [tokens, heads, head_dim] as [tokens, heads * head_dim]."""
    if len(views) == 1:
        keys, values = pool.read(layer, views[0].place)
        return attend_one(queries, keys, values, views[0].mask, views[0].is_causal)
    outputs = []
    for view in views:
        keys, values = pool.read(layer, view.place)
        outputs.append(attend_one(queries[view.start : view.stop], keys, values, view.mask, view.is_causal))
    return torch.cat(outputs)


def attend_one(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, is_causal: bool = False
) -> Tensor:
    """Returns the attention of one row as [q, heads * head_dim].

    Queries are [q, heads, head_dim]; keys and values are [kv_heads, length, head_dim].
    """
    count, num_heads, size = queries.shape
    num_kv_heads = keys.shape[0]
    group = num_heads // num_kv_heads
    if is_causal:
        return _attend_causal(queries, keys, values)
    folded = (
        queries.unflatten(1, (num_kv_heads, group))
        .transpose(0, 1)
        .reshape(1, num_kv_heads, count * group, size)
    )
    out = F.scaled_dot_product_attention(folded, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask)
    if count == 1:
        return out.reshape(1, num_heads * size)
    return out.view(num_kv_heads, count, group, size).transpose(0, 1).reshape(count, num_heads * size)


def _attend_causal(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Computes a whole prompt from its first token: without a mask tensor, and with keys shared by
    expansion.
    """
    count, num_heads, size = queries.shape
    group = num_heads // keys.shape[0]
    unfolded = queries.unflatten(1, (keys.shape[0], group)).permute(1, 2, 0, 3)
    shape = (-1, group, -1, -1)
    wide_keys, wide_values = keys.unsqueeze(1).expand(shape), values.unsqueeze(1).expand(shape)
    out = F.scaled_dot_product_attention(unfolded, wide_keys, wide_values, is_causal=True)
    return out.permute(2, 0, 1, 3).reshape(count, num_heads * size)
