"""What one pass of a network works on: packed tokens, their positions, their places in the K/V pool, and its
rows.

Rows lie behind one another in the packed tensors. A row's tokens are written to the pool right behind its
context, in pass order, whatever their positions are: siblings of a tree share a position but not a slot.

Filled by the target's and the drafter's inputs, read by `models/`. Knows nothing of requests or of who
drafted what.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from wager.kvcache.pool import PageIds


@dataclass(frozen=True, eq=False)
class PassRow:
    """One row's range in the pass, and what it may look at.

    `pages` cover `context_len` cached tokens (the i-th at position i) plus this pass's own tokens. `mask[i,
    j]` says that token i of the row sees token j of the row (itself included); None means causal. All see the
    whole context.
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
    """One row of a block drafter's pass: its range, and the pages of its cached context features.

    `spare` promises that the slots behind the context, as many as the row has tokens, belong to this row
    alone and hold nothing worth keeping. The pass may then lay the block's K/V there for its duration instead
    of copying the context; without it nothing is written.
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
