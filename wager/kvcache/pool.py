"""The K/V pool: one preallocated tensor with the keys and values of every layer, and its reads and writes.

The layout is [layers, 2 (keys, values), kv_heads, slots, head_dim]. Heads come before slots, so that a row in
one consecutive run of pages is a slice that attention uses without a copy. A slot is page * page_size +
offset and is the same position in every layer. Reads return exactly the requested length, so stale slots are
never seen. The networks and `commit` use the pool. It does not know the holders of pages: see `pages`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wager.errors import CapacityError

PageIds: TypeAlias = Sequence[int] | NDArray[np.int64]
Place: TypeAlias = slice | Tensor
"""Resolved slots: a slice when they are one consecutive run, else an index tensor."""


class KeysValues(NamedTuple):
    """Keys and values of one layer."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class PoolSpec:
    """Size, data type and device of a pool."""

    num_layers: int
    num_pages: int
    page_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"

    @property
    def page_bytes(self) -> int:
        """Memory of one page over all layers, in bytes."""
        per_slot = 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize
        return per_slot * self.page_size


class KVPool:
    """The keys and values of all layers by slot."""

    def __init__(self, spec: PoolSpec) -> None:
        """Allocates the whole pool; raises CapacityError if the device has too little memory."""
        self.spec = spec
        num_slots = spec.num_pages * spec.page_size
        shape = (spec.num_layers, 2, spec.num_kv_heads, num_slots, spec.head_dim)
        try:
            # Inference mode is off, because an inference tensor could not be written outside inference mode.
            with torch.inference_mode(False):
                self.store = torch.empty(shape, dtype=spec.dtype, device=spec.device)
        except RuntimeError as error:
            need = spec.num_pages * spec.page_bytes
            raise CapacityError(
                f"a K/V pool of {need} bytes does not fit into the memory of {spec.device}"
            ) from error
        self._layers = [self.store[layer] for layer in range(spec.num_layers)]

    @property
    def bytes(self) -> int:
        return self.spec.num_pages * self.spec.page_bytes

    @property
    def page_bytes(self) -> int:
        return self.spec.page_bytes

    @property
    def num_slots(self) -> int:
        return self.spec.num_pages * self.spec.page_size

    def slots(self, pages: PageIds, start: int, stop: int) -> Tensor:
        """Returns the slots of a row's tokens start..stop-1, on the device of the pool."""
        return torch.from_numpy(slot_ids(pages, self.spec.page_size, start, stop)).to(self.spec.device)

    def place(self, slots: Tensor) -> Place:
        """Resolves slots for all reads and writes of a pass; a consecutive run becomes a slice on the CPU.

        On other devices the check would need a synchronisation, so it is skipped.
        """
        if slots.device.type != "cpu":
            return slots
        ids = slots.numpy()
        if len(ids) == 0:
            return slice(0, 0)
        return slice(int(ids[0]), int(ids[-1]) + 1) if _is_run(ids) else slots

    def span(self, pages: PageIds, start: int, stop: int) -> Place:
        """Resolves the tokens start..stop-1 of a row with these pages, for all reads of a pass."""
        size = self.spec.page_size
        first, last = start // size, -(-stop // size)
        used = np.asarray(pages[first:last], dtype=np.int64)
        if len(used) < last - first:
            raise CapacityError(f"{len(pages)} pages of {size} do not cover {stop} tokens")
        if len(used) <= 1 or _is_run(used):
            base = (int(used[0]) - first) * size if len(used) else 0
            return slice(base + start, base + stop)
        return self.slots(pages, start, stop)

    def read(self, layer: int, place: Place) -> KeysValues:
        """Returns keys and values, each [kv_heads, length, head_dim]: views of a run, else gathered
        copies.
        """
        store = self._layers[layer]
        both = store[:, :, place] if isinstance(place, slice) else store.index_select(2, place)
        return KeysValues(both[0], both[1])

    def view(self, layer: int, pages: PageIds, length: int) -> KeysValues:
        """Returns the first `length` tokens of a row, each [length, kv_heads, head_dim]; one run is not
        copied.
        """
        keys, values = self.read(layer, self.span(pages, 0, length))
        return KeysValues(keys.transpose(0, 1), values.transpose(0, 1))

    def write(self, layer: int, slots: Tensor | slice, keys: Tensor, values: Tensor) -> None:
        """Stores keys and values, each [tokens, kv_heads, head_dim], in their slots."""
        self.write_packed(layer, slots, torch.stack((keys, values), dim=1))

    def write_packed(self, layer: int, slots: Tensor | slice, keys_values: Tensor) -> None:
        """Stores keys and values as [tokens, 2, kv_heads, head_dim], in one copy."""
        place = slots if isinstance(slots, slice) else self.place(slots)
        moved = keys_values.permute(1, 2, 0, 3)
        if isinstance(place, slice):
            self._layers[layer][:, :, place].copy_(moved)
        else:
            self._layers[layer].index_copy_(2, place, moved)

    def write_all(self, slots: Tensor | slice, keys_values: Tensor) -> None:
        """Stores keys and values of every layer: [tokens, layers, 2, kv_heads, head_dim]."""
        place = slots if isinstance(slots, slice) else self.place(slots)
        moved = keys_values.permute(1, 2, 3, 0, 4)
        if isinstance(place, slice):
            self.store[:, :, :, place].copy_(moved)
        else:
            self.store.index_copy_(3, place, moved)

    def copy_slots(self, src: Tensor, dst: Tensor) -> None:
        """Copies slots src[i] to dst[i] in every layer. They may overlap: everything is read before it is
        written.
        """
        if src.shape[0]:
            self.store.index_copy_(3, dst, self.store.index_select(3, src))

    def copy_pages(self, source: PageIds, target: PageIds) -> None:
        """Copies whole pages in every layer; the two lists must not overlap."""
        length = len(source) * self.spec.page_size
        self.copy_slots(self.slots(source, 0, length), self.slots(target, 0, length))


def slot_ids(pages: PageIds, page_size: int, start: int, stop: int) -> NDArray[np.int64]:
    """Returns the slots of a row's tokens start..stop-1."""
    base = _run_base(pages, page_size, start, stop)
    if base is not None:
        return np.arange(base + start, base + stop, dtype=np.int64)
    tokens = np.arange(start, stop, dtype=np.int64)
    ids = np.asarray(pages, dtype=np.int64)
    return ids[tokens // page_size] * page_size + tokens % page_size


def slot_list(pages: PageIds, page_size: int, start: int, stop: int) -> Sequence[int]:
    """Returns the slots of a row's tokens as plain integers; faster than `slot_ids` for a few tokens in one
    run.
    """
    base = _run_base(pages, page_size, start, stop)
    if base is not None:
        return range(base + start, base + stop)
    return slot_ids(pages, page_size, start, stop).tolist()


def _run_base(pages: PageIds, page_size: int, start: int, stop: int) -> int | None:
    """Returns the first slot minus the first position if the pages of these tokens are one run, else None."""
    first, last = start // page_size, -(-stop // page_size)
    if last > len(pages):
        raise CapacityError(f"{len(pages)} pages of {page_size} do not cover {stop} tokens")
    used = pages[first:last]
    if len(used) == 0 or used[-1] - used[0] != len(used) - 1:
        return None
    if len(used) > 2 and not _is_run(np.asarray(used, np.int64)):
        return None
    return (int(used[0]) - first) * page_size


def _is_run(ids: NDArray[np.int64]) -> bool:
    """Whether the ids increase by one."""
    length = len(ids)
    if ids[-1] - ids[0] != length - 1:
        return False
    return length <= 2 or bool((ids[1:] - ids[:-1] == 1).all())
