"""The tensors of a GGUF file under their published names, in plain or narrow form.

The rows of projections that a file stores in another order are put back in the published order. Names without
a published counterpart keep their own. weights.py reads through it; gguf_blocks.py knows the block formats.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import torch
from torch import Tensor

from wager.errors import WeightsError
from wager.gguf.config import gguf_config
from wager.gguf.header import TensorEntry, read_header
from wager.gguf.names import STYLE_OF_DRAFTER, architecture_style
from wager.gguf.rope import FACTORS
from wager.gguf.target_config import permuted_heads
from wager.gguf.types import READABLE
from wager.nn.gguf_blocks import GroupedWeight, decode_blocks

__all__ = ["GGUFStore"]

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class GGUFStore:
    """A memory-mapped GGUF file."""

    def __init__(self, path: Path) -> None:
        """Opens a file; raises ModelError or WeightsError if its header is damaged or not supported."""
        self.header = read_header(path)
        style, architecture = architecture_style(self.header.architecture), self.header.architecture
        config = gguf_config(path)
        self._heads = {} if architecture in STYLE_OF_DRAFTER else permuted_heads(self.header, config)
        used = [one for one in self.header.tensors.values() if one.name != FACTORS]
        self._entries = {style.to_published(one.name) or one.name: one for one in used}
        self._published = {found for one in used if (found := style.to_published(one.name)) is not None}
        with path.open("rb") as file:
            # NOTE: The mapping is private and writable because torch warns about memory that is not.
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def names(self) -> list[str]:
        return list(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def place(self, name: str) -> str:
        return self.header.path.name

    def type_name(self, name: str) -> str:
        return self._entries[name].type.name

    def num_bytes(self, name: str) -> int:
        return self._entries[name].num_bytes

    def is_published(self, name: str) -> bool:
        """Whether a tensor has a published name; others are not part of any model that Wager knows."""
        return name in self._published

    def entry(self, name: str) -> TensorEntry:
        """Returns the table's entry of a tensor."""
        return self._entries[name]

    def tensor(self, name: str) -> Tensor:
        entry = self._readable(name)
        if entry.type.is_quantised:
            narrow = self.grouped(name)
            assert narrow is not None
            return narrow.weight.view(entry.shape)
        return self._in_order(name, self._stored(entry).view(_PLAIN[entry.type.name]).view(entry.shape))

    def grouped(self, name: str) -> GroupedWeight | None:
        entry = self._readable(name)
        if not entry.type.is_quantised:
            return None
        blocks = self._stored(entry).view(-1, entry.type.block_bytes)
        columns = entry.shape[-1]
        rows = entry.num_bytes // entry.type.block_bytes * entry.type.block_len // columns
        found = decode_blocks(blocks, entry.type.name, (rows, columns))
        return found.each(lambda part: self._in_order(name, part))

    def _readable(self, name: str) -> TensorEntry:
        entry = self._entries[name]
        if not entry.type.is_readable:
            raise WeightsError(
                f"has the type {entry.type.name}; readable are {', '.join(READABLE)}", entry.name
            )
        return entry

    def _stored(self, entry: TensorEntry) -> Tensor:
        return torch.frombuffer(self._data, dtype=torch.uint8, count=entry.num_bytes, offset=entry.start)

    def _in_order(self, name: str, rows: Tensor) -> Tensor:
        """Returns the rows of a projection with the halves of each head's rotation one after the other."""
        parts = name.split(".")
        num_heads = self._heads.get(parts[-2], 0) if len(parts) > 1 else 0
        if not num_heads:
            return rows
        halves = rows.view(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
        return halves.transpose(1, 2).reshape(rows.shape)
