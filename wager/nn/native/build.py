"""Compile the native library with this machine's own compiler, once, into the user's cache.

Nobody waits for it: `start` runs this very file in a process of its own, which puts the finished file in
place atomically, so that it also serves later processes when this one ends first. A file is named after what
it was made from (sources, compiler, processor) and believed only with its checksum. Knows no torch; used by
library.py.
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
MAIN = "passes.cpp"
# NOTE: no -ffast-math and no contraction: results must not depend on how a loop was compiled.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared")
_TIMEOUT_S = 300
_FAILURE_LASTS_S = 24 * 3600
_COMPILERS = ("c++", "g++", "clang++")


class Built(NamedTuple):
    """The library's file where it is ready; else why it is not."""

    path: Path | None
    reason: str


@cache
def compiler() -> tuple[str, ...] | None:
    """The command of the C++ compiler: $CXX, else the first one on the path."""
    asked = shlex.split(os.environ.get("CXX", ""))
    for words in ([asked] if asked else []) + [[name] for name in _COMPILERS]:
        found = shutil.which(words[0])
        if found:
            return (found, *words[1:])
    return None


def cache_folder() -> Path:
    """Where finished libraries are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "wager" / "native"


def find() -> Built:
    """The library for this machine, if it has been built and is whole."""
    command = compiler()
    if command is None:
        return Built(None, "no C++ compiler was found")
    path = _path(command)
    if _is_whole(path):
        return Built(path, "built before")
    return Built(None, _failure(path) or "not built yet")


class Builder:
    """A build in a process group of its own, which can be held up for a moment.

    Priorities alone do not do: a thread of a parallel region that has to win its core back from the compiler
    makes all the others wait for it.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._timer: threading.Timer | None = None

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> None:
        self._go_on()
        self._process.wait()

    def hold(self, seconds: float) -> None:
        """Stand still for so long, from now on."""
        if self._timer is not None:
            self._timer.cancel()
        if self._signal("SIGSTOP"):
            self._timer = threading.Timer(seconds, self._go_on)
            self._timer.daemon = True
            self._timer.start()
            atexit.register(self._go_on)  # it outlives this process, and must not stand still for good

    def _go_on(self) -> None:
        atexit.unregister(self._go_on)
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
    """Build in the background; None where there is no compiler or an earlier build failed."""
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
    """Compile now and put the file in its place; what went wrong is kept beside it for a day."""
    command = compiler()
    if command is None:
        return Built(None, "no C++ compiler was found")
    path = _path(command)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        done = subprocess.run(
            [*command, *FLAGS, "-o", str(made), str(SOURCE / MAIN)],
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
    """What a library was made from and for, in sixteen letters."""
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
    """What -march=native would look at: a home folder may be shared by different machines."""
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
    """Why the last build failed, in one line; empty where none did, or long ago."""
    note = _beside(path, ".failed")
    try:
        if time.time() - note.stat().st_mtime > _FAILURE_LASTS_S:
            return ""
        lines = note.read_text(encoding="utf-8").strip().splitlines()
    except OSError:
        return ""
    errors = [line for line in lines if "error" in line] or lines or ["no message"]
    return f"the compiler failed: {errors[0].strip()[:200]}"


def _step_back() -> None:
    """Let everybody else run first: the compiler takes what is left over."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif hasattr(os, "nice"):
        os.nice(19)


if __name__ == "__main__":
    _step_back()
    build()
