"""Typed access to the metadata of a GGUF file, with errors that name the key.

It knows the spelling of keys, not what a model does with the values.
"""

from __future__ import annotations

import struct
from typing import Any

from wager.errors import ModelError
from wager.gguf.header import Header

__all__ = ["Fields", "shortest"]


class Fields:
    """The metadata keys of one architecture."""

    def __init__(self, header: Header, prefix: str) -> None:
        self.header, self.prefix = header, prefix

    def key(self, name: str) -> str:
        """Returns the whole key of a name; a name with a leading dot belongs to the architecture."""
        return self.prefix + name if name.startswith(".") else name

    def get(self, name: str) -> Any:
        """Returns a value, or None if the file does not have it."""
        self.header.used.add(self.key(name))
        return self.header.metadata.get(self.key(name))

    def __contains__(self, name: str) -> bool:
        self.header.used.add(self.key(name))
        return self.key(name) in self.header.metadata

    def fault(self, name: str, detail: str) -> ModelError:
        return ModelError(f"{self.header.path.name}: the metadata key {self.key(name)} {detail}")

    def required(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise self.fault(name, "is missing")
        return value

    def count(self, name: str) -> int:
        """Returns a positive integer; a list with one value for each layer must have equal values."""
        value = self.required(name)
        if isinstance(value, list) and value:
            if len(set(value)) > 1:
                raise self.fault(name, "differs from layer to layer, which is not supported")
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fault(name, f"is {value!r}: expected a positive integer")
        return value

    def number(self, name: str) -> float:
        """Returns a number in its shortest spelling in 32 bits."""
        value = self.required(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fault(name, f"is {value!r}: expected a number")
        return shortest(float(value))

    def token(self, name: str) -> int:
        value = self.required(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.fault(name, f"is {value!r}: expected a token id")
        return value

    def flag(self, name: str) -> bool | None:
        """Returns a flag, or None if the file does not have it."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.fault(name, f"is {value!r}: expected true or false")
        return value

    def numbers(self, name: str) -> list[int]:
        """Returns a list of integers that is not empty."""
        value = self.required(name)
        if not isinstance(value, list) or not value or not all(type(one) is int for one in value):
            raise self.fault(name, f"is {value!r}: expected a list of integers")
        return value


def shortest(value: float) -> float:
    """Returns the shortest decimal number that is `value` in 32 bits: 1e-05, not 9.999999747378752e-06."""
    try:
        stored = struct.pack("<f", value)
    except OverflowError:
        return value
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == stored:
            return short
    return value
