"""Selects the best tokens of every row of scores with their log-probabilities, in native code.

The drafters use it through their network; the scores may contain noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wager.nn.native.library import Library, num_threads

MAX_RANKS = 64
_PER_THREAD = 1 << 16  # number of scores per thread below which another thread costs more than it saves


class NativeTop:
    """Calls the library; `fits` says whether it supports a request."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def fits(self, scores: Tensor, ranks: int) -> bool:
        return ranks <= MAX_RANKS and scores.dtype == torch.float32 and scores.is_contiguous()

    def __call__(self, scores: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
        """Returns log-probabilities [rows, ranks] and token ids, best first."""
        rows, columns = scores.shape
        logprobs, token_ids = torch.empty(rows, ranks), torch.empty(rows, ranks, dtype=torch.int64)
        code = self._library.top(
            scores.data_ptr(),
            rows,
            columns,
            ranks,
            logprobs.data_ptr(),
            token_ids.data_ptr(),
            max(1, min(num_threads(), rows * columns // _PER_THREAD)),
        )
        assert code == 0
        return logprobs, token_ids
