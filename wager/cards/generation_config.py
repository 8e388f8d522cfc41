"""Reads what a model's own generation_config.json says about sampling, as a layer of its card.

The names there are those of transformers. A file with `"do_sample": false` asks for greedy decoding, a file
without any sampling field asks for nothing. End ids are read by wager/text/tokenizer.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wager.errors import ModelError

FILE = "generation_config.json"
_SAMPLING = ("temperature", "top_p", "top_k", "min_p")
_WHOLE = ("top_k", "max_new_tokens")


def generation_layer(folder: Path) -> dict[str, Any]:
    """Returns `sampling` and `max_tokens` as far as the file in this folder states them.

    Raises ModelError on a damaged file; a folder or a GGUF file without it states nothing.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    stated = _read(path)
    _check_numbers(path, stated)
    sampling = {name: stated[name] for name in _SAMPLING if stated.get(name) is not None}
    if stated.get("do_sample") is False:
        sampling = {"temperature": 0.0}
    elif stated.get("do_sample"):
        sampling.setdefault("temperature", 1.0)
    if stated.get("repetition_penalty") is not None:
        sampling["repetition_penalty"] = stated["repetition_penalty"]
    layer: dict[str, Any] = {"sampling": sampling} if sampling else {}
    if stated.get("max_new_tokens") is not None:
        layer["max_tokens"] = stated["max_new_tokens"]
    return layer


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path}: expected an object")
    return found


def _check_numbers(path: Path, stated: Mapping[str, object]) -> None:
    for name in (*_SAMPLING, "repetition_penalty", "max_new_tokens"):
        value, least = stated.get(name), int(name == "max_new_tokens")
        kinds = (int,) if name in _WHOLE else (int, float)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or value < least):
            raise ModelError(f"{path}: {name} is {value!r}, expected a number from {least}")
