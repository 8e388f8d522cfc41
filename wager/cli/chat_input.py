"""Reads what the user types in `wager chat`: one entry at a time, of one or several lines.

A line that ends in a backslash is continued on the next one, and so is everything between two lines with
three quotation marks. On a terminal readline edits lines, keeps a history and completes commands, where
Python has it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Entries", "history_file", "read_piped_line", "read_terminal_line", "use_readline"]

_QUOTES = '"""'
_PROMPT, _MORE = "> ", ". "
_MAX_HISTORY = 1000


class Entries:
    """Reads entries until the end of the input."""

    def __init__(self, read_line: Callable[[str], str], warn: Callable[[str], None]) -> None:
        """`read_line` shows a prompt and returns a line; it raises EOFError at the end of the input."""
        self._read_line, self._warn = read_line, warn
        self._interrupted = False

    def next(self) -> str | None:
        """Returns an entry that is not blank, or None at the end. The second Ctrl-C in a row ends it, too."""
        while True:
            try:
                text = self._entry()
            except EOFError:
                return None
            except KeyboardInterrupt:
                if self._interrupted:
                    return None
                self._interrupted = True
                self._warn("Ctrl-C again, Ctrl-D or /exit leaves")
                continue
            self._interrupted = False
            if text.strip():
                return text

    def _entry(self) -> str:
        line = self._read_line(_PROMPT)
        if line.strip().startswith(_QUOTES):
            return self._until_quotes(line.strip().removeprefix(_QUOTES))
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            try:
                lines.append(self._read_line(_MORE))
            except EOFError:
                break
        return "\n".join(lines)

    def _until_quotes(self, first: str) -> str:
        lines = [first] if first else []
        while not (lines and lines[-1].rstrip().endswith(_QUOTES)):
            try:
                lines.append(self._read_line(_MORE))
            except EOFError:
                break
        text = "\n".join(lines)
        return text.rstrip().removesuffix(_QUOTES).removesuffix("\n")


def read_terminal_line(prompt: str) -> str:
    """Reads a line from the terminal; what follows an interrupted one begins on a line of its own."""
    try:
        return input(prompt)
    except (KeyboardInterrupt, EOFError):
        print()
        raise


def read_piped_line(_prompt: str) -> str:
    """Reads a line of a file or a pipe, without a prompt."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")


def history_file() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "wager" / "chat_history"


def use_readline(commands: Sequence[str]) -> Callable[[], None]:
    """Prepares readline, and returns a function that stores the history. Without readline nothing happens."""
    try:
        import readline
    except ImportError:
        return lambda: None
    path = history_file()
    with suppress(OSError):  # there is none yet, or it cannot be read
        readline.read_history_file(path)
    readline.set_completer_delims(" \t\n")
    readline.set_completer(_completer(readline, commands))
    is_editline = "libedit" in (getattr(readline, "__doc__", None) or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_editline else "tab: complete")
    return lambda: _store(readline, path)


def _completer(readline: Any, commands: Sequence[str]) -> Callable[[str, int], str | None]:
    def complete(text: str, state: int) -> str | None:
        """Offers the commands at the beginning of a line."""
        if readline.get_begidx() or not text.startswith("/"):
            return None
        found = [command for command in commands if command.startswith(text)]
        return found[state] if state < len(found) else None

    return complete


def _store(readline: Any, path: Path) -> None:
    with suppress(OSError):  # a history that cannot be stored is no reason to fail
        path.parent.mkdir(parents=True, exist_ok=True)
        readline.set_history_length(_MAX_HISTORY)
        path.touch(mode=0o600)
        readline.write_history_file(path)
