"""How deep to draft: what a shorter draft keeps of a whole one's worth, against the time it saves.

A whole draft, once its nodes are arranged, shows what every shorter one would have been worth: that of its
nodes which lie no deeper. So whole drafts, made from time to time, teach the worth of short ones, and a short
one that was accepted to its end asks for a whole one next. It knows neither costs nor drafters; `auto` asks
it for every draft that it makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

_NEWEST = 0.2  # share of the newest whole draft in the means
_WHOLE_EVERY = 8  # drafts
_LEAST_KEPT = 0.2  # a short draft's worth is never said to be less of the whole one's


class Reach:
    """What drafts of each depth have been worth, to one request or to all."""

    __slots__ = ("_kept", "_since", "_whole", "full")

    def __init__(self) -> None:
        self.full = 0
        """Depth of a whole draft; 0 before the first."""
        self._whole = 0.0
        self._kept: dict[int, float] = {}
        self._since = 0

    def copy(self) -> Reach:
        other = Reach()
        other.full, other._whole, other._kept = self.full, self._whole, dict(self._kept)
        return other

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths worth thinking of, besides the whole."""
        return tuple(self._kept)

    def share(self, depth: int) -> float:
        """The part of a whole draft's worth that one of this depth keeps; 0 means whole."""
        if not depth or self._whole <= 0.0:
            return 1.0
        return max(_LEAST_KEPT, self._kept.get(depth, self._whole) / self._whole)

    @property
    def wants_whole(self) -> bool:
        """Whether the next draft should be whole, to see what short ones miss."""
        return self.full == 0 or self._since >= _WHOLE_EVERY

    def drafted(self, depth: int, *, to_its_end: bool) -> None:
        """A draft was made; `to_its_end`: all of it was accepted, so more might have been."""
        self._since = 0 if not depth else self._since + 1
        if depth and to_its_end:
            self._since = _WHOLE_EVERY

    def learn(self, full: int, worth: Mapping[int, float]) -> None:
        """A whole draft of `full` depths was arranged: what its nodes down to each depth are worth."""
        if full != self.full:
            self.full, self._whole = full, worth[full]
            self._kept = {depth: worth[depth] for depth in options(full)}
        self._whole += _NEWEST * (worth[full] - self._whole)
        for depth, kept in self._kept.items():
            self._kept[depth] = kept + _NEWEST * (worth[depth] - kept)


def options(full: int) -> tuple[int, ...]:
    """Half and a quarter of a whole draft, rounded up; nothing below two guesses."""
    return tuple(depth for depth in (-(-full // 2), -(-full // 4)) if 2 <= depth < full)


class Best(NamedTuple):
    """A depth, 0 for the whole, for how many rows, and what a draft is worth net of its price."""

    depth: int
    num_rows: int
    net: float


def best_draft(reaches: Sequence[Reach], gains: Sequence[float], price: Callable[[int, int], float]) -> Best:
    """The depth that is worth most, and for how many of these rows, which come best first.

    gains: what a whole draft is worth to each row; price(depth, rows): a draft's time, in tokens. Times are
    known by octaves of rows, so only powers of two are tried, and all rows.
    """
    best = Best(0, len(gains), -math.inf)
    for depth in (0, *reaches[0].depths):
        worth = [gain * reach.share(depth) for gain, reach in zip(gains, reaches, strict=True)]
        for num_rows in _counts(len(worth)):
            net = sum(worth[:num_rows]) - price(depth, num_rows)
            if net > best.net:
                best = Best(depth, num_rows, net)
    if best.depth and any(reach.wants_whole for reach in reaches[: best.num_rows]):
        return best._replace(depth=0)  # a look at what short ones miss, out of what those are worth
    return best


def _counts(num_rows: int) -> list[int]:
    """All of them, or a power of two."""
    return [num_rows, *[1 << octave for octave in range((num_rows - 1).bit_length())]]
