"""The input of one pass of a network: packed tokens, their positions, their slots in the K/V pool, and the
rows.

Rows are consecutive in the packed tensors. The tokens of a row are written to the pool directly behind its
context, in pass order, whatever their positions are: siblings in a tree share a position but not a slot. The
inputs of target and drafter create these records, and `models/` reads them. They hold nothing about requests
or drafters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from wager.kvcache.pool import PageIds


@dataclass(frozen=True, eq=False)
class PassRow:
    """The range of one row in the pass, its context and its mask.

    `pages` cover the `context_len` cached tokens (the i-th at position i) and the tokens of this pass.
    `mask[i, j]` says that token i of the row sees token j of the row, itself included; None means causal.
    Every token sees the whole context.
    """

    start: int
    stop: int
    context_len: int
    pages: PageIds
    mask: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start

    @property
    def kv_len(self) -> int:
        return self.context_len + self.stop - self.start


@dataclass(frozen=True, eq=False)
class PassBatch:
    """One pass of the target over all rows; every tensor has one entry per packed token."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    rows: Sequence[PassRow]

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]


@dataclass(frozen=True, eq=False)
class BlockRow:
    """The range of one row in a block drafter's pass, and the pages of its cached context features.

    `spare` says that the slots behind the context, one per token of the row, belong to this row alone and
    hold nothing of value. The pass may then write the block's keys and values there instead of copying the
    context.
    """

    start: int
    stop: int
    context_len: int
    pages: PageIds
    spare: bool = False

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, eq=False)
class BlockBatch:
    """One pass of a block drafter: the embeddings of [known tokens ..., MASK ...] of every row, packed."""

    embeddings: Tensor
    positions: Tensor
    rows: Sequence[BlockRow]
