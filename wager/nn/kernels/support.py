"""Which networks the CUDA kernels can run, and the reason if they cannot run one.

The kernels support full and sliding attention, biases, query and key norms, every rotary embedding that
`wager/nn/rope.py` reads, the SiLU activation, tied heads, and grouped query heads. This file lists their
limits. A network beyond one of them runs by plain torch and the reason is shown; a feature is never left out.
Needs no triton. Used by `models/` when a network is loaded.
"""

from typing import Protocol

import torch

from wager.nn.layers.attention import HeadShape

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Types of weights and activations; sums are float32, so float64 would lose precision."""
MAX_HEAD_DIM = 256
"""Largest head size: tiles of keys and values of larger heads do not fit in shared memory."""
MAX_GROUP = 64
"""Most query heads per key head: all of them are rows of one attention tile."""
MAX_HIDDEN_SIZE = 32_768
"""Widest hidden state: one program of `norm.py` holds a whole row in registers."""
MAX_VOCAB = 1 << 20
"""Largest vocabulary that `sample.py` chooses from."""
MAX_RANKS = 64
"""Most candidates per token: `top_logprobs.py` finds them one by one."""
MAX_POOL_VALUES = 1 << 31
"""Most values of one head in a K/V pool: `attention.py` addresses them by 32-bit offsets."""


class NetworkShape(Protocol):
    """The part of a network's spec that decides whether kernels can run it."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def heads(self) -> HeadShape: ...


class BlockShape(NetworkShape, Protocol):
    """The same for a block drafter."""

    @property
    def windows(self) -> tuple[int | None, ...]: ...
    @property
    def block_size(self) -> int: ...
    @property
    def block_causal_in_sliding(self) -> bool: ...


def refusal(spec: NetworkShape, dtype: torch.dtype, vocab_size: int = 0) -> str:
    """The reason why the kernels cannot run this network, or an empty string.

    `vocab_size` is 0 for a network without a head of its own.
    """
    name = str(dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        return f"kernels do not support {name}"
    if spec.heads.head_dim > MAX_HEAD_DIM:
        return f"kernels support head sizes up to {MAX_HEAD_DIM}, not {spec.heads.head_dim}"
    if spec.heads.group > MAX_GROUP:
        return f"kernels support up to {MAX_GROUP} query heads per key head, not {spec.heads.group}"
    if spec.hidden_size > MAX_HIDDEN_SIZE:
        return f"kernels support hidden sizes up to {MAX_HIDDEN_SIZE}, not {spec.hidden_size}"
    if vocab_size > MAX_VOCAB:
        return f"kernels support up to {MAX_VOCAB} tokens in a vocabulary, not {vocab_size}"
    return ""


def ranking_refusal(ranks: int, vocab_size: int) -> str:
    """The reason why the kernels cannot rank the candidates of a draft, or an empty string."""
    if ranks > MAX_RANKS:
        return f"kernels support up to {MAX_RANKS} candidates per token, not {ranks}"
    if vocab_size > MAX_VOCAB:
        return f"kernels support up to {MAX_VOCAB} tokens in a vocabulary, not {vocab_size}"
    return ""


def pool_refusal(num_slots: int, head_dim: int) -> str:
    """The reason why the kernels cannot address a K/V pool of so many slots, or an empty string."""
    if num_slots <= max_pool_slots(head_dim):
        return ""
    return f"kernels support K/V pools of up to {max_pool_slots(head_dim)} tokens, not {num_slots}"


def max_pool_slots(head_dim: int) -> int:
    """The most slots of a K/V pool that the kernels can address."""
    return (MAX_POOL_VALUES - 1) // head_dim


def block_refusal(spec: BlockShape, dtype: torch.dtype) -> str:
    """The same for a block drafter, whose sliding windows must not cut through its blocks."""
    windows = [window for window in spec.windows if window is not None]
    if windows and spec.block_causal_in_sliding:
        return "kernels do not support blocks that are causal in sliding layers"
    if windows and min(windows) < spec.block_size:
        return f"kernels do not support a sliding window of {min(windows)} in blocks of {spec.block_size}"
    return refusal(spec, dtype)
