"""The target's choices on a CPU: top-k, top-p, min-p and noise in native code.

Steps of their own and native steps (steps.py) choose with the same code, so a text does not depend on how its
steps were taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref

import numpy as np
import torch
from torch import Tensor

from wager.nn.native.library import Library
from wager.nn.native.steps import Sampling
from wager.records import SamplingParams

_LONG = 0xFFFFFFFFFFFFFFFF


def sampling_of(params: SamplingParams, seed: int) -> Sampling:
    """Returns how a request chooses its tokens, without what needs the host: penalties, bias, grammars."""
    return Sampling(seed & _LONG, params.temperature, params.top_p, params.min_p, max(params.top_k, 0))


class NativeChooser:
    """Calls the library."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def fits(self, logits: Tensor) -> bool:
        return logits.is_cpu and logits.dtype == torch.float32 and logits.is_contiguous()

    def __call__(
        self, logits: Tensor, params: SamplingParams, seed: int, positions: Sequence[int]
    ) -> list[int]:
        """Returns the choice from every row of scores, each for its own position."""
        count, vocab = logits.shape
        places = np.array(positions, np.int64)
        tokens, highest = np.empty(count, np.int64), np.empty(count, np.float32)
        self._library.choose(
            logits.data_ptr(),
            count,
            vocab,
            byref(sampling_of(params, seed)),
            places.ctypes.data,
            tokens.ctypes.data,
            highest.ctypes.data,
        )
        found: list[int] = tokens.tolist()
        return found
