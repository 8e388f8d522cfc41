"""Result files: the measured data with everything that is needed to judge or repeat the measurement.

This module knows machines, versions and command lines, not the measurements. `wager bench` and the scripts in
the repository's bench folder use it.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["ROOT", "command", "commit", "cpu_model", "load_average", "machine", "result", "shown"]

ROOT = Path(__file__).resolve().parents[2]
"""The repository, if the package runs from one."""

_LIBRARIES = ("numpy", "torch", "transformers", "wager")


def result(name: str, config: Mapping[str, object], data: object) -> dict[str, object]:
    """Returns a result in the form of its file."""
    return {
        "name": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": command(),
        "machine": machine(),
        "config": dict(config),
        "data": data,
    }


def machine() -> dict[str, object]:
    """Returns the properties of the machine and the versions that affect the numbers."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: found for name in _LIBRARIES if (found := _version(name)) is not None},
    }


def load_average() -> float | None:
    """Returns the number of runnable processes in the last minute; None if the system does not report it."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def cpu_model() -> str:
    """Returns the processor's name, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str | None:
    """Returns the measured commit, marked if the tree differs from it; None outside Wager's own
    repository.
    """
    # An installed package may be in an environment inside another repository.
    if not (ROOT / "pyproject.toml").is_file():
        return None
    head = _git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return f"{head}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else head


def command() -> str:
    """Returns the command line without paths of this machine."""
    return " ".join([_called(Path(sys.argv[0])), *(shown(argument) for argument in sys.argv[1:])])


def _called(script: Path) -> str:
    """Returns a module of the repository by its dotted name, an installed command by its name."""
    module = script.with_suffix("").resolve()
    inside = module.relative_to(ROOT).parts if module.is_relative_to(ROOT) else ()
    if script.suffix != ".py" or not inside or inside[0].startswith("."):
        return script.name
    return "python -m " + ".".join(inside).removesuffix(".__main__")


def shown(argument: str) -> str:
    """Returns an argument for storage: of a path outside the repository only the last part."""
    flag, equals, value = argument.rpartition("=")
    if os.sep in value and not Path(value).resolve().is_relative_to(ROOT):
        value = Path(value).name
    return f"{flag}{equals}{value}"


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
