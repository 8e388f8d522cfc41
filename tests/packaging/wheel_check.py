"""Builds the wheel and the sdist, and runs the wheel without extras in an empty environment.

`make wheel-check` runs it. It needs pip and the Python package index (or its files on this machine) and takes
one to two minutes. It prints every command with its time, and ends with status 1 at the first fault. It uses
the standard library alone, because it does not run in the environment that it checks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
WHEEL_LIMIT_BYTES = 75e6
NOT_PACKED = {"__pycache__"}
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
IN_SDIST = (
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
    "Makefile",
    "constraints.txt",
    "Dockerfile",
)
TORCH = next(
    line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")
)


class Command(NamedTuple):
    """A `wager` command line, the status it must end with, and a text that it must print."""

    line: Sequence[str]
    status: int = 0
    printed: str = ""
    typed: str = ""


COMMANDS = (
    Command(["--version"], printed="wager "),
    Command(["doctor"], printed="extra train"),
    Command(["generate", "-p", "Tell me about the sea.", "--max-tokens", "24"]),
    Command(["simulate", "--kind", "code", "--costs", "cpu"], printed="oracle-chain"),
    Command(["demo", "--max-tokens", "8"], printed="mean"),
    Command(["chat", "--max-tokens", "8"], typed="Hello\n"),
    Command(["grow", "grown", "--shape", "hidden=512,layers=20,draft_layers=5", "--dtype", "float32"]),
    Command(["serve"], 2, "pip install 'wager[server]'"),
    Command(["simulate", "--plot", "out.png"], 2, "pip install 'wager[plot]'"),
    Command(["bench", "--peers", "all"], 2, "pip install 'wager[train]'"),
    Command(["train", "--corpus", "texts.txt", "--out", "drafter"], 2, "pip install 'wager[train]'"),
)


class Fault(Exception):
    """What is wrong, in one line."""


def run(
    command: Sequence[str], folder: Path, typed: str = "", cache: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder, without the variables that would lead it back to this tree."""
    began = time.monotonic()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WAGER_"))}
    if cache is not None:
        kept["XDG_CACHE_HOME"] = str(cache)
    done = subprocess.run(
        command,
        cwd=folder,
        env=kept,
        input=typed,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    print(
        f"  {time.monotonic() - began:6.1f} s  {' '.join([Path(command[0]).name, *command[1:]])}", flush=True
    )
    return done


def must(command: Sequence[str], folder: Path) -> str:
    done = run(command, folder)
    if done.returncode:
        raise Fault(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout}")
    return done.stdout


def make_environment(folder: Path) -> Path:
    """Creates an environment and returns its folder of programs."""
    venv.create(folder, with_pip=True)
    return folder / "bin"


def package_files(root: Path) -> set[str]:
    """The files of the package in a tree, as names from its root."""
    paths = (path for path in (root / "wager").rglob("*") if path.is_file())
    return {str(path.relative_to(root)) for path in paths if not NOT_PACKED & set(path.parts)}


def check_wheel(wheel: Path) -> None:
    """Compares the wheel with the package in this tree: nothing is missing and nothing is superfluous."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    described = {name for name in names if ".dist-info/" in name}
    if names - described != package_files(ROOT):
        raise Fault(
            f"{wheel.name} differs from the tree: {sorted((names - described) ^ package_files(ROOT))}"
        )
    if {name.partition(".dist-info/")[2] for name in described} != METADATA:
        raise Fault(f"{wheel.name} has unexpected metadata: {sorted(described)}")
    for needed in (
        "wager/nn/native/source/passes.cpp",
        "wager/models/demo/target/config.json",
        "wager/py.typed",
    ):
        if needed not in names:
            raise Fault(f"{wheel.name} has no {needed}")
    size = wheel.stat().st_size
    print(f"  {wheel.name}: {len(names)} files, {size / 1e6:.1f} MB")
    if size > WHEEL_LIMIT_BYTES:
        raise Fault(f"{wheel.name} is larger than {WHEEL_LIMIT_BYTES / 1e6:.0f} MB")


def check_sdist(sdist: Path, folder: Path) -> Path:
    """Checks the sdist, unpacks it and returns the folder of its tree."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    [tree] = folder.iterdir()
    missing = [name for name in IN_SDIST if not (tree / name).is_file()]
    if missing or package_files(tree) != package_files(ROOT):
        raise Fault(f"{sdist.name} is not whole; missing: {missing}")
    print(f"  {sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB")
    return tree


def build(folder: Path) -> Path:
    """Builds the sdist and the wheel, and a second wheel from the sdist; returns the first wheel."""
    programs = make_environment(folder / "builder")
    must([str(programs / "python"), "-m", "pip", "install", "--quiet", "hatchling>=1.27"], folder)
    hatch = [str(programs / "python"), "-m", "hatchling", "build", "-d"]
    must([*hatch, str(folder / "dist")], ROOT)
    [wheel] = (folder / "dist").glob("*.whl")
    check_wheel(wheel)
    [sdist] = (folder / "dist").glob("*.tar.gz")
    tree = check_sdist(sdist, folder / "sdist")
    must([*hatch, str(folder / "again"), "-t", "wheel"], tree)
    [again] = (folder / "again").glob("*.whl")
    check_wheel(again)
    return wheel


def try_out(wheel: Path, folder: Path) -> None:
    """Installs the wheel without extras into an empty environment and runs commands in another folder."""
    programs, place = make_environment(folder / "user"), folder / "somewhere else"
    place.mkdir()
    (place / "texts.txt").write_text("A text.\n")
    pip = [str(programs / "python"), "-m", "pip"]
    constraints = str(ROOT / "constraints.txt")
    must([*pip, "install", "--quiet", "--no-compile", "-c", constraints, str(wheel), TORCH], folder)
    must([*pip, "check"], folder)
    known = must([str(programs / "wager"), "--help"], place)
    for command in COMMANDS:
        if command.line[0] == "chat" and "chat" not in known:
            continue
        done = run([str(programs / "wager"), *command.line], place, command.typed, folder / "cache")
        if done.returncode != command.status or command.printed not in done.stdout:
            raise Fault(f"wager {' '.join(command.line)} ended with {done.returncode}:\n{done.stdout}")
        if command.status and len(done.stdout.splitlines()) != 1:
            raise Fault(f"wager {' '.join(command.line)} says more than one line:\n{done.stdout}")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="wager-wheel-") as name:
        try:
            try_out(build(Path(name)), Path(name))
        except Fault as fault:
            print(f"wheel-check: {fault}", file=sys.stderr)
            return 1
    print("wheel-check: all well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
