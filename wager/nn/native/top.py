"""The best tokens of every row of scores with their log-probabilities, natively.

Used by the drafters through the network they draft with; scores may be noised before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wager.nn.native.library import Library

MAX_RANKS = 64
_PER_THREAD = 1 << 16  # scores below which one more thread costs more than it does


class NativeTop:
    """Calls the library; `fits` says for what it may be asked."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def fits(self, scores: Tensor, ranks: int) -> bool:
        return ranks <= MAX_RANKS and scores.dtype == torch.float32 and scores.is_contiguous()

    def __call__(self, scores: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities [rows, ranks] and token ids, the best first."""
        rows, columns = scores.shape
        logprobs, token_ids = torch.empty(rows, ranks), torch.empty(rows, ranks, dtype=torch.int64)
        code = self._library.top(
            scores.data_ptr(),
            rows,
            columns,
            ranks,
            logprobs.data_ptr(),
            token_ids.data_ptr(),
            max(1, min(torch.get_num_threads(), rows * columns // _PER_THREAD)),
        )
        assert code == 0
        return logprobs, token_ids
