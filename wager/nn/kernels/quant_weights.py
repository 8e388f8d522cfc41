"""Weights rounded to 8 or 4 bits, with a scale for each row and group of inputs, in the layout of the
product.

Values are integers around zero, stored with an offset so that none is negative. They are stored in 16-bit
words, as wide as the numbers they become, so that a tile of words goes to the tensor cores like a tile of
bfloat16. A word has the values of two or four ranges of inputs, and each range is a product of its own.
Chunks of inputs come first, then rows: what a program reads at a time is contiguous. This is plain torch and
knows no product; `quant_matmul.py` multiplies.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BITS = (8, 4)
GROUPS = (64, 128)
DEFAULT_GROUP = {8: 128, 4: 64}
"""Group sizes by error: at 4 bits the smaller group has a fifteenth less error for 3 % more bytes."""
# Step sizes to try at 4 bits, relative to the one that covers a group's largest value. Clipping this value a
# little gives all others finer steps.
_CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
_SLICE_VALUES = 1 << 24


class QuantWeight(NamedTuple):
    """A quantised weight [out, in]: value = (bits - offset) * scale."""

    packed: Tensor
    """int16 [chunks, out, group / 2].

    The bits of a word, from the lowest, belong to the first half of the chunk's first group, to its second
    half, then to the halves of the second group. Inputs beyond the last are zero.
    """
    scales: Tensor
    """[chunks, out, groups of a chunk], 32 bits together: one float32, or two bfloat16.

    The rounding of scales to bfloat16 adds no error, because the values are chosen for the rounded scale.
    """
    bits: int
    group: int
    num_in: int

    @property
    def num_out(self) -> int:
        return self.packed.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_out, self.num_in

    @property
    def chunk(self) -> int:
        """Number of inputs of a chunk: one group at 8 bits, two at 4."""
        return self.group * 8 // self.bits

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scales.nbytes

    @property
    def scale_words(self) -> Tensor:
        """The scales of a chunk in one word: int32 [chunks, out]."""
        return self.scales.view(torch.int32)[:, :, 0]

    def check(self) -> None:
        """Asserts that the sizes agree and that rows of a chunk are dense; they may be some of a larger
        weight's.
        """
        num_chunks, words = -(-self.num_in // self.chunk), self.group // 2
        assert self.packed.shape == (num_chunks, self.num_out, words), f"{tuple(self.packed.shape)}"
        assert self.scales.shape == (num_chunks, self.num_out, 8 // self.bits), f"{tuple(self.scales.shape)}"
        assert self.packed.stride()[1:] == (words, 1) and self.scales.stride()[1:] == (8 // self.bits, 1)


def quantise(weight: Tensor, bits: int, group: int | None = None) -> QuantWeight:
    """Returns the nearest quantised weight, on the weight's device; it works in slices to limit memory."""
    group = DEFAULT_GROUP[bits] if group is None else group
    assert bits in BITS and group in GROUPS, f"{bits} bits in groups of {group}"
    (num_out, num_in), device, chunk = weight.shape, weight.device, group * 8 // bits
    num_chunks = -(-num_in // chunk)
    packed = torch.empty((num_chunks, num_out, group // 2), dtype=torch.int16, device=device)
    kind = torch.float32 if bits == 8 else torch.bfloat16
    scales = torch.empty((num_chunks, num_out, 8 // bits), dtype=kind, device=device)
    rows = max(1, _SLICE_VALUES // max(1, num_chunks * chunk))
    for start in range(0, num_out, rows):
        part = slice(start, start + rows)
        groups = F.pad(weight[part].float(), (0, num_chunks * chunk - num_in)).unflatten(1, (-1, group))
        steps, values = _by_largest(groups) if bits == 8 else _by_search(groups)
        scales[:, part] = steps.unflatten(1, (num_chunks, -1)).transpose(0, 1)
        packed[:, part] = _words(values, bits).transpose(0, 1)
    return QuantWeight(packed, scales, bits, group, num_in)


def dequantised(weight: QuantWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns the weight [out, in] that this represents; float32 and float64 hold it without rounding."""
    offset, mask = 1 << weight.bits - 1, (1 << weight.bits) - 1
    shifts = torch.arange(0, 16, weight.bits, device=weight.packed.device)
    parts = weight.packed[:, :, None, :].to(torch.int32) >> shifts[:, None] & mask
    groups = parts.unflatten(2, (-1, 2)).flatten(3)
    wide = (groups.to(dtype) - offset) * weight.scales.to(dtype)[:, :, :, None]
    return wide.transpose(0, 1).flatten(1)[:, : weight.num_in].contiguous()


def _by_largest(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Returns step sizes [rows, groups] for which the largest value is 127, and the integer values."""
    steps = groups.abs().amax(dim=2) / 127.0
    return steps, _values(groups, steps, -127, 127)


def _by_search(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the step size with the least squared error; negative if the largest value is positive.

    The sign matters because the negative range has one value more.
    """
    largest = groups.gather(2, groups.abs().argmax(dim=2, keepdim=True))[:, :, 0] / -8.0
    least = torch.full_like(largest, torch.inf)
    steps = torch.zeros_like(largest, dtype=torch.bfloat16)
    for clip in _CLIPS:
        tried = (largest * clip).to(torch.bfloat16)
        lost = _values(groups, tried, -8, 7).mul_(tried[:, :, None]).sub_(groups).square_().sum(dim=2)
        steps = torch.where(lost < least, tried, steps)
        least = torch.minimum(lost, least)
    return steps, _values(groups, steps, -8, 7)


def _values(groups: Tensor, steps: Tensor, low: int, high: int) -> Tensor:
    """Returns the nearest integers; zeros if the step size is zero."""
    known = torch.where(steps == 0, torch.inf, steps.float())
    return (groups / known[:, :, None]).round_().clamp_(low, high)


def _words(values: Tensor, bits: int) -> Tensor:
    """Packs [rows, groups, group] into int16 [rows, chunks, group / 2]."""
    parts = (values + (1 << bits - 1)).to(torch.uint8).unflatten(2, (2, -1))
    if bits == 4:
        parts = (parts[:, :, 0] | parts[:, :, 1] << 4).unflatten(1, (-1, 2))
    return parts.transpose(2, 3).contiguous().view(torch.int16)[..., 0]
