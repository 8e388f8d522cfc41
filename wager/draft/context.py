"""How far a block drafter knows one request: tokens in its cache, and features that wait to join them.

Features that are a part of a larger tensor are copied, so that their pass can be freed; where one tensor was
made for all rows of a pass, its lines are remembered instead. Knows no network and no pages; used by
`block.py`.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from torch import Tensor


class Lines(NamedTuple):
    """Consecutive lines of a tensor of features."""

    features: Tensor
    first: int
    num_tokens: int


class FeatureContext:
    """The first `watermark` tokens are in the drafter's cache, `num_waiting` more have features here."""

    def __init__(self, watermark: int) -> None:
        self.watermark = watermark
        self.num_waiting = 0
        self._chunks: deque[Lines] = deque()

    @property
    def num_known(self) -> int:
        return self.watermark + self.num_waiting

    def add(self, start: int, features: Tensor) -> None:
        """Features [tokens, size] of the tokens from `start` on; those known already are left out.

        Behind a gap nothing is stored: a context with a hole is of no use, and stays short until the request
        is adopted anew.
        """
        known, count = self.watermark + self.num_waiting - start, features.shape[0]
        if 0 <= known < count:
            own = _owned(features[known:] if known else features)
            self._chunks.append(Lines(own, 0, count - known))
            self.num_waiting += count - known

    def add_lines(self, start: int, features: Tensor, lines: range) -> None:
        """The same for lines of a tensor that is shared with other requests: it is kept as it is."""
        known, count = self.watermark + self.num_waiting - start, len(lines)
        if 0 <= known < count:
            self._chunks.append(Lines(features, lines.start + known, count - known))
            self.num_waiting += count - known

    def lines_before(self, stop: int) -> list[Lines]:
        """Where the waiting features of tokens before `stop` lie, in order."""
        found, left = [], stop - self.watermark
        for chunk in self._chunks:
            if left <= 0:
                break
            found.append(chunk if chunk.num_tokens <= left else chunk._replace(num_tokens=left))
            left -= chunk.num_tokens
        return found

    def before(self, stop: int) -> list[Tensor]:
        """The waiting features of tokens before `stop`, in order."""
        return [own.features[own.first : own.first + own.num_tokens] for own in self.lines_before(stop)]

    def advance(self, stop: int) -> None:
        """The features before `stop` are in the cache now: drop them."""
        left = stop - self.watermark
        self.watermark, self.num_waiting = stop, self.num_waiting - left
        while left:
            features, first, count = self._chunks.popleft()
            if count > left:
                self._chunks.appendleft(Lines(features, first + left, count - left))
            left -= min(left, count)


def _owned(features: Tensor) -> Tensor:
    """A tensor that keeps no larger one alive: itself where it has its memory for itself, else a copy."""
    if features.untyped_storage().nbytes() == features.nbytes:
        return features
    return features.clone()
