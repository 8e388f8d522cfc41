"""Small numbers that a captured pass or a kernel reads: host memory to fill, and the same on the device.

One copy sends all lines. The previous copy must be complete before the memory is filled again (`wait`). It
serves callers with a few numbers per token besides the tables of a pass.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_WORD = 1 << 64


class StagingBuffer:
    """int64 numbers [lines, size]; a line may also hold float32 or int32 in its first half (`floats`)."""

    def __init__(self, lines: int, size: int, device: torch.device | str) -> None:
        is_cuda = torch.device(device).type == "cuda"
        self._host = torch.zeros(lines, size, dtype=torch.int64, pin_memory=is_cuda)
        self.host: npt.NDArray[np.int64] = self._host.numpy()
        self.device = torch.zeros(lines, size, dtype=torch.int64, device=device)
        self._sent = torch.cuda.Event() if is_cuda else None

    def host_floats(self, line: int) -> npt.NDArray[np.float32]:
        return self.host[line].view(np.float32)

    def floats(self, line: int, count: int) -> Tensor:
        return self.device[line].view(torch.float32)[:count]

    def push(self) -> None:
        """Sends the lines without waiting."""
        self.device.copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record()

    def wait(self) -> None:
        if self._sent is not None:
            self._sent.synchronize()


def signed_seed(seed: int) -> int:
    """Returns a 64-bit seed as a signed int64."""
    seed %= _WORD
    return seed - _WORD if seed >= _WORD >> 1 else seed
