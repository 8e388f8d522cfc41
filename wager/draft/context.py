"""How far a block drafter knows one request: tokens in its cache, and features that wait to join them.

Features are copied when they are a part of a larger tensor, so that their pass can be freed. Knows no
network and no pages; used by `block.py`.
"""

from __future__ import annotations

from collections import deque

from torch import Tensor


class FeatureContext:
    """The first `watermark` tokens are in the drafter's cache, `num_waiting` more have features here."""

    def __init__(self, watermark: int) -> None:
        self.watermark = watermark
        self.num_waiting = 0
        self._chunks: deque[Tensor] = deque()

    @property
    def num_known(self) -> int:
        return self.watermark + self.num_waiting

    def add(self, start: int, features: Tensor, *, as_is: bool = False) -> None:
        """Features [tokens, size] of the tokens from `start` on; those known already are left out.

        `as_is`: kept without a copy, though they may be a part of a larger tensor.

        Behind a gap nothing is stored: a context with a hole is of no use, and stays short until the request
        is adopted anew.
        """
        known = self.num_known - start
        if 0 <= known < len(features):
            own = features[known:] if known else features
            self._chunks.append(own if as_is else _owned(own))
            self.num_waiting += len(features) - known

    def before(self, stop: int) -> list[Tensor]:
        """The waiting features of tokens before `stop`, in order."""
        chunks, at = [], self.watermark
        for chunk in self._chunks:
            if at >= stop:
                break
            chunks.append(chunk[: stop - at])
            at += len(chunk)
        return chunks

    def advance(self, stop: int) -> None:
        """The features before `stop` are in the cache now: drop them."""
        left = stop - self.watermark
        self.watermark, self.num_waiting = stop, self.num_waiting - left
        while left:
            chunk = self._chunks.popleft()
            if len(chunk) > left:
                self._chunks.appendleft(chunk[left:])
            left -= min(left, len(chunk))


def _owned(features: Tensor) -> Tensor:
    """A tensor that keeps no larger one alive: itself where it has its memory for itself, else a copy."""
    if features.untyped_storage().nbytes() == features.nbytes:
        return features
    return features.clone()
