"""Converts weights to the layout of the native code: panels of outputs, in float32 or a narrower form.

A published bfloat16 weight stays bfloat16, and a quantised weight of a GGUF file stays quantised: the product
widens it in a register, so the results are those of float32 with fewer bytes to read. int8 is symmetric, with
one scale per output and GROUP inputs. All weights of a network are in one memory area with large pages. This
module knows no model; passes.py uses it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from wager.nn.gguf_blocks import GroupedWeight
from wager.nn.narrow import AnyWeight
from wager.nn.native.library import Matrix

FLOATS, HALVES, BYTES, NIBBLES, CODES, SHORTS = range(6)
NAMES = ("float32", "bfloat16", "int8", "4-bit", "8-bit", "8-bit in groups of 16")
"""What each kind of stored weights is called."""
GROUP = 32
_ALIGN = 64


class Quantised(NamedTuple):
    """A weight [out, in] as int8 values and scales [out, groups]."""

    values: Tensor
    scales: Tensor

    @property
    def weight(self) -> Tensor:
        """Returns the float32 weight that this represents."""
        count = self.values.shape[1]
        return self.values.float() * self.scales.repeat_interleave(GROUP, dim=1)[:, :count]


def quantise(weight: Tensor) -> Quantised:
    """Returns the nearest int8 weight."""
    outputs, inputs = weight.shape
    groups = F.pad(weight.float(), (0, -inputs % GROUP)).view(outputs, -1, GROUP)
    scales = groups.abs().amax(dim=2) / 127.0
    steps = torch.where(scales > 0, scales, torch.ones_like(scales))
    values = (groups / steps[:, :, None]).round_().clamp_(-127, 127).to(torch.int8)
    return Quantised(values.view(outputs, -1)[:, :inputs], scales)


def dequantised(weight: Tensor) -> Tensor:
    """Returns a weight rounded to int8, in its own dtype, as plain torch uses it."""
    return quantise(weight).weight.to(weight.dtype)


def unsigned(values: Tensor) -> Tensor:
    """Returns int8 values as the native code reads them: plus 128, with inputs padded to whole groups."""
    missing = -values.shape[1] % GROUP
    return F.pad(values.to(torch.int16) + 128, (0, missing), value=128).to(torch.uint8)


def is_bfloat16(weight: Tensor) -> bool:
    """Whether every value of a float32 tensor is exactly a bfloat16."""
    return bool((weight.contiguous().view(torch.int32) & 0xFFFF).eq(0).all())


class Store:
    """Memory for packed weights, in pages of 2 MiB if the system has them; raises OSError if memory
    is short.
    """

    def __init__(self, num_bytes: int) -> None:
        memory = _memory(max(num_bytes, mmap.PAGESIZE))
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self.used = 0

    def place(self, tensor: Tensor) -> Tensor:
        """Returns a copy of a tensor in this memory."""
        source = tensor.contiguous().view(-1).view(torch.uint8)
        start = -(-self.used // _ALIGN) * _ALIGN
        self.used = start + source.shape[0]
        home = self._bytes[start : self.used]
        home.copy_(source)
        return home


def _memory(num_bytes: int) -> mmap.mmap:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, num_bytes)
    # NOTE: The default of Python is shared memory, for which most systems provide no large pages.
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def return_freed_memory() -> None:
    """Gives memory that loading needed for a moment back to the system, where the C library keeps it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


class Packer:
    """Packs matrices for one vector width: int8 if `quantised`, else as published if `narrow`, else float32.

    What is published in bfloat16 or quantised stays so.
    """

    def __init__(self, lanes: int, store: Store, quantised: bool = False, narrow: bool = True) -> None:
        self.lanes, self.panel = lanes, 2 * lanes
        self._store = store
        self._quantised, self._narrow = quantised, narrow
        self.kinds: set[int] = set()

    def vector(self, values: Tensor) -> int:
        """Returns the address of a copy of float values."""
        return self._store.place(values.float()).data_ptr()

    def matrix(self, weight: AnyWeight, bias: Tensor | None = None) -> Matrix:
        """Packs outputs in order; the last panel is padded with zeros."""
        missing = -weight.shape[0] % self.panel
        padded = _change_rows(weight, lambda part: F.pad(part, (0, 0, 0, missing)))
        return self._pack(padded, None if bias is None else F.pad(bias, (0, missing)))

    def heads(self, weight: AnyWeight, bias: Tensor | None, head_dim: int) -> Matrix:
        """Packs outputs so that every head begins a new panel."""
        missing, count = -head_dim % self.panel, weight.shape[0] // head_dim

        def padded(part: Tensor) -> Tensor:
            return F.pad(part.view(count, head_dim, -1), (0, 0, 0, missing)).flatten(0, 1)

        if bias is not None:
            bias = F.pad(bias.view(count, head_dim), (0, missing)).flatten()
        return self._pack(_change_rows(weight, padded), bias)

    def gates(self, weight: AnyWeight, bias: Tensor | None) -> Matrix:
        """Packs [gate; up]: each panel has as many gates as a vector has lanes, followed by their ups."""
        padded = _change_rows(weight, self._paired)
        return self._pack(padded, None if bias is None else self._paired(bias[:, None])[:, 0])

    def _paired(self, both: Tensor) -> Tensor:
        middle = both.shape[0] // 2
        halves = F.pad(both.view(2, middle, -1), (0, 0, 0, -middle % self.lanes))
        return halves.unflatten(1, (-1, self.lanes)).transpose(0, 1).flatten(0, 2)

    def _pack(self, weight: AnyWeight, bias: Tensor | None) -> Matrix:
        if isinstance(weight, GroupedWeight):
            return self._pack_codes(weight, bias)
        num_panels, inputs = weight.shape[0] // self.panel, weight.shape[1]
        kind, scales = FLOATS, None
        panels = weight.float()
        if self._quantised:
            values, by_output = quantise(weight)
            by_panel = by_output.view(num_panels, self.panel, -1).transpose(1, 2)
            scales = self._store.place(by_panel).data_ptr()
            kind, panels = BYTES, unsigned(values)
        elif self._narrow and is_bfloat16(panels):
            kind, panels = HALVES, F.pad(panels.to(torch.bfloat16), (0, inputs % 2))
        self.kinds.add(kind)
        steps = panels.view(num_panels, self.panel, -1, (1, 2, 4)[kind])
        address = self._store.place(steps.transpose(1, 2)).data_ptr()
        own_bias = None if bias is None else self.vector(bias)
        return Matrix(address, scales, own_bias, num_panels, inputs, kind)

    def _pack_codes(self, weight: GroupedWeight, bias: Tensor | None) -> Matrix:
        """Packs a quantised weight; four bytes hold the codes of 8 or 4 consecutive inputs of an output."""
        kind, weight = _native_form(weight)
        num_panels, inputs = weight.shape[0] // self.panel, weight.shape[1]
        codes = weight.codes.contiguous()
        if kind == NIBBLES:
            codes = codes[:, ::2] | (codes[:, 1::2] << 4)
        words = codes.contiguous().view(torch.int32).view(num_panels, self.panel, -1)
        parts = [weight.scales] if weight.offsets is None else [weight.scales, weight.offsets]
        scales = torch.stack([part.reshape(num_panels, self.panel, -1) for part in parts], dim=1)
        self.kinds.add(kind)
        return Matrix(
            self._store.place(words.transpose(1, 2)).data_ptr(),
            self._store.place(scales.permute(0, 3, 1, 2)).data_ptr(),
            None if bias is None else self.vector(bias),
            num_panels,
            inputs,
            kind,
        )


class _NativeForm(NamedTuple):
    kind: int
    weight: GroupedWeight


def _native_form(weight: GroupedWeight) -> _NativeForm:
    """Returns the same weight in the narrowest form that the native code has for it."""
    if weight.bits == 4 and weight.group == 32:
        return _NativeForm(NIBBLES, weight.with_offsets())
    if weight.group == 32 and weight.offsets is None:
        return _NativeForm(CODES, weight)
    return _NativeForm(SHORTS, weight.regrouped(16).with_offsets())


def _change_rows(weight: AnyWeight, change: Callable[[Tensor], Tensor]) -> AnyWeight:
    return weight.each(change) if isinstance(weight, GroupedWeight) else change(weight)


class Extent(NamedTuple):
    """The size of a matrix: its outputs, the outputs of one unit that begins a new panel, and its inputs."""

    outputs: int
    unit: int
    inputs: int


def room_for(matrices: Iterable[Extent], panel: int, quantised: bool) -> int:
    """Returns a number of bytes that is enough for these matrices in packed form and for the vectors.

    Only written pages become real memory, so weights that are bfloat16 need half of it.
    """
    total = 0
    for outputs, unit, inputs in matrices:
        padded = -(-outputs // unit) * (-(-unit // panel) * panel)
        width = -(-inputs // GROUP) * GROUP
        weights = padded * width * (1 if quantised else 4)
        scales = padded * width // GROUP * 4
        vectors = 4 * (3 * padded + 4 * width)
        total += weights + scales + vectors + 8 * _ALIGN
    return total
