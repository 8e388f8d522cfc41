"""Shows the progress of `wager train` and `wager train-target` on stderr, as bars or as lines.

It also defers the first Ctrl-C until the current update is finished, so that the checkpoint is consistent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wager.train.drafter_training import TrainingListener
    from wager.train.loop import Progress

_FIRST_INTERRUPT = (
    b"\nwager: stopping after this update, with a checkpoint; press Ctrl-C again to stop at once\n"
)
_NAMES = {"own_text": "texts of the target", "heldout": "held-out texts"}


def report_line(progress: Progress) -> str:
    return (
        f"update {progress.update}/{progress.updates}  loss {progress.loss:.4f}  lr {progress.lr:.1e}  "
        f"{progress.rows_per_s:.3g} rows/s  {progress.elapsed_s:.0f} s"
    )


def evaluation_line(found: Mapping[str, float]) -> str:
    """Lists the named figures, then the acceptance rates by depth."""
    named = [f"{name} {value:.3f}" for name, value in found.items() if not name.startswith("depth ")]
    depths = [f"{value:.2f}" for name, value in found.items() if name.startswith("depth ")]
    by_depth = [f"acceptance by depth {' '.join(depths)}"] if depths else []
    return "  held out: " + ", ".join([*named, *by_depth])


class LineScreen:
    """Prints a line for every stage and report. Used for pipes and files."""

    def message(self, text: str) -> None:
        print(f"wager: {text}", file=sys.stderr, flush=True)

    def texts_written(self, what: str, done: int, count: int) -> None:
        self.message(f"{_NAMES.get(what, what)}: {done} of {count}")

    def updated(self, progress: Progress) -> None:
        self.message(report_line(progress))
        if progress.evaluation:
            self.message(evaluation_line(progress.evaluation))


class BarScreen:
    """Shows a bar for each stage on a terminal, and prints evaluations above the bars."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def message(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)

    def texts_written(self, what: str, done: int, count: int) -> None:
        self._move(_NAMES.get(what, what), done, count, "texts")

    def updated(self, progress: Progress) -> None:
        figures = f"loss {progress.loss:.4f}  lr {progress.lr:.1e}  {progress.rows_per_s:.3g} rows/s"
        self._move("updates", progress.update, progress.updates, figures)
        if progress.evaluation:
            self.message(f"update {progress.update}{evaluation_line(progress.evaluation)}")

    def _move(self, name: str, done: int, count: int, figures: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=count, figures=figures)
        self._bars.update(self._tasks[name], completed=done, figures=figures)


@contextmanager
def training_screen() -> Iterator[TrainingListener]:
    """Yields a screen with bars if stderr is a terminal, otherwise one with lines."""
    if not sys.stderr.isatty():
        yield LineScreen()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:>19}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        yield BarScreen(bars)


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns True after the first Ctrl-C. The second Ctrl-C interrupts."""
    interrupted = False

    def on_interrupt(_number: int, _frame: object) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        # NOTE: This handler may run inside a call of print, which is not reentrant.
        os.write(2, _FIRST_INTERRUPT)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, before)
