"""Writes a GGUF file of version 3: metadata, the table of tensors, and the tensors themselves.

The file is written beside its place and renamed at the end, so that no reader finds a half-written one.
Integers are stored in 32 bits without sign, floats in 32 bits, as llama.cpp expects its keys.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from wager.errors import InputError
from wager.gguf.header import ALIGNMENT, MAGIC
from wager.gguf.types import TensorType

__all__ = ["NewTensor", "atomic_file", "write_gguf"]

_VERSION = 3
_NUMBERS: tuple[tuple[type, int, str], ...] = ((bool, 7, "?"), (int, 4, "I"), (float, 6, "f"))
_STRING, _ARRAY, _SIGNED = 8, 9, 5


class NewTensor(NamedTuple):
    """A tensor that is written; `read` returns its bytes and is called once, in order."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    read: Callable[[], bytes]

    @property
    def num_bytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count // self.type.block_len * self.type.block_bytes


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Sequence[NewTensor]) -> None:
    """Writes a file; raises InputError if it cannot be written."""
    with atomic_file(path) as file:
        head = bytearray(MAGIC + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata)))
        for key, value in metadata.items():
            head += _text(key) + _typed(value)
        offset = 0
        for one in tensors:
            dims = tuple(reversed(one.shape))
            head += _text(one.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
            head += struct.pack("<IQ", one.type.number, offset)
            offset += _aligned(one.num_bytes)
        file.write(head.ljust(_aligned(len(head)), b"\0"))
        for one in tensors:
            stored = one.read()
            assert len(stored) == one.num_bytes, one.name
            file.write(stored.ljust(_aligned(len(stored)), b"\0"))


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that gets its name only if everything was written; raises InputError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        file = part.open("xb")  # the umask gives it its mode
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        with file:
            yield file
        part.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _typed(value: Any) -> bytes:
    """Returns the number of a value's type, then the value."""
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, list):
        number, elements = _elements(value)
        return struct.pack("<IIQ", _ARRAY, number, len(value)) + elements
    number, code = _number(value)
    return struct.pack(f"<I{code}", number, value)


def _elements(values: list[Any]) -> tuple[int, bytes]:
    """Returns the number of the type of all elements, and the elements."""
    if values and isinstance(values[0], str):
        return _STRING, b"".join(_text(one) for one in values)
    if values and type(values[0]) is int:
        return _SIGNED, struct.pack(f"<{len(values)}i", *values)
    number, code = _number(values[0] if values else 0)
    return number, struct.pack(f"<{len(values)}{code}", *values)


def _number(value: Any) -> tuple[int, str]:
    for kind, number, code in _NUMBERS:
        if type(value) is kind:
            return number, code
    raise TypeError(f"{type(value).__name__} cannot be stored as metadata")
