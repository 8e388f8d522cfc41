"""Checks output files before the work starts, reports write errors, and shows progress. It knows no verb."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from wager.errors import InputError
from wager.extras import require

__all__ = [
    "ProgressCallback",
    "check_outputs",
    "check_picture",
    "progress_counter",
    "refuse_file_name",
    "write_errors",
]

_PICTURES = (".png", ".svg", ".pdf")

ProgressCallback = Callable[[int, int, str], None]
"""Called with the number done, the total, and the name of the next item."""


def check_outputs(files: Mapping[str, Path | None]) -> None:
    """Checks that every file can be written. Raises InputError naming the option."""
    for field, path in files.items():
        if path is None:
            continue
        if not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent}", field=field)
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise InputError(f"cannot write {path}", field=field)


def refuse_file_name(argument: str | None) -> None:
    """Refuses a positional argument that was meant as a file of results, as in `--json FILE.json`."""
    if argument is not None and argument.endswith(".json"):
        raise InputError(f"prints the results; --out {argument} writes them to a file", field="json")


def check_picture(path: Path | None) -> None:
    """Checks that a plot of this name can be drawn. Raises InputError if not."""
    if path is None:
        return
    if path.suffix.lower() not in _PICTURES:
        raise InputError(f"{path} must end in {', '.join(_PICTURES)}", field="plot")
    require("plot", "--plot")


@contextmanager
def write_errors(field: str) -> Iterator[None]:
    """Turns an OSError into an InputError that names the option."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", field=field) from error


@contextmanager
def progress_counter(total: int, noun: str, num_lines: int = 4) -> Iterator[ProgressCallback]:
    """Shows a bar if stderr is a terminal, otherwise prints `num_lines` lines over the whole run."""
    if not sys.stderr.isatty():
        yield _print_lines(noun, num_lines)
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


def _print_lines(noun: str, num_lines: int) -> ProgressCallback:
    def report(done: int, total: int, _label: str) -> None:
        if done and num_lines * done // total > num_lines * (done - 1) // total:
            print(f"wager: {done} of {total} {noun}", file=sys.stderr, flush=True)

    return report
