"""What `wager train` and `wager train-target` show while they run, on stderr: bars, or lines elsewhere.

Told of stages, written texts and reports; it knows no tensors and decides nothing. Also holds the first
Ctrl-C back until an update is finished, so that the checkpoint is whole.
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
    from wager.train.course import Watcher
    from wager.train.loop import Progress

_FIRST_INTERRUPT = b"\nwager: ends after this update, with a checkpoint; once more to end at once\n"
_NAMES = {"own_text": "the target writes", "heldout": "held-out texts"}


def report_line(progress: Progress) -> str:
    return (
        f"update {progress.update}/{progress.updates}  loss {progress.loss:.4f}  lr {progress.lr:.1e}  "
        f"{progress.rows_per_s:.3g} rows/s  {progress.elapsed_s:.0f} s"
    )


def evaluation_line(found: Mapping[str, float]) -> str:
    """Named figures, then the acceptance by depth without names."""
    named = [f"{name} {value:.3f}" for name, value in found.items() if not name.startswith("depth ")]
    depths = [f"{value:.2f}" for name, value in found.items() if name.startswith("depth ")]
    by_depth = [f"acceptance by depth {' '.join(depths)}"] if depths else []
    return "  held out: " + ", ".join([*named, *by_depth])


class LineScreen:
    """For pipes and files: a line for every stage and report."""

    def say(self, text: str) -> None:
        print(f"wager: {text}", file=sys.stderr, flush=True)

    def wrote(self, what: str, done: int, count: int) -> None:
        self.say(f"{_NAMES.get(what, what)}: {done} of {count}")

    def updated(self, progress: Progress) -> None:
        self.say(report_line(progress))
        if progress.evaluation:
            self.say(evaluation_line(progress.evaluation))


class BarScreen:
    """For a terminal: a bar for each stage; evaluations scroll by above."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def say(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)

    def wrote(self, what: str, done: int, count: int) -> None:
        self._move(_NAMES.get(what, what), done, count, "texts")

    def updated(self, progress: Progress) -> None:
        figures = f"loss {progress.loss:.4f}  lr {progress.lr:.1e}  {progress.rows_per_s:.3g} rows/s"
        self._move("updates", progress.update, progress.updates, figures)
        if progress.evaluation:
            self.say(f"update {progress.update}{evaluation_line(progress.evaluation)}")

    def _move(self, name: str, done: int, count: int, figures: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=count, figures=figures)
        self._bars.update(self._tasks[name], completed=done, figures=figures)


@contextmanager
def training_screen() -> Iterator[Watcher]:
    """Bars where stderr is a terminal, else lines."""
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
        TextColumn("{task.description:>17}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        yield BarScreen(bars)


@contextmanager
def held_interrupts() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C only makes the yielded question answer yes; the second interrupts."""
    asked = False

    def take(_number: int, _frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        # Not print: the handler may run in the middle of one.
        os.write(2, _FIRST_INTERRUPT)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, take)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
