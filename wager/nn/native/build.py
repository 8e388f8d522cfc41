"""Compiles the native library with the compiler of this machine, once, into the user's cache.

No request waits for it: `start` runs this file in a process of its own, which puts the finished file in place
atomically. So the file serves later processes if this process ends first. The name of a file depends on what
it was made from (sources, compiler, processor), and a checksum verifies it. This module knows no torch;
library.py uses it.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parent / "source"
MAIN = ("passes.cpp", "steps.cpp")
# NOTE: no -ffast-math and no contraction, because results must not depend on how a loop was compiled.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared", "-pthread")
_TIMEOUT_S = 300
_FAILURE_LASTS_S = 24 * 3600
_COMPILERS = ("c++", "g++", "clang++")


class Built(NamedTuple):
    """The file of the library if it is ready, else None with the reason."""

    path: Path | None
    reason: str


@cache
def compiler() -> tuple[str, ...] | None:
    """Returns the command of the C++ compiler: $CXX, else the first one on the path."""
    asked = shlex.split(os.environ.get("CXX", ""))
    for words in ([asked] if asked else []) + [[name] for name in _COMPILERS]:
        found = shutil.which(words[0])
        if found:
            return (found, *words[1:])
    return None


def cache_folder() -> Path:
    """Returns the folder of finished libraries."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "wager" / "native"


def find() -> Built:
    """Returns the library of this machine if it has been built and its checksum is correct."""
    command = compiler()
    if command is None:
        return Built(None, "no C++ compiler was found")
    path = _path(command)
    if _is_whole(path):
        return Built(path, "built before")
    return Built(None, _failure(path) or "not built yet")


class Builder:
    """A build in a process group of its own, which can be paused for a moment.

    A low priority is not enough: when the compiler occupies the core of one thread of a parallel region, all
    the other threads wait for it.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._timer: threading.Timer | None = None

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> None:
        self._resume()
        self._process.wait()

    def pause_build(self, seconds: float) -> None:
        """Pauses the build for this time, starting now."""
        if self._timer is not None:
            self._timer.cancel()
        if self._signal("SIGSTOP"):
            self._timer = threading.Timer(seconds, self._resume)
            self._timer.daemon = True
            self._timer.start()
            atexit.register(self._resume)  # the build outlives this process, and must not stay paused

    def _resume(self) -> None:
        atexit.unregister(self._resume)
        self._signal("SIGCONT")

    def _signal(self, name: str) -> bool:
        number = getattr(signal, name, None)
        if number is None or self.has_ended:
            return False
        try:
            os.killpg(self._process.pid, number)
        except (OSError, AttributeError):
            return False
        return True


def start() -> Builder | None:
    """Starts a build in the background; returns None if there is no compiler or an earlier build failed."""
    command = compiler()
    if command is None or _failure(_path(command)):
        return None
    quiet = subprocess.DEVNULL
    try:
        return Builder(
            subprocess.Popen(
                [sys.executable, "-I", __file__],
                stdin=quiet,
                stdout=quiet,
                stderr=quiet,
                start_new_session=True,
            )
        )
    except OSError:
        return None


def build() -> Built:
    """Compiles now and puts the file in place; the message of a failure is stored beside it for a day."""
    command = compiler()
    if command is None:
        return Built(None, "no C++ compiler was found")
    path = _path(command)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        done = subprocess.run(
            [*command, *FLAGS, "-o", str(made), *(str(SOURCE / name) for name in MAIN)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        if done.returncode != 0:
            _beside(path, ".failed").write_text(done.stderr[-4000:], encoding="utf-8")
            return Built(None, _failure(path))
        _place(_checksum(made), _beside(path, ".sha256"))
        os.replace(made, path)
    return Built(path, "built now")


def _place(text: str, path: Path) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


def _path(command: tuple[str, ...]) -> Path:
    return cache_folder() / f"passes-{_key(command)}.so"


def _beside(path: Path, suffix: str) -> Path:
    return path.with_suffix(suffix)


@cache
def _key(command: tuple[str, ...]) -> str:
    """Returns a hash of everything that a library depends on, as sixteen letters."""
    digest = hashlib.sha256()
    for source in sorted(SOURCE.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    digest.update(repr((command, FLAGS, _processor(), _version(command))).encode())
    return digest.hexdigest()[:16]


def _version(command: tuple[str, ...]) -> str:
    try:
        return subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _processor() -> str:
    """Returns what -march=native depends on, because different machines may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
        wanted = ("model name", "flags", "Features", "CPU part")
        return "\n".join(line for line in lines if line.startswith(wanted))
    except OSError:
        return f"{platform.machine()} {platform.processor()}"


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_whole(path: Path) -> bool:
    try:
        return _checksum(path) == _beside(path, ".sha256").read_text(encoding="utf-8")
    except OSError:
        return False


def _failure(path: Path) -> str:
    """Returns why the last build failed, in one line; empty if none failed recently."""
    note = _beside(path, ".failed")
    try:
        if time.time() - note.stat().st_mtime > _FAILURE_LASTS_S:
            return ""
        lines = note.read_text(encoding="utf-8").strip().splitlines()
    except OSError:
        return ""
    errors = [line for line in lines if "error" in line] or lines or ["no message"]
    return f"the compiler failed: {errors[0].strip()[:200]}"


def _lower_priority() -> None:
    """Gives all other processes priority over the compiler."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif hasattr(os, "nice"):
        os.nice(19)


if __name__ == "__main__":
    _lower_priority()
    build()
