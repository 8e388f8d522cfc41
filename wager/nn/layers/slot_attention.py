"""Attention of one token in every slot over that slot's own keys, in plain torch.

Every slot has fixed room for keys and values, from position 0 on, so there are no pages and no tables.
`wager/train` writes a target's texts in bulk this way; the engine attends through pages (`attention.py`). On
a CUDA device `kernels/slot_attention.py` computes the same and reads only the keys that exist.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def attend_slots(
    queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor, window: int | None = None
) -> Tensor:
    """Returns [slots, heads * head_dim] from queries [slots, heads, head_dim] at `positions` [slots].

    `keys` and `values` are [slots, kv_heads, room, head_dim]. A query sees the keys up to its own position,
    with a window only the last `window` of them.
    """
    num_slots, num_heads, size = queries.shape
    if positions.device.type == "cpu":  # elsewhere this number would need a synchronisation
        longest = int(positions.max()) + 1
        keys, values = keys[:, :, :longest], values[:, :, :longest]
    places = torch.arange(keys.shape[2], device=queries.device)
    seen = places <= positions[:, None]
    if window is not None:
        seen &= places > positions[:, None] - window
    folded = queries.reshape(num_slots, keys.shape[1], -1, size)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=seen[:, None, None])
    return out.reshape(num_slots, num_heads * size)
