"""Counter-based noise: a pure function of (seed, absolute position, token id), the same on every device.

Recipe, on 32-bit words that wrap (W = 2**32; in torch: int64, masked with W - 1 after each + and *):
    mix(x)    x ^= x >> 16; x *= 0x85EBCA6B; x ^= x >> 13; x *= 0xC2B2AE35; x ^= x >> 16  (from murmur3)
    seed      lo, hi = its words; s1 = mix(mix(lo + 0x9E3779B9) ^ hi); s2 = mix(mix(hi + 0x7F4A7C15) ^ lo)
    position  k1 = mix(s1 + position * 0x9E3779B1); k2 = mix(s2 ^ (position * 0x85EBCA77))
    token     h = mix(mix(token * 0xC2B2AE3D + k1) ^ k2); u = (h + 0.5) / W in float64; noise = -log(-log(u))
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_WORD = 0xFFFFFFFF
_LONG = 0xFFFFFFFFFFFFFFFF

UInt32Array = npt.NDArray[np.uint32]


class PositionKey(NamedTuple):
    """The two words k1 and k2 of the recipe, derived from a seed and a position."""

    first: int
    second: int


def gumbel(seed: int, position: int | npt.NDArray[np.integer], vocab_size: int) -> npt.NDArray[np.float64]:
    """Returns standard Gumbel noise, [vocab] for one position or [..., vocab] for an array of positions."""
    bits = noise_bits(seed, position, np.arange(vocab_size))
    return np.asarray(-np.log(-np.log((bits + 0.5) / 2.0**32)))


def noise_bits(
    seed: int, position: int | npt.NDArray[np.integer], token_ids: npt.NDArray[np.integer]
) -> UInt32Array:
    """Returns the hash word h of each token, [..., tokens] over the shape of `position`."""
    places = np.asarray(position)
    keys = np.array([position_key(seed, int(place)) for place in places.flat], np.uint32)
    keys = keys.reshape(*places.shape, 1, 2)
    tokens = token_ids.astype(np.uint32) * np.uint32(0xC2B2AE3D)
    return _mix_words(_mix_words(tokens + keys[..., 0]) ^ keys[..., 1])


def position_key(seed: int, position: int) -> PositionKey:
    """Combines a seed (taken modulo 2**64) and an absolute position into two words."""
    low, high = seed & _WORD, seed >> 32 & _WORD
    first = _mix(_mix(low + 0x9E3779B9) ^ high)
    second = _mix(_mix(high + 0x7F4A7C15) ^ low)
    return PositionKey(_mix(first + position * 0x9E3779B1), _mix(second ^ position * 0x85EBCA77))


def derive_seed(seed: int, index: int) -> int:
    """Returns the seed of choice `index`: splitmix64 of (seed, index), where choice 0 keeps the seed."""
    if index == 0:
        return seed & _LONG
    mixed = (seed + index * 0x9E3779B97F4A7C15) & _LONG
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _LONG
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _LONG
    return mixed ^ mixed >> 31


def _mix(word: int) -> int:
    word &= _WORD
    word = ((word ^ word >> 16) * 0x85EBCA6B) & _WORD
    word = ((word ^ word >> 13) * 0xC2B2AE35) & _WORD
    return word ^ word >> 16


def _mix_words(words: UInt32Array) -> UInt32Array:
    words = (words ^ words >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    words = (words ^ words >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return words ^ words >> np.uint32(16)
