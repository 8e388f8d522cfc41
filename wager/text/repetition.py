"""How much a text repeats itself: which of its n-grams occurred in it before.

A text that repeats itself is easy to guess, so speed-ups are reported with this share. Pure functions on
token ids; benchmarks, the trainer and `wager demo` call them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Tokens = Sequence[int] | npt.NDArray[np.integer]


def repeating(row: Tokens, size: int = 8) -> npt.NDArray[np.bool_]:
    """Returns which tokens of a row complete a `size`-gram that occurred in the row before."""
    seen: set[tuple[int, ...]] = set()
    found = np.zeros(len(row), bool)
    for end in range(size, len(row) + 1):
        gram = tuple(int(t) for t in row[end - size : end])
        found[end - 1] = gram in seen
        seen.add(gram)
    return found


def repeated_share(rows: Iterable[Tokens], size: int = 8) -> float:
    """Returns the share of `size`-grams in each row that occurred in the same row before."""
    found = [(int(repeating(row, size).sum()), max(len(row) - size + 1, 0)) for row in rows]
    return sum(repeated for repeated, _ in found) / max(sum(possible for _, possible in found), 1)
