"""Reads weights from a model folder's safetensors files, single or sharded, or from a GGUF file.

They are memory-mapped and read on demand. Every tensor is checked for presence, shape and finite values, and
every error names the tensor or the damaged file. The reader also joins matrices that networks use fused. It
knows no model: `models/` has the tensor names, and gguf_weights.py reads GGUF files.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from wager.errors import ModelError, WeightsError
from wager.gguf.config import gguf_config
from wager.gguf.header import is_gguf
from wager.nn.gguf_blocks import GroupedWeight, join_grouped
from wager.nn.gguf_weights import GGUFStore

INDEX_NAME = "model.safetensors.index.json"
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_log = logging.getLogger(__name__)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a model folder; raises ModelError if it is missing, damaged or not an
    object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path.name} not found in {path.parent}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """Reads config.json of a folder, or the same values from the metadata of a GGUF file; raises ModelError
    if there is no such folder or file.
    """
    if is_gguf(folder):
        return gguf_config(folder)
    if not folder.is_dir():
        raise ModelError(f"model folder {folder} does not exist")
    return read_json(folder / "config.json")


class TensorStore(Protocol):
    """Where tensors are stored, by their published names."""

    def names(self) -> list[str]: ...

    def __contains__(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the stored shape without reading the tensor."""
        ...

    def tensor(self, name: str) -> Tensor:
        """Returns a stored tensor; raises WeightsError if it cannot be read."""
        ...

    def grouped(self, name: str) -> GroupedWeight | None:
        """Returns a quantised matrix in its narrow form, or None if it is not quantised."""
        ...

    def place(self, name: str) -> str:
        """Returns the name of the file that has the tensor."""
        ...

    def type_name(self, name: str) -> str:
        """Returns the name of the type in which a tensor is stored."""
        ...

    def num_bytes(self, name: str) -> int:
        """Returns the size of a tensor in its file."""
        ...


class SafetensorsStore:
    """The safetensors files of a model folder."""

    def __init__(self, folder: Path) -> None:
        """Opens all files of the folder; raises WeightsError that names a missing or damaged file."""
        self.folder = folder
        self._files = {name: _open(folder / name) for name in self._file_names()}
        self._home = {tensor: file for file, handle in self._files.items() for tensor in list(handle.keys())}

    def _file_names(self) -> list[str]:
        index = self.folder / INDEX_NAME
        if index.exists():
            weight_map = read_json(index).get("weight_map")
            if not isinstance(weight_map, Mapping) or not weight_map:
                raise WeightsError(f"{index} has no weight_map")
            return sorted({str(name) for name in weight_map.values()})
        names = sorted(path.name for path in self.folder.glob("*.safetensors"))
        if not names:
            raise WeightsError(f"no .safetensors file in {self.folder}")
        return names

    def names(self) -> list[str]:
        return list(self._home)

    def __contains__(self, name: str) -> bool:
        return name in self._home

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[self._home[name]].get_slice(name).get_shape())

    def tensor(self, name: str) -> Tensor:
        file = self._home[name]
        try:
            stored = self._files[file].get_tensor(name)
        except (SafetensorError, RuntimeError, OSError) as error:
            raise WeightsError(f"cannot be read from {file}: {error}", name) from error
        if stored.dtype not in _FLOATS:
            raise WeightsError(
                f"has dtype {stored.dtype}; only plain floating-point weights are supported", name
            )
        return stored

    def grouped(self, name: str) -> GroupedWeight | None:
        return None

    def place(self, name: str) -> str:
        return self._home[name]

    def type_name(self, name: str) -> str:
        return str(self._files[self._home[name]].get_slice(name).get_dtype())

    def num_bytes(self, name: str) -> int:
        bits = int(
            "".join(letter for letter in self.type_name(name).partition("_")[0] if letter.isdigit()) or 8
        )
        return torch.Size(self.shape(name)).numel() * bits // 8


class WeightReader:
    """The tensors of a model folder or a GGUF file by name."""

    def __init__(self, folder: str | Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        """Opens all files; raises WeightsError that names a missing or damaged file."""
        self.folder, self.dtype, self.device = Path(folder), dtype, device
        self._taken: set[str] = set()
        self._store = self._open_store()

    def _open_store(self) -> TensorStore:
        return GGUFStore(self.folder) if is_gguf(self.folder) else SafetensorsStore(self.folder)

    def __contains__(self, name: str) -> bool:
        return name in self._store

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the stored shape without reading the tensor."""
        self._find(name)
        return self._store.shape(name)

    def get(self, name: str, shape: Sequence[int], check_finite: bool = True) -> Tensor:
        """Returns a tensor in the reader's dtype on its device; raises WeightsError that names it and the
        fault.
        """
        self._check_shape(name, shape)
        tensor = self._store.tensor(name).to(device=self.device, dtype=self.dtype)
        if check_finite and not bool(torch.isfinite(tensor).all()):
            raise WeightsError(f"holds NaN or infinite values (in {self._store.place(name)})", name)
        self._taken.add(name)
        return tensor

    def names(self) -> list[str]:
        """Returns the names of all tensors."""
        return self._store.names()

    def type_name(self, name: str) -> str:
        """Returns the name of the type in which a tensor is stored, such as F32 or Q4_K."""
        self._find(name)
        return self._store.type_name(name)

    def num_bytes(self, name: str) -> int:
        """Returns the size of a tensor in its file."""
        self._find(name)
        return self._store.num_bytes(name)

    def joined(self, names: Iterable[str], shapes: Iterable[Sequence[int]]) -> Tensor:
        """Returns several matrices or biases, stacked along the output dimension."""
        return torch.cat([self.get(name, shape) for name, shape in zip(names, shapes, strict=True)])

    def grouped(self, names: Sequence[str], shapes: Iterable[Sequence[int]]) -> GroupedWeight | None:
        """Returns several matrices in their narrow form, stacked; None if one of them is not quantised."""
        for name, shape in zip(names, shapes, strict=True):
            self._check_shape(name, shape)
        found = [self._store.grouped(name) for name in names]
        narrow = [one for one in found if one is not None]
        if len(narrow) < len(found):
            return None
        for name, one in zip(names, narrow, strict=True):
            finite = torch.isfinite(one.scales).all() and (
                one.offsets is None or torch.isfinite(one.offsets).all()
            )
            if not bool(finite):
                raise WeightsError(f"holds NaN or infinite values (in {self._store.place(name)})", name)
        self._taken.update(names)
        return join_grouped(narrow)

    def leftovers(self) -> list[str]:
        """Returns the names of tensors that were never read, and writes them to the debug log."""
        names = sorted(set(self._store.names()) - self._taken)
        if names:
            _log.debug("unused tensors in %s: %s", self.folder, ", ".join(names))
        return names

    def _check_shape(self, name: str, shape: Sequence[int]) -> None:
        if self.shape(name) != tuple(shape):
            raise WeightsError(f"has shape {list(self.shape(name))}, the config asks for {list(shape)}", name)

    def _find(self, name: str) -> None:
        if name not in self._store:
            raise WeightsError(f"is missing from {self.folder}", name)


def _open(path: Path) -> Any:
    if not path.exists():
        raise WeightsError(f"weights file {path} is missing")
    try:
        return safe_open(str(path), framework="pt", device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"weights file {path} is damaged or truncated: {error}") from error
