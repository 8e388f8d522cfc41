"""Shows the runs of `wager demo`: two columns on a terminal, lines of text elsewhere.

Runs are timed one at a time, before anything is drawn. On a terminal the first plain run and the first run
with drafts are then replayed together at their measured speed. This file runs no model; demo_table.py prints
the final table.
"""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from wager.cli.demo_runs import PLAIN, DemoPrompt, Frame, Run, Trial
from wager.cli.generate_screen import STYLES, OriginPainter
from wager.text.detokenize import Detokenizer
from wager.text.tokenizer import Tokenizer

_FRAME_S = 0.05
_PROMPT_LINES = 4
_AROUND_TEXT = 11
"""Lines of the terminal that are reserved for the prompt, the borders and the status."""


class DemoScreen(Protocol):
    """Shows one prompt after another."""

    def begin(self, prompt: DemoPrompt, order: Sequence[str], brief: bool) -> None:
        """Called before a prompt's runs. With `brief` the prompt is shown as one line."""
        ...

    def running(self, number: int) -> None:
        """Called before each run, with its number."""
        ...

    def show(self, trial: Trial, verdict: str) -> None:
        """Called after a prompt's runs; `verdict` says what they show."""
        ...

    def close(self) -> None:
        """Restores the terminal. Called at the end, also after an error."""
        ...


class QuietScreen:
    """Prints only progress, to stderr. Used with --json."""

    def begin(self, prompt: DemoPrompt, order: Sequence[str], brief: bool) -> None:
        print(f"wager: {prompt.kind}", file=sys.stderr, flush=True)

    def running(self, number: int) -> None: ...

    def show(self, trial: Trial, verdict: str) -> None: ...

    def close(self) -> None: ...


@contextmanager
def waiting(console: Console, text: str) -> Iterator[None]:
    """Shows on a terminal what the demo waits for; nothing runs beside it."""
    if not console.is_terminal:
        yield
        return
    with Live(Text(text, style="dim"), console=console, auto_refresh=False, transient=True):
        yield


class LineScreen:
    """Prints each prompt, its answer and both speeds as lines. Used for pipes and files."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._brief = False

    def begin(self, prompt: DemoPrompt, order: Sequence[str], brief: bool) -> None:
        self._brief = brief
        if not brief:
            self._console.print(Text(f"\n{prompt.kind}"))
            self._console.print(_indented(_some_lines(prompt, self._console.width - 4), "  > "))

    def running(self, number: int) -> None: ...

    def show(self, trial: Trial, verdict: str) -> None:
        if self._brief:
            self._console.print(brief_line(trial, verdict), soft_wrap=True)
            return
        plain, wager = trial.plain[0], trial.wager[0]
        self._console.print(_indented(plain.output.text.strip("\n"), "  | "), soft_wrap=True)
        self._console.print(Text(f"  plain  {_progress(plain, plain.time_s)}"))
        self._console.print(Text(f"  Wager  {_progress(wager, wager.time_s)}, {_bets(wager, wager.time_s)}"))
        self._console.print(Text(f"  {verdict}"))

    def close(self) -> None: ...


class SideBySideScreen:
    """Replays plain decoding on the left and Wager on the right of a terminal."""

    def __init__(
        self,
        console: Console,
        tokenizer: Tokenizer,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._tokenizer = tokenizer
        self._sleep = sleep
        self._clock = clock
        self._live: Live | None = None
        self._prompt: DemoPrompt | None = None
        self._order: Sequence[str] = ()
        self._brief = False

    def begin(self, prompt: DemoPrompt, order: Sequence[str], brief: bool) -> None:
        self._prompt, self._order, self._brief = prompt, order, brief
        self._live = Live(console=self._console, auto_refresh=False, transient=brief)
        self._live.start()

    def running(self, number: int) -> None:
        assert self._prompt is not None
        name = "plain decoding" if self._order[number] == PLAIN else "Wager"
        status = f"{self._prompt.kind}: timing {name}, run {number + 1} of {len(self._order)}"
        self._draw(Text(status, style="dim"))

    def show(self, trial: Trial, verdict: str) -> None:
        if self._brief:
            self.close()
            self._console.print(brief_line(trial, verdict))
            return
        styles = STYLES | {"guess": "underline"} if self._console.no_color else STYLES
        sides = [self._side(trial, run, styles) for run in (trial.plain[0], trial.wager[0])]
        height = min(max(side.num_lines for side in sides), max(self._console.height - _AROUND_TEXT, 4))
        began, end_s = self._clock(), max(side.run.time_s for side in sides)
        while (now_s := self._clock() - began) < end_s:
            status = Text(_bets(sides[1].run, now_s), style="dim")
            self._draw(self._view(trial, sides, now_s, height, status))
            self._sleep(_FRAME_S)
        self._draw(self._view(trial, sides, end_s, height, Text(verdict, style="bold")))
        self.close()
        self._console.print()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self, view: RenderableType) -> None:
        assert self._live is not None
        self._live.update(view, refresh=True)

    def _side(self, trial: Trial, run: Run, styles: dict[str, str]) -> _Side:
        painter = OriginPainter(Detokenizer(self._tokenizer, after=trial.prompt_ids), styles)
        events = [frame.event for frame in run.frames]
        pieces = [painter.paint(event.text, event.token_ids, event.origins) for event in events]
        title = "plain decoding" if run.policy == PLAIN else "Wager"
        return _Side(title, run, pieces, self._console, self._console.width // 2 - 4)

    def _view(
        self, trial: Trial, sides: Sequence[_Side], now_s: float, height: int, status: Text
    ) -> RenderableType:
        columns = Table.grid(expand=True, padding=(0, 0))
        for _ in sides:
            columns.add_column(ratio=1)
        columns.add_row(*(side.panel(now_s, height) for side in sides))
        kind = Text(trial.prompt.kind, style="bold")
        prompt = _indented(_some_lines(trial.prompt, self._console.width - 2), "  ", "dim")
        return Group(kind, prompt, columns, status)


@dataclass
class _Side:
    """One column: a run and its coloured text, one piece for each frame."""

    title: str
    run: Run
    pieces: list[Text]
    console: Console
    width: int
    _text: Text = field(default_factory=Text)
    _num_shown: int = 0

    @property
    def num_lines(self) -> int:
        """The number of lines of the whole text."""
        return len(Text.assemble(*self.pieces).wrap(self.console, self.width))

    def panel(self, now_s: float, height: int) -> Panel:
        """Draws the text that had arrived by `now_s`; only the last lines if it is longer than `height`."""
        while self._num_shown < len(self.run.frames) and self.run.frames[self._num_shown].at_s <= now_s:
            self._text.append_text(self.pieces[self._num_shown])
            self._num_shown += 1
        lines = list(self._text.wrap(self.console, self.width))[-height:]
        body = Text("\n").join(lines)
        return Panel(
            body,
            title=self.title,
            title_align="left",
            subtitle=_progress(self.run, now_s),
            subtitle_align="left",
            height=height + 2,
        )


def brief_line(trial: Trial, verdict: str) -> Text:
    """Describes a trial in one line."""
    plain, wager = trial.plain[0], trial.wager[0]
    speeds = f"plain {_speed(plain):.0f}, Wager {_speed(wager):.0f} tokens/s"
    return Text(f"{trial.prompt.kind}: {speeds}; {verdict}")


def _progress(run: Run, now_s: float) -> str:
    """Returns the tokens, seconds and tokens per second of a run until `now_s`."""
    now_s = min(now_s, run.time_s)
    count = sum(len(frame.event.token_ids) for frame in _until(run, now_s))
    speed = f"{count / now_s:.0f}" if now_s > 0.0 else "0"
    return f"{count} tokens in {now_s:.2f} s, {speed} tokens/s"


def _bets(run: Run, now_s: float) -> str:
    """Returns the bet of the last step and the tokens per step until `now_s`."""
    frames = _until(run, now_s)
    if not frames:
        return "processing the prompt"
    count = sum(len(frame.event.token_ids) for frame in frames)
    return f"bet {frames[-1].event.bet}, {count / len(frames):.2f} tokens per step"


def _until(run: Run, now_s: float) -> list[Frame]:
    return [frame for frame in run.frames if frame.at_s <= now_s]


def _speed(run: Run) -> float:
    return run.num_tokens / run.time_s


def _some_lines(prompt: DemoPrompt, width: int) -> str:
    """Returns the first lines of a question, or the last lines of a text to be continued."""
    text = prompt.display_text
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, width) or [""]]
    if len(lines) <= _PROMPT_LINES:
        return "\n".join(lines)
    if prompt.question is not None:
        return "\n".join([*lines[:_PROMPT_LINES], "..."])
    return "\n".join(["...", *lines[-_PROMPT_LINES:]])


def _indented(text: str, mark: str, style: str = "") -> Text:
    return Text("\n".join(mark + line for line in text.splitlines()), style=style)
