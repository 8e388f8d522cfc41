"""A progress bar over the prompts of a call, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wager.llm.outputs import Output


@contextmanager
def progress_bar(total: int, wanted: bool | None) -> Iterator[Callable[[Output], None]]:
    """Yields a function to be called with every finished output.

    `wanted` None shows the bar on a terminal, if there are several answers to wait for.
    """
    if not (sys.stderr.isatty() and total > 1 if wanted is None else wanted):
        yield lambda _output: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    speed = TextColumn("{task.fields[tokens]} tokens")
    columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
    num_tokens = 0
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total, tokens=0)

        def count(output: Output) -> None:
            nonlocal num_tokens
            num_tokens += len(output.token_ids)
            progress.update(task, advance=1, tokens=num_tokens)

        yield count
