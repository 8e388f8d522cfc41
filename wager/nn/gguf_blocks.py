"""The quantised blocks of GGUF tensors, decoded to integer codes with a scale for each group of inputs.

Every type becomes the same form: weight = code * scale, plus an offset for some types. Codes, scales and
products are exact in float32, so the values are those of the `gguf` package, bit for bit. Native passes
keep this form (native/pack.py); everything else uses `weight`. This module knows neither files nor models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["GroupedWeight", "decode_blocks", "encode_q4_1", "encode_q8_0", "join_grouped", "round_to_4_bits"]

_Blocks = Callable[[Tensor], "GroupedWeight"]


class GroupedWeight(NamedTuple):
    """A weight [out, in] as codes, with scales and offsets [out, in / group] in float32."""

    codes: Tensor
    """Integers in 8 bits with sign."""
    scales: Tensor
    offsets: Tensor | None
    bits: int
    """The number of bits that a code needs; codes of 4 bits are 0 to 15, or -8 to 7 without offsets."""

    @property
    def group(self) -> int:
        return self.codes.shape[1] // self.scales.shape[1]

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    @property
    def nbytes(self) -> int:
        offsets = 0 if self.offsets is None else self.offsets.nbytes
        return self.codes.nbytes + self.scales.nbytes + offsets

    @property
    def weight(self) -> Tensor:
        """Returns the float32 weight that this represents."""
        groups = self.codes.view(*self.scales.shape, self.group).float().mul_(self.scales[..., None])
        if self.offsets is not None:
            groups.add_(self.offsets[..., None])
        return groups.view(self.shape)

    def rows(self, ids: Tensor) -> Tensor:
        """Returns rows of the float32 weight; raises IndexError for a row that does not exist."""
        return self.each(lambda part: part.index_select(0, ids)).weight

    def each(self, change: Callable[[Tensor], Tensor]) -> GroupedWeight:
        """Applies a change of rows to codes, scales and offsets."""
        offsets = None if self.offsets is None else change(self.offsets)
        return self._replace(codes=change(self.codes), scales=change(self.scales), offsets=offsets)

    def regrouped(self, group: int) -> GroupedWeight:
        """Returns the same weight in smaller groups."""
        times = self.group // group
        return self.each(lambda part: part if part is self.codes else part.repeat_interleave(times, dim=1))

    def with_offsets(self) -> GroupedWeight:
        """Returns the same weight with offsets and, where its codes have 4 bits, with codes from 0 on."""
        if self.offsets is not None:
            return self
        if self.bits == 4:
            return self._replace(codes=self.codes + 8, offsets=self.scales * -8)
        return self._replace(offsets=torch.zeros_like(self.scales))


def join_grouped(weights: Sequence[GroupedWeight]) -> GroupedWeight:
    """Stacks weights along the outputs; weights of different forms get the widest one."""
    if len({(one.group, one.bits, one.offsets is None) for one in weights}) > 1:
        group = min(one.group for one in weights)
        weights = [one.regrouped(group).with_offsets() for one in weights]
        bits = max(one.bits for one in weights)
        weights = [one._replace(bits=bits) for one in weights]
    first = weights[0]
    offsets = (
        None
        if first.offsets is None
        else torch.cat([one.offsets for one in weights if one.offsets is not None])
    )
    return GroupedWeight(
        torch.cat([one.codes for one in weights]),
        torch.cat([one.scales for one in weights]),
        offsets,
        first.bits,
    )


def decode_blocks(stored: Tensor, type_name: str, shape: tuple[int, int]) -> GroupedWeight:
    """Returns the weight of a quantised tensor, given its bytes [blocks, bytes of a block]."""
    parts = _DECODERS[type_name](stored)
    rows, columns = shape
    offsets = None if parts.offsets is None else parts.offsets.reshape(rows, -1)
    return GroupedWeight(
        parts.codes.reshape(rows, columns), parts.scales.reshape(rows, -1), offsets, parts.bits
    )


def _half(stored: Tensor, start: int) -> Tensor:
    """Returns the 16-bit floats at a place of every block, in float32: [blocks, 1]."""
    return stored[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor, width: int) -> Tensor:
    """Returns 4-bit codes: of each run of `width` bytes first the lower halves, then the upper ones."""
    runs = packed.view(packed.shape[0], -1, 1, width)
    return torch.cat((runs & 15, runs >> 4), dim=2).view(packed.shape[0], -1)


def _q8_0(stored: Tensor) -> GroupedWeight:
    return GroupedWeight(stored[:, 2:].view(torch.int8), _half(stored, 0), None, 8)


def _q4_0(stored: Tensor) -> GroupedWeight:
    codes = _nibbles(stored[:, 2:].contiguous(), 16).view(torch.int8) - 8
    return GroupedWeight(codes, _half(stored, 0), None, 4)


def _q4_1(stored: Tensor) -> GroupedWeight:
    codes = _nibbles(stored[:, 4:].contiguous(), 16).view(torch.int8)
    return GroupedWeight(codes, _half(stored, 0), _half(stored, 2), 4)


def _fifth_bits(stored: Tensor) -> Tensor:
    """Returns bit i of four bytes for weight i of a block, as 16 or 0."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return (((stored[:, :, None] >> shifts) & 1) << 4).view(stored.shape[0], -1)


def _q5_0(stored: Tensor) -> GroupedWeight:
    codes = _nibbles(stored[:, 6:].contiguous(), 16) | _fifth_bits(stored[:, 2:6])
    return GroupedWeight(codes.view(torch.int8) - 16, _half(stored, 0), None, 5)


def _q5_1(stored: Tensor) -> GroupedWeight:
    codes = _nibbles(stored[:, 8:].contiguous(), 16) | _fifth_bits(stored[:, 4:8])
    return GroupedWeight(codes.view(torch.int8), _half(stored, 0), _half(stored, 2), 5)


class _KScales(NamedTuple):
    scales: Tensor
    offsets: Tensor


def _k_scales(stored: Tensor) -> _KScales:
    """Returns the eight scales and offsets of a block of Q4_K or Q5_K, whose first 16 bytes hold them.

    Twelve bytes have the 6-bit factors: the lower six bits of the first eight bytes, and for the other four
    factors the last four bytes with the upper two bits of the first eight.
    """
    factors, lowest, last = stored[:, 4:8], stored[:, 8:12], stored[:, 12:16]
    scales = torch.cat((factors & 63, (last & 15) | ((factors >> 2) & 48)), dim=1)
    offsets = torch.cat((lowest & 63, (last >> 4) | ((lowest >> 2) & 48)), dim=1)
    return _KScales(_half(stored, 0) * scales.float(), -(_half(stored, 2) * offsets.float()))


def _q4_k(stored: Tensor) -> GroupedWeight:
    scales, offsets = _k_scales(stored)
    return GroupedWeight(_nibbles(stored[:, 16:].contiguous(), 32).view(torch.int8), scales, offsets, 4)


def _q5_k(stored: Tensor) -> GroupedWeight:
    scales, offsets = _k_scales(stored)
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    fifth = (((stored[:, None, 16:48] >> shifts) & 1) << 4).view(stored.shape[0], -1)
    codes = _nibbles(stored[:, 48:].contiguous(), 32) | fifth
    return GroupedWeight(codes.view(torch.int8), scales, offsets, 5)


def _q6_k(stored: Tensor) -> GroupedWeight:
    low = _nibbles(stored[:, :128].contiguous(), 64)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    runs = stored[:, 128:192].contiguous().view(-1, 2, 1, 32)
    high = (((runs >> shifts) & 3) << 4).view(stored.shape[0], -1)
    factors = stored[:, 192:208].contiguous().view(torch.int8).float()
    return GroupedWeight((low | high).view(torch.int8) - 32, _half(stored, 208) * factors, None, 6)


_DECODERS: dict[str, _Blocks] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def encode_q8_0(weight: Tensor) -> Tensor:
    """Returns the blocks of Q8_0 [blocks, 34] of a weight whose rows are multiples of 32.

    Halves are rounded away from zero, as in llama.cpp.
    """
    groups = weight.float().reshape(-1, 32)
    scales = groups.abs().amax(dim=1, keepdim=True) / 127
    inverse = torch.where(scales == 0, 0.0, 1 / scales)
    scaled = groups * inverse
    whole = scaled.abs().floor()
    codes = (whole + (2 * (scaled.abs() - whole)).floor()) * scaled.sign()
    halves = scales.to(torch.float16).view(torch.uint8)
    return torch.cat((halves, codes.to(torch.int8).view(torch.uint8)), dim=1)


def round_to_4_bits(weight: Tensor) -> GroupedWeight:
    """Returns a weight in codes of 4 bits with scales and offsets that are float16, as Q4_1 has them.

    In each group of 32 the range of the codes is narrowed as far as that lowers the squared error. Inputs
    are padded with zeros to whole groups.
    """
    rows, inputs = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -inputs % 32))
    groups = padded.view(rows, -1, 32)
    low, high = groups.amin(dim=2, keepdim=True), groups.amax(dim=2, keepdim=True)
    codes, scales, offsets = _to_4_bits(groups, low, high)
    least = _squared_error(groups, codes, scales, offsets)
    for share in _NARROWED:
        middle, half = (low + high) / 2, (high - low) / 2 * share
        parts = _to_4_bits(groups, middle - half, middle + half)
        error = _squared_error(groups, *parts)
        better = error < least
        least = torch.where(better, error, least)
        codes, scales, offsets = (
            torch.where(better, new, old) for new, old in zip(parts, (codes, scales, offsets), strict=True)
        )
    return GroupedWeight(codes.to(torch.int8).view(rows, -1), scales[..., 0], offsets[..., 0], 4)


def _to_4_bits(groups: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns codes of numbers between `low` and `high`, with scales and offsets that are float16."""
    scales, offsets = _as_half((high - low) / 15), _as_half(low)
    steps = torch.where(scales > 0, scales, torch.ones_like(scales))
    return ((groups - offsets) / steps).round_().clamp_(0, 15), scales, offsets


def _squared_error(groups: Tensor, codes: Tensor, scales: Tensor, offsets: Tensor) -> Tensor:
    return (codes * scales + offsets - groups).square_().sum(dim=2, keepdim=True)


_NARROWED = (0.96, 0.92, 0.88, 0.84, 0.8)
"""Shares of a group's range that are tried."""


def _as_half(numbers: Tensor) -> Tensor:
    """Returns the nearest float16 numbers in float32."""
    return numbers.to(torch.float16).float()


def encode_q4_1(weight: Tensor) -> Tensor:
    """Returns the blocks of Q4_1 [blocks, 20] of a weight whose rows are multiples of 32."""
    found = round_to_4_bits(weight)
    assert found.offsets is not None
    parts = torch.stack((found.scales, found.offsets), dim=-1).to(torch.float16)
    codes = found.codes.view(-1, 2, 16).view(torch.uint8)
    return torch.cat((parts.reshape(-1, 2).view(torch.uint8), codes[:, 0] | (codes[:, 1] << 4)), dim=1)
