"""What verbs with result files share: checking the files before the work, writing them, and showing progress.

Every mistake is one line before anything runs. It knows no verb.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from wager.errors import InputError

__all__ = ["Count", "check_outputs", "check_picture", "counting", "writing"]

_PICTURES = (".png", ".svg", ".pdf")

Count = Callable[[int, int, str], None]
"""Called with how many are done, how many there are, and what comes next."""


def check_outputs(files: Mapping[str, Path | None]) -> None:
    """Every file must be writable before the work is done. Raises InputError naming the option."""
    for field, path in files.items():
        if path is None:
            continue
        if not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent}", field=field)
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise InputError(f"cannot write {path}", field=field)


def check_picture(path: Path | None, field: str = "plot") -> None:
    if path is not None and path.suffix.lower() not in _PICTURES:
        raise InputError(f"{path} must end in {', '.join(_PICTURES)}", field=field)


@contextmanager
def writing(field: str) -> Iterator[None]:
    """A file that cannot be written is one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", field=field) from error


@contextmanager
def counting(total: int, noun: str, parts: int = 4) -> Iterator[Count]:
    """A bar on a terminal; elsewhere a line at every part of the way. On stderr both."""
    if not sys.stderr.isatty():
        yield _lines(noun, parts)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        Remaining(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, _total, label: bar.update(task, completed=done, description=label)


def _lines(noun: str, parts: int) -> Count:
    def tell(done: int, total: int, _label: str) -> None:
        if done and parts * done // total > parts * (done - 1) // total:
            print(f"wager: {done} of {total} {noun}", file=sys.stderr, flush=True)

    return tell
