"""Numbers of tokens in a pass: how they are sent to the device, and which of them a verdict moves.

Called by graphs.py; knows no passes and no caches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wager.nn.kernels.staging import StagingBuffer


def send_places(numbers: StagingBuffer, places: Sequence[int]) -> Tensor:
    """The places on the device; work in flight is waited for only where they do not fit the buffer."""
    if len(places) > numbers.host.shape[1]:
        return torch.tensor(places, device=numbers.device.device)
    numbers.wait()
    numbers.host[0, : len(places)] = places
    numbers.push()
    return numbers.device[0, : len(places)]


def moves_of(starts: Sequence[int], kept: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """The tokens that a verdict moves: their places in the pass, and the places to which they move.

    `kept` are the places within each row that stay, ascending; they move to the beginning of their row.
    """
    src: list[int] = []
    dst: list[int] = []
    for start, own in zip(starts, kept, strict=False):
        if own[-1] >= len(own):
            for place, index in enumerate(own):
                if index != place:
                    src.append(start + index)
                    dst.append(start + place)
    return src, dst
