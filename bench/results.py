"""Result files: what was measured, and all that is needed to judge or repeat it.

Knows machines and files, not what is measured. Every benchmark of this folder ends with `write_result`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


def write_result(
    name: str, config: Mapping[str, object], data: object, path: str | Path | None = None
) -> Path:
    """Write bench/results/NAME.json (or `path`) and return where it is."""
    target = RESULTS / f"{name}.json" if path is None else Path(path)
    record = {
        "name": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": command(),
        "machine": machine(),
        "config": dict(config),
        "data": data,
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return target


def machine() -> dict[str, object]:
    """The machine and the versions that the numbers hang on."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def cpu_model() -> str:
    """The processor's own name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit measured, marked where the tree differs from it; None outside a repository."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return f"{head}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else head


def command() -> str:
    """The command line, without the places that only this machine has."""
    module = Path(sys.argv[0]).with_suffix("")
    try:
        called = "-m " + ".".join(module.resolve().relative_to(ROOT).parts)
    except ValueError:
        called = module.name
    return " ".join(["python", called, *(_shown(argument) for argument in sys.argv[1:])])


def _shown(argument: str) -> str:
    """An argument as it may be kept: of a path outside the repository, its last part."""
    flag, equals, value = argument.rpartition("=")
    if os.sep in value and not Path(value).resolve().is_relative_to(ROOT):
        value = Path(value).name
    return f"{flag}{equals}{value}"


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
