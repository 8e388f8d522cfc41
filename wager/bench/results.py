"""Result files: what was measured, and all that is needed to judge or repeat it.

Knows machines, versions and command lines, not what is measured. Used by `wager bench` and by the scripts of
the repository's bench folder.
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
"""The repository, where the package runs from one."""

_LIBRARIES = ("numpy", "torch", "transformers", "wager")


def result(name: str, config: Mapping[str, object], data: object) -> dict[str, object]:
    """A result as its file holds it."""
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
    """The machine and the versions that the numbers hang on."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: found for name in _LIBRARIES if (found := _version(name)) is not None},
    }


def load_average() -> float | None:
    """Processes that wanted to run in the last minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def cpu_model() -> str:
    """The processor's own name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit measured, marked where the tree differs from it; None outside Wager's own repository."""
    # An installed package may lie in an environment inside somebody else's repository.
    if not (ROOT / "pyproject.toml").is_file():
        return None
    head = _git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return f"{head}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else head


def command() -> str:
    """The command line, without the places that only this machine has."""
    return " ".join([_called(Path(sys.argv[0])), *(shown(argument) for argument in sys.argv[1:])])


def _called(script: Path) -> str:
    """A module of the repository by its dotted name, an installed command by its own."""
    module = script.with_suffix("").resolve()
    inside = module.relative_to(ROOT).parts if module.is_relative_to(ROOT) else ()
    if script.suffix != ".py" or not inside or inside[0].startswith("."):
        return script.name
    return "python -m " + ".".join(inside).removesuffix(".__main__")


def shown(argument: str) -> str:
    """An argument as it may be kept: of a path outside the repository, its last part."""
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
