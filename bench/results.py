"""Result files of this folder: bench/results/NAME.json, each with machine, commit and config.

Every benchmark here ends with `write_result`. What a result states about the machine is wager.bench.results'.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from wager.bench.results import ROOT, machine, result

__all__ = ["RESULTS", "ROOT", "machine", "write_result"]

RESULTS = ROOT / "bench" / "results"


def write_result(
    name: str, config: Mapping[str, object], data: object, path: str | Path | None = None
) -> Path:
    """Write bench/results/NAME.json (or `path`) and return where it is."""
    target = RESULTS / f"{name}.json" if path is None else Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result(name, config, data), indent=2) + "\n", encoding="utf-8")
    return target
