"""The context of one request in a block drafter: tokens in its cache, and features that wait to be read in.

Features that are part of a larger tensor are copied, so that the tensor can be freed. If a tensor was made
for all rows of a pass, its lines are recorded instead of copied. Knows no network and no pages; used by
block.py.
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
    """The context of one request.

    The first `watermark` tokens are in the drafter's cache; the features of `num_waiting` more are here.
    """

    def __init__(self, watermark: int) -> None:
        self.watermark = watermark
        self.num_waiting = 0
        self._chunks: deque[Lines] = deque()

    @property
    def num_known(self) -> int:
        return self.watermark + self.num_waiting

    def add(self, start: int, features: Tensor) -> None:
        """Takes in features [tokens, size] of the tokens from `start` on, without those that are known
        already.

        Behind a gap nothing is stored: a context with a gap cannot be used, and stays as it is until the
        request is adopted again.
        """
        known, count = self.watermark + self.num_waiting - start, features.shape[0]
        if 0 <= known < count:
            own = _owned(features[known:] if known else features)
            self._chunks.append(Lines(own, 0, count - known))
            self.num_waiting += count - known

    def add_lines(self, start: int, features: Tensor, lines: range) -> None:
        """Takes in lines of a tensor that other requests use as well; they are not copied."""
        known, count = self.watermark + self.num_waiting - start, len(lines)
        if 0 <= known < count:
            self._chunks.append(Lines(features, lines.start + known, count - known))
            self.num_waiting += count - known

    def lines_before(self, stop: int) -> list[Lines]:
        """Returns the lines of the waiting features of tokens before `stop`, in order."""
        found, left = [], stop - self.watermark
        for chunk in self._chunks:
            if left <= 0:
                break
            found.append(chunk if chunk.num_tokens <= left else chunk._replace(num_tokens=left))
            left -= chunk.num_tokens
        return found

    def before(self, stop: int) -> list[Tensor]:
        """Returns the waiting features of tokens before `stop`, in order."""
        return [own.features[own.first : own.first + own.num_tokens] for own in self.lines_before(stop)]

    def skip_to(self, watermark: int) -> None:
        """The tokens before `watermark` are in the cache now, and their features never waited here.

        Precondition: no features wait.
        """
        assert not self.num_waiting
        self.watermark = watermark

    def advance(self, stop: int) -> None:
        """Drops the features of tokens before `stop`, which are in the cache now."""
        left = stop - self.watermark
        self.watermark, self.num_waiting = stop, self.num_waiting - left
        while left:
            features, first, count = self._chunks.popleft()
            if count > left:
                self._chunks.appendleft(Lines(features, first + left, count - left))
            left -= min(left, count)


def _owned(features: Tensor) -> Tensor:
    """Returns a tensor that keeps no larger one alive: itself if it owns its memory, otherwise a copy."""
    if features.untyped_storage().nbytes() == features.nbytes:
        return features
    return features.clone()
