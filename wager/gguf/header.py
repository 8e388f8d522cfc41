"""Reads the header of a GGUF file: its metadata, and the name, shape, type and place of every tensor.

Every length and offset is checked against the size of the file, so a truncated or damaged file gives an
error that says what is wrong. The format is version 2 or 3, little-endian. The tensors themselves are not
read here.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from wager.errors import ModelError, WeightsError
from wager.gguf.types import BY_NUMBER, TensorType

__all__ = ["ALIGNMENT", "MAGIC", "Header", "TensorEntry", "is_gguf", "read_header", "require_folder"]

MAGIC = b"GGUF"
ALIGNMENT = 32
"""Tensors begin at multiples of this, if the file does not state another number."""
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4


class TensorEntry(NamedTuple):
    """One tensor of the table; `shape` is in the order of torch, with the inputs of a matrix last."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    start: int
    """The offset of its first byte in the file."""
    num_bytes: int


@dataclass(frozen=True)
class Header:
    """What a file states before its tensors."""

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]
    used: set[str] = field(default_factory=set, compare=False)
    """The metadata keys that have been read so far, by whoever reads this header."""

    @property
    def architecture(self) -> str:
        """The architecture; raises ModelError if the file does not name one."""
        found = self.metadata.get("general.architecture")
        if not isinstance(found, str) or not found:
            raise ModelError(f"{self.path.name}: the metadata key general.architecture is missing")
        return found


def is_gguf(path: str | Path) -> bool:
    """Whether a path is a GGUF file, by its name or its first bytes."""
    place = Path(path)
    if not place.is_file():
        return False
    if place.suffix.lower() == ".gguf":
        return True
    try:
        with place.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def require_folder(path: Path, user: str) -> None:
    """Raises ModelError if a path is a GGUF file, for what only reads model folders; `user` names it."""
    if is_gguf(path):
        raise ModelError(f"{user} needs a model folder: `wager convert {path} FOLDER` makes one")


def read_header(path: str | Path) -> Header:
    """Returns the header of a file. Raises ModelError if it cannot be read or is damaged, and WeightsError
    that names a tensor whose entry is wrong.
    """
    place = Path(path)
    try:
        state = place.stat()
    except OSError as error:
        raise ModelError(f"{place} cannot be read: {error.strerror or error}") from error
    return _read_cached(place, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=8)
def _read_cached(path: Path, size: int, _changed_ns: int) -> Header:
    """Returns the header; the size and the time of the last change are part of the cache's key."""
    if size < 4 * len(MAGIC):
        raise ModelError(f"{path.name}: is not a GGUF file: it has only {size} bytes")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _HeaderReader(path, data).read()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error


class _HeaderReader:
    """Reads one header from front to back."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, 0
        self._part = "header"

    def read(self) -> Header:
        if self._data[:4] != MAGIC:
            raise self._fault(f"is not a GGUF file: it begins with {bytes(self._data[:4])!r}")
        self._at = 4
        version = self._number("I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            detail = "big-endian" if swapped in _VERSIONS else f"version {version}"
            raise self._fault(f"is a GGUF file of {detail}; versions 2 and 3, little-endian, can be read")
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            self._part = "metadata"
            key = self._text()
            if key in metadata:
                raise self._fault(f"has the metadata key {key} twice")
            self._part = f"metadata key {key}"
            metadata[key] = self._value(self._number("I"))
        self._part = "table of tensors"
        entries = [self._entry() for _ in range(num_tensors)]
        return Header(self._path, version, metadata, self._placed(entries, metadata))

    def _fault(self, message: str) -> ModelError:
        return ModelError(f"{self._path.name}: {message}")

    def _take(self, num_bytes: int) -> int:
        """Moves on by a number of bytes and returns where they begin."""
        start = self._at
        if num_bytes > len(self._data) - start:
            raise self._fault(f"is truncated: it ends inside the {self._part}")
        self._at = start + num_bytes
        return start

    def _number(self, code: str) -> Any:
        return struct.unpack_from("<" + code, self._data, self._take(struct.calcsize("<" + code)))[0]

    def _text(self) -> str:
        length = self._number("Q")
        start = self._take(length)
        try:
            return self._data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise self._fault(f"the {self._part} is not UTF-8 text") from error

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array()
        return self._number(self._code(kind))

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self._fault(f"the {self._part} has a value of the unknown type {kind}")
        return _SCALARS[kind]

    def _array(self) -> list[Any]:
        kind, count = self._number("I"), self._number("Q")
        if kind in (_STRING, _ARRAY):
            # Every element takes at least eight bytes, so a wrong count cannot start a long loop.
            if count > (len(self._data) - self._at) // 8:
                raise self._fault(f"is truncated: it ends inside the {self._part}")
            return [self._value(kind) for _ in range(count)]
        code = self._code(kind)
        start = self._take(count * struct.calcsize("<" + code))
        return list(struct.unpack_from(f"<{count}{code}", self._data, start))

    def _entry(self) -> TensorEntry:
        name = self._text()
        num_dims = self._number("I")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise WeightsError(f"has {num_dims} dimensions; 1 to {_MAX_DIMS} are possible", name)
        dims = [self._number("Q") for _ in range(num_dims)]
        number, offset = self._number("I"), self._number("Q")
        if number not in BY_NUMBER:
            raise WeightsError(f"has the unknown type number {number}", name)
        kind = BY_NUMBER[number]
        if dims[0] % kind.block_len or 0 in dims:
            raise WeightsError(
                f"has rows of {dims[0]}; {kind.name} needs multiples of {kind.block_len}", name
            )
        num_bytes = prod(dims) // kind.block_len * kind.block_bytes
        return TensorEntry(name, tuple(reversed(dims)), kind, offset, num_bytes)

    def _placed(self, entries: list[TensorEntry], metadata: Mapping[str, Any]) -> dict[str, TensorEntry]:
        """Returns the entries by name, with offsets from the beginning of the file."""
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._fault(f"general.alignment = {alignment!r}: expected a power of two")
        begin = -(-self._at // alignment) * alignment
        found: dict[str, TensorEntry] = {}
        for entry in entries:
            if entry.name in found:
                raise WeightsError(f"is in {self._path.name} twice", entry.name)
            if entry.start % alignment:
                raise WeightsError(f"begins at {entry.start}, not at a multiple of {alignment}", entry.name)
            placed = entry._replace(start=begin + entry.start)
            if placed.start + placed.num_bytes > len(self._data):
                raise WeightsError(
                    f"ends behind the end of {self._path.name}: the file is truncated", entry.name
                )
            found[entry.name] = placed
        return found
