"""Gumbel noise for the scores of networks, row by row; bit-identical to `tree/noise.py`, and fast.

Each row is a pure function of (seed, absolute position): hash words are exact integers, and logarithms are
computed in float64 and rounded once. The drafter and the target use the same positions, and use them again in
the next step, so rows are cached on a CPU; on other devices they are computed anew. `draft/` and the target's
sampler use this. It does not know temperatures or scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.tree.noise import position_key

UInt32Array = npt.NDArray[np.uint32]
NoiseKey = tuple[int, int]
"""(seed, absolute position)."""

_WORD = 0xFFFFFFFF
_LONG = 0xFFFFFFFFFFFFFFFF
_TOKEN_STEP = 0xC2B2AE3D
# The first access to a memory page is slow, so the cache is only as large as a batch of drafts needs.
_CACHE_BYTES, _CACHE_ROWS = 32 << 20, 256
# Elements per group: small enough for a core's cache, or for the memory of a device.
_CPU_GROUP = 1 << 14
_DEVICE_GROUP = 1 << 23

_ROUNDS = ((np.uint32(16), np.uint32(0x85EBCA6B)), (np.uint32(13), np.uint32(0xC2B2AE35)))
_LAST_SHIFT = np.uint32(16)
_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


class NoiseSource:
    """Noise rows for one vocabulary on one device. It is not safe for use by several threads."""

    def __init__(
        self,
        vocab_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        capacity: int | None = None,
    ) -> None:
        """`capacity` is the number of rows cached on a CPU; None: 32 MiB or at least 256 rows; 0: no
        cache.
        """
        assert dtype in _DTYPES, f"noise in {dtype}"
        self.vocab_size, self.device, self.dtype = vocab_size, torch.device(device), dtype
        row_bytes = vocab_size * dtype.itemsize
        wanted = max(_CACHE_ROWS, _CACHE_BYTES // row_bytes) if capacity is None else capacity
        self._cache = _RowCache(wanted, vocab_size, dtype) if self.device.type == "cpu" else None

    def rows(self, keys: Sequence[NoiseKey]) -> Tensor:
        """Returns standard Gumbel noise [keys, vocab] for (seed, position) pairs; the caller owns
        the result.
        """
        if self._cache is not None:
            return torch.from_numpy(self._cache.rows([(seed & _LONG, place) for seed, place in keys]))
        noise = torch.empty(len(keys), self.vocab_size, dtype=self.dtype, device=self.device)
        words = torch.from_numpy(position_keys(keys).astype(np.int64)).to(self.device)
        group = max(1, _DEVICE_GROUP // self.vocab_size)
        for start in range(0, len(keys), group):
            uniform = device_words(words[start : start + group], self.vocab_size).double()
            uniform.add_(0.5).mul_(2.0**-32)
            noise[start : start + group] = uniform.log_().neg_().log_().neg_()
        return noise


class _RowCache:
    """The most recently used rows, in one array."""

    def __init__(self, capacity: int, vocab_size: int, dtype: torch.dtype) -> None:
        self._rows = np.empty((capacity, vocab_size), _DTYPES[dtype])
        # The order of this dict is the order of use: a row that is used again moves to the end.
        self._index_of: dict[NoiseKey, int] = {}
        self._steps = np.arange(vocab_size, dtype=np.uint32) * np.uint32(_TOKEN_STEP)
        self._workspace = _Workspace(min(vocab_size, _CPU_GROUP))

    def rows(self, keys: Sequence[NoiseKey]) -> npt.NDArray[np.floating]:
        wanted = dict.fromkeys(keys)
        if len(wanted) > len(self._rows):
            noise = np.empty((len(keys), len(self._steps)), self._rows.dtype)
            self._compute(keys, noise)
            return noise
        missing = [key for key in wanted if not self._touch(key)]
        if missing:
            self._compute(missing, [self._rows[self._place(key)] for key in missing])
        return self._rows[[self._index_of[key] for key in keys]]

    def _touch(self, key: NoiseKey) -> bool:
        index = self._index_of.pop(key, None)
        if index is None:
            return False
        self._index_of[key] = index
        return True

    def _place(self, key: NoiseKey) -> int:
        """Returns a free row for `key`, else the least recently used row, which is never one of the current
        call.
        """
        index = len(self._index_of)
        if index == len(self._rows):
            index = self._index_of.pop(next(iter(self._index_of)))
        self._index_of[key] = index
        return index

    def _compute(self, keys: Sequence[NoiseKey], rows: Iterable[npt.NDArray[np.floating]]) -> None:
        """Fills one row per key."""
        for (first, second), row in zip(position_keys(keys), rows, strict=True):
            for start in range(0, len(row), _CPU_GROUP):
                part = slice(start, start + _CPU_GROUP)
                self._workspace.fill(self._steps[part], first, second, row[part])


class _Workspace:
    """Reused arrays for one group of tokens; allocating them each time costs more than the arithmetic."""

    def __init__(self, size: int) -> None:
        self._bits, self._shifted = np.empty(size, np.uint32), np.empty(size, np.uint32)
        self._uniform = np.empty(size)

    def fill(
        self, steps: UInt32Array, first: np.uint32, second: np.uint32, out: npt.NDArray[np.floating]
    ) -> None:
        """Computes the noise of the tokens in `steps` at the position with these key words."""
        size = len(steps)
        bits, shifted, uniform = self._bits[:size], self._shifted[:size], self._uniform[:size]
        np.add(steps, first, out=bits)
        _mix(bits, shifted)
        bits ^= second
        _mix(bits, shifted)
        np.add(bits, 0.5, out=uniform)
        uniform *= 2.0**-32
        np.log(uniform, out=uniform)
        np.negative(uniform, out=uniform)
        np.log(uniform, out=uniform)
        np.negative(uniform, out=out, casting="same_kind")


def position_keys(keys: Sequence[NoiseKey]) -> UInt32Array:
    """Returns [keys, 2]: `tree.noise.position_key` of many (seed, position) pairs."""
    if len(keys) < 16:  # plain integers are faster than arrays for few keys
        words = [position_key(seed, place) for seed, place in keys]
        return np.array(words, np.uint32).reshape(-1, 2)
    seeds = np.array([seed & _LONG for seed, _ in keys], np.uint64)
    places = np.array([place & _WORD for _, place in keys], np.uint32)
    low, high = (seeds & np.uint64(_WORD)).astype(np.uint32), (seeds >> np.uint64(32)).astype(np.uint32)
    first = _mix(_mix(low + np.uint32(0x9E3779B9)) ^ high)
    second = _mix(_mix(high + np.uint32(0x7F4A7C15)) ^ low)
    first = _mix(first + places * np.uint32(0x9E3779B1))
    second = _mix(second ^ places * np.uint32(0x85EBCA77))
    return np.stack((first, second), axis=1)


def device_words(keys: Tensor, vocab_size: int) -> Tensor:
    """Returns the hash words [rows, vocab] as int64, from position keys [rows, 2] on any device."""
    steps = torch.arange(vocab_size, device=keys.device).mul_(_TOKEN_STEP)
    bits = (steps + keys[:, :1]) & _WORD
    return _mix_tensor(_mix_tensor(bits).bitwise_xor_(keys[:, 1:]))


def _mix(words: UInt32Array, shifted: UInt32Array | None = None) -> UInt32Array:
    """Applies the recipe's mix in place; `shifted` is a workspace of the same size."""
    shifted = np.empty_like(words) if shifted is None else shifted
    for shift, factor in _ROUNDS:
        np.right_shift(words, shift, out=shifted)
        words ^= shifted
        words *= factor
    np.right_shift(words, _LAST_SHIFT, out=shifted)
    words ^= shifted
    return words


def _mix_tensor(words: Tensor) -> Tensor:
    """Applies the recipe's mix in place to non-negative int64 words.

    NOTE: A product of two words may exceed 2**63; it wraps, and its low word is still correct.
    """
    for shift, factor in _ROUNDS:
        words ^= words >> int(shift)
        words.mul_(int(factor)).bitwise_and_(_WORD)
    words ^= words >> int(_LAST_SHIFT)
    return words
