"""The config of any GGUF file that Wager reads: a target's or a drafter's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wager.gguf.drafter_config import drafter_config
from wager.gguf.header import read_header
from wager.gguf.names import STYLE_OF_DRAFTER
from wager.gguf.target_config import target_config

__all__ = ["gguf_config"]


def gguf_config(path: str | Path) -> dict[str, Any]:
    """Returns the values of a config.json for a file. Raises ModelError that names what is wrong."""
    header = read_header(path)
    return drafter_config(header) if header.architecture in STYLE_OF_DRAFTER else target_config(header)
