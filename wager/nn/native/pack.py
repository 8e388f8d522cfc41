"""Converts weights to the layout of the native code: panels of outputs, in float32 or a narrower form.

A published bfloat16 weight stays bfloat16, and a quantised weight of a GGUF file stays quantised: the values
are those of float32 with fewer bytes to read. int8 is symmetric, with one scale per output and GROUP inputs.
All weights of a network are in one memory area with large pages. source/matrix.h describes the layout. This
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

from wager.nn.gguf_blocks import GroupedWeight, round_to_4_bits
from wager.nn.narrow import AnyWeight
from wager.nn.native.library import Matrix

FLOATS, HALVES, NIBBLES, CODES, SHORTS = range(5)
INT8 = 5
"""Among kinds of stored weights: codes that were made here, not published."""
NAMES = ("float32", "bfloat16", "4-bit", "8-bit", "8-bit in groups of 16", "int8")
"""What each kind of stored weights is called."""
GROUP = 32
_ALIGN = 64
_SMALLEST_HALF, _LARGEST_HALF = 2.0**-16, 65504.0
"""Scales within these bounds become float16, by which the largest code changes by less than half a step."""


def quantise(weight: Tensor) -> GroupedWeight:
    """Returns the nearest int8 weight, with its inputs padded to whole groups."""
    outputs, inputs = weight.shape
    groups = F.pad(weight.float(), (0, -inputs % GROUP)).view(outputs, -1, GROUP)
    scales = groups.abs().amax(dim=2) / 127.0
    fits = (scales >= _SMALLEST_HALF) & (scales <= _LARGEST_HALF)
    scales = torch.where(fits, scales.to(torch.float16).float(), scales)
    steps = torch.where(scales > 0, scales, torch.ones_like(scales))
    values = (groups / steps[:, :, None]).round_().clamp_(-127, 127).to(torch.int8)
    return GroupedWeight(values.view(outputs, -1), scales, None, 8)


def dequantised(weight: Tensor) -> Tensor:
    """Returns a weight rounded to int8, in its own dtype, as plain torch uses it."""
    return quantise(weight).weight[:, : weight.shape[1]].to(weight.dtype)


def is_float16(numbers: Tensor) -> bool:
    """Whether every value of a float32 tensor is exactly a float16."""
    return torch.equal(numbers.to(torch.float16).float(), numbers)


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


class Storage(NamedTuple):
    """How weights are stored and multiplied."""

    quantised: bool = False
    """Whether weights become int8, or 4 bits with an offset (`bits`)."""
    narrow: bool = True
    """Whether weights may be bfloat16 where that is exact."""
    limbs: int = 0
    """Bytes of an activation that is multiplied by codes; 0: activations stay float32."""
    bits: int = 8
    """Bits of a weight that is quantised here."""


class Packer:
    """Packs matrices for one vector width, in the form that `storage` asks for.

    What is published in bfloat16 or quantised stays so.
    """

    def __init__(self, lanes: int, store: Store, storage: Storage) -> None:
        self.lanes, self.panel = lanes, 2 * lanes
        self._store, self._storage = store, storage
        self.kinds: set[int] = set()
        self.limbs = 0
        """Bytes of a rounded activation; 0 if no matrix is multiplied by rounded activations."""

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
        own_bias = None if bias is None else self.vector(bias)
        if isinstance(weight, GroupedWeight):
            return self._pack_codes(weight, own_bias, _native_kind(weight))
        if self._storage.quantised and self._storage.bits == 4:
            return self._pack_codes(round_to_4_bits(weight), own_bias, NIBBLES, weight.shape[1])
        if self._storage.quantised:
            return self._pack_codes(quantise(weight), own_bias, INT8, weight.shape[1])
        num_panels, inputs = weight.shape[0] // self.panel, weight.shape[1]
        kind, panels = FLOATS, weight.float()
        if self._storage.narrow and is_bfloat16(panels):
            kind, panels = HALVES, F.pad(panels.to(torch.bfloat16), (0, inputs % 2))
        self.kinds.add(kind)
        steps = panels.view(num_panels, self.panel, -1, (1, 2)[kind])
        address = self._store.place(steps.transpose(1, 2)).data_ptr()
        return Matrix(address, own_bias, num_panels, inputs, kind)

    def _pack_codes(
        self, weight: GroupedWeight, bias: int | None, name: int, inputs: int | None = None
    ) -> Matrix:
        """Packs a quantised weight: a block of scales, offsets and codes for each panel and group.

        `name` is the kind that is shown. `inputs` is the number without padding.
        """
        kind = CODES if name == INT8 else name
        if kind == SHORTS:
            weight = weight.regrouped(16)
        num_panels, groups = weight.shape[0] // self.panel, weight.scales.shape[1]
        parts = [weight.scales] if weight.offsets is None else [weight.scales, weight.offsets]
        half_scales = all(is_float16(part) for part in parts)
        if half_scales:
            parts = [part.to(torch.float16) for part in parts]
        by_group = [part.reshape(num_panels, self.panel, groups).transpose(1, 2) for part in parts]
        words = _code_bytes(weight, kind).view(torch.int32).view(num_panels, self.panel, groups, -1)
        by_group.append(words.permute(0, 2, 3, 1).flatten(2))
        blocks = torch.cat([part.contiguous().view(torch.uint8) for part in by_group], dim=2)
        self.kinds.add(name)
        self.limbs = self._storage.limbs
        return Matrix(
            self._store.place(blocks).data_ptr(),
            bias,
            num_panels,
            inputs or weight.shape[1],
            kind,
            self.limbs,
            weight.offsets is not None,
            half_scales,
        )


def _native_kind(weight: GroupedWeight) -> int:
    """Returns the narrowest kind that the native code has for a quantised weight."""
    if weight.group != GROUP:
        return SHORTS
    return NIBBLES if weight.bits == 4 else CODES


def _code_bytes(weight: GroupedWeight, kind: int) -> Tensor:
    """Returns the codes without signs; four bytes hold two runs of four codes of 4 bits."""
    if kind != NIBBLES:
        return weight.codes.contiguous().view(torch.uint8) ^ 128
    codes = weight.codes if weight.offsets is not None else weight.codes + 8
    runs = codes.view(codes.shape[0], -1, 2, 4).view(torch.uint8)
    return (runs[:, :, 0] | (runs[:, :, 1] << 4)).flatten(1)


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
