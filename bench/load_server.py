"""A server in a process of its own, for the load benchmark: started, watched from outside, ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

READY_WITHIN_S = 120.0


class Footprint(NamedTuple):
    """What a process holds, as the system says."""

    files: int
    memory_bytes: int


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


class ServerProcess:
    """`wager serve`, with nothing said but the port and what `flags` say."""

    def __init__(self, flags: Sequence[str] = (), port: int = 0) -> None:
        self.address = Address("127.0.0.1", port or free_port())
        command = [sys.executable, "-c", "from wager.cli.main import run; run()", "serve"]
        command += [*flags, "--port", str(self.address.port), "--no-access-log"]
        self._began = time.monotonic()
        self._process = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        self.ready_after_s = 0.0
        self.memory_mib: list[float] = []
        """What a watcher saw, in order."""

    def wait_until_ready(self) -> None:
        url = f"http://{self.address.host}:{self.address.port}/health"
        while time.monotonic() - self._began < READY_WITHIN_S:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with status {self._process.returncode}")
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    if answer.status == 200:
                        self.ready_after_s = round(time.monotonic() - self._began, 2)
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise RuntimeError(f"the server was not ready within {READY_WITHIN_S:g} s")

    def footprint(self) -> Footprint:
        """Open files and memory. Linux only; zeros elsewhere."""
        folder = Path(f"/proc/{self._process.pid}")
        if not folder.is_dir():
            return Footprint(0, 0)
        pages = int((folder / "statm").read_text(encoding="ascii").split()[1])
        return Footprint(len(list((folder / "fd").iterdir())), pages * os.sysconf("SC_PAGE_SIZE"))

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        return self._process.wait(timeout=READY_WITHIN_S)

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
