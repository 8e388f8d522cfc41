"""A command on a pseudo-terminal, for tests of what only happens there."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.architecture.layout import ROOT

WAGER = [sys.executable, "-c", "from wager.cli.main import run; run()"]
PATIENCE_S = 120


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(self, handle: int, process: subprocess.Popen[bytes]) -> None:
        self._handle, self.process, self.seen = handle, process, ""

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self._handle, text.encode())

    def wait_for(self, found: Callable[[str], bool]) -> str:
        """Reads until the text since the last input is as wanted; fails at the end of the output."""
        while not found(self.seen):
            try:
                data = os.read(self._handle, 4096)
            except OSError:
                data = b""
            assert data, f"the command ended: {self.seen}"
            self.seen += data.decode(errors="replace")
        return self.seen

    def interrupt_prompt(self) -> None:
        """Presses Ctrl-C at the prompt until there is an answer.

        Python loses a Ctrl-C that comes just before it waits for a key, so another one follows after a while.
        """
        self.seen = ""
        while "Ctrl-C again" not in self.seen:
            os.write(self._handle, b"\x03")
            while select.select([self._handle], [], [], 5.0)[0] and "Ctrl-C again" not in self.seen:
                self.seen += os.read(self._handle, 4096).decode(errors="replace")


@contextmanager
def on_terminal(*args: str, home: Path) -> Iterator[Terminal]:
    parent, child = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WAGER_")}
    environment |= {
        "XDG_STATE_HOME": str(home),
        "TERM": "xterm-256color",
        "COLUMNS": "80",
        "WAGER_NATIVE": "off",
    }
    process = subprocess.Popen(
        [*WAGER, *args],
        cwd=ROOT,
        env=environment,
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
        preexec_fn=lambda: take_terminal(child),
    )
    os.close(child)
    watchdog = signal.signal(signal.SIGALRM, lambda *_: process.kill())
    signal.alarm(PATIENCE_S)
    try:
        yield Terminal(parent, process)
        process.wait(PATIENCE_S)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, watchdog)
        process.kill()
        process.wait()
        os.close(parent)


def take_terminal(child: int) -> None:
    fcntl.ioctl(child, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
