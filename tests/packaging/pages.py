"""Reads the fenced blocks of README.md and docs/*.md, and the comments that say how a test runs them.

A comment in front of a block changes how it is run; without one it is run as written:

    <!-- run: not, needs a GPU -->          the block is not run, for the stated reason
    <!-- run: slow -->                      it is run by `make test-slow` only
    <!-- run: slow
    with MODEL -> demo
    first echo 'a text' > texts.txt -->     replaces a text, and runs a line before the block

Blocks that name SmolLM2 are slow, too, because the model has to be fetched. The Python blocks of a page run
in order and share their names. A block that begins with `$ ` shows a session: its commands are checked but
not run, because people type into them. This file runs nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.architecture.layout import ROOT

PROGRAMS = {
    "wager",
    "pip",
    "python",
    "curl",
    "make",
    "source",
    "docker",
    "git",
    "cd",
    "export",
    "cat",
    "echo",
}
"""A block without a language is a shell block if each of its commands begins with one of these."""
LANGUAGES = {"sh": "sh", "bash": "sh", "shell": "sh", "python": "python", "py": "python"}
LANGUAGES |= {"toml": "toml", "json": "json"}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"<!-- run: ((?:(?!-->).)*?) ?-->\n+\Z", re.DOTALL)
_ASSIGNMENT = re.compile(r"^\w+=")


class MarkerError(Exception):
    """A comment that cannot be understood."""


class Marker(NamedTuple):
    """How a block is run."""

    reason: str = ""
    """Why it is not run; empty if it is."""
    is_slow: bool = False
    replaced: tuple[tuple[str, str], ...] = ()
    first: tuple[str, ...] = ()
    """Lines that are run before the block."""


class Block(NamedTuple):
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    """One of sh, session, python, toml and json; empty if it is none of them."""
    text: str
    """What a test runs."""
    marker: Marker

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_slow(self) -> bool:
        return self.marker.is_slow or self.names_smollm2

    @property
    def is_run(self) -> bool:
        return not self.marker.reason and self.language != "session"

    @property
    def commands(self) -> list[str]:
        """The shell commands of the block, of which there are none in other languages."""
        if self.language == "session":
            return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]
        return commands_of(self.text) if self.language == "sh" else []

    @property
    def names_smollm2(self) -> bool:
        return "smollm2" in self.text.lower()


def read_marker(text: str) -> Marker:
    """Reads the inside of a comment. Raises MarkerError if a line of it has no meaning."""
    if text.startswith("not"):
        reason = text.removeprefix("not").removeprefix(",").strip()
        if not reason:
            raise MarkerError("a block that is not run needs a reason: <!-- run: not, REASON -->")
        return Marker(reason)
    is_slow, replaced, first = False, [], []
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "slow" and not rest:
            is_slow = True
        elif word == "with" and " -> " in rest:
            old, _, new = rest.partition(" -> ")
            replaced.append((old, new))
        elif word == "first" and rest:
            first.append(rest)
        else:
            raise MarkerError(f"{line!r} is none of: not, slow, with OLD -> NEW, first LINE")
    return Marker("", is_slow, tuple(replaced), tuple(first))


def blocks_of(text: str, page: str) -> Iterator[Block]:
    """Yields the blocks of a page. Raises MarkerError for a comment that has no meaning or no effect."""
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        comment = _MARKER.search(text, 0, found.start())
        try:
            marker = read_marker(comment[1]) if comment else Marker()
            run = _changed(found[2], marker)
        except MarkerError as error:
            raise MarkerError(f"{page}:{line}: {error}") from error
        yield Block(page, line, _language(found[1], found[2]), run, marker)


def _changed(written: str, marker: Marker) -> str:
    for old, new in marker.replaced:
        if old not in written:
            raise MarkerError(f"{old!r} is to be replaced, but is not in the block")
        written = written.replace(old, new)
    return "".join(f"{line}\n" for line in marker.first) + written


def _language(tag: str, written: str) -> str:
    if written.startswith("$ "):
        return "session"
    if tag:
        return LANGUAGES.get(tag, "")
    try:
        programs = {program_of(command) for command in commands_of(written)}
    except ValueError:
        return ""
    return "sh" if programs and programs <= PROGRAMS else ""


def commands_of(text: str) -> list[str]:
    """Splits a shell block into commands of one or more lines. Raises ValueError at an open quote."""
    commands: list[str] = []
    begun = ""
    for line in text.splitlines():
        begun = f"{begun}\n{line}" if begun else line
        if begun.endswith("\\") or not _is_closed(begun):
            continue
        if shlex.split(begun, comments=True):
            commands.append(begun)
        begun = ""
    if begun:
        raise ValueError("a quote or a continued line has no end")
    return commands


def _is_closed(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def words_of(command: str) -> list[str]:
    """The words of a command without the variables in front and without the comment."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    while words and _ASSIGNMENT.match(words[0]):
        words.pop(0)
    return words


def program_of(command: str) -> str:
    words = words_of(command)
    return words[0].rpartition("/")[2] if words else ""


def all_blocks() -> list[Block]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [block for page in pages for block in _blocks_in(page)]


def _blocks_in(page: Path) -> Iterator[Block]:
    return blocks_of(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))
