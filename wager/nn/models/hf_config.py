"""Reads a published config.json: typed fields, and errors that name the field.

The model files of this folder share it. It knows the spelling of configs, not what a model does with the
values.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from wager.errors import ModelError

_DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class HFConfig:
    """The values of a config.json."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def count(self, name: str, default: int | None = None) -> int:
        """Returns a positive integer. Raises ModelError if it is missing without a default, or
        anything else.
        """
        value = self.values.get(name)
        value = default if value is None else value
        if value is None:
            raise ModelError(f"config field {name} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"config field {name} = {value!r}: expected a positive integer")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"config field {name} = {value!r}: expected a number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name)
        return default if value is None else bool(value)

    def refuse(self, *names: str) -> None:
        """Raises ModelError if an unsupported feature is switched on."""
        for name in names:
            if self.values.get(name):
                raise ModelError(f"config field {name} = {self.values[name]!r} is not supported")

    def require_silu(self) -> None:
        name = self.values.get("hidden_act", "silu")
        if name not in ("silu", "swish"):
            raise ModelError(f"config field hidden_act = {name!r} is not supported; only silu")

    def layer_windows(self, num_layers: int, window: int | None) -> tuple[int | None, ...] | None:
        """Returns windows from `layer_types`, or None if the config has no such list."""
        kinds = self.values.get("layer_types")
        if kinds is None:
            return None
        if not isinstance(kinds, list) or len(kinds) != num_layers:
            raise ModelError(f"config field layer_types must list {num_layers} layers")
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise ModelError(f"config field layer_types: {kind!r} is not supported")
        if "sliding_attention" in kinds and window is None:
            raise ModelError("config field layer_types has sliding layers, but sliding_window is not set")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)


class DtypeChoice(NamedTuple):
    """The name of a dtype, and the reason for the choice."""

    name: str
    reason: str


def choose_dtype(asked: str, values: Mapping[str, Any], device: str) -> DtypeChoice:
    """Resolves "auto": the dtype of the config, but float32 on a CPU, where 16-bit products are slower."""
    if asked != "auto":
        return DtypeChoice(asked, "asked for")
    stated = str(values.get("dtype") or values.get("torch_dtype") or "float32").removeprefix("torch.")
    if device.startswith("cpu") and stated in ("bfloat16", "float16"):
        return DtypeChoice("float32", f"faster on a CPU than {stated} of config.json")
    return DtypeChoice(stated, "config.json")


def pick_dtype(asked: torch.dtype | str, values: Mapping[str, Any], device: str = "") -> torch.dtype:
    """Returns the dtype to load. Raises ModelError if it is not supported."""
    if isinstance(asked, torch.dtype):
        return asked
    name = choose_dtype(asked, values, device).name.removeprefix("torch.")
    if name not in _DTYPES:
        raise ModelError(f"dtype {name!r} is not supported; known: {', '.join(_DTYPES)}")
    return _DTYPES[name]
