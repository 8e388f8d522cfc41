"""`wager top`: a monitor in the terminal for a running server.

Asks the server for its state, draws it, and waits for the interval or a key. A server that does not answer is
asked again until it does. top_client.py asks, and top_view.py draws.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from wager.cli.help import OUTPUT, SERVER
from wager.cli.top_client import DEFAULT_URL, ServerAway, StateClient
from wager.cli.top_view import Heading, draw, summary_line
from wager.errors import ConfigError, one_line

_SPEEDS = 24
"""Number of states whose speed is drawn."""
_LEAST_INTERVAL_S, _MOST_INTERVAL_S = 0.1, 3600.0

WaitForKey = Callable[[float], str]
"""Waits for so many seconds at most and returns the key that was pressed, or an empty text."""


class Monitor:
    """One server, what was last heard of it, and its speeds."""

    def __init__(self, client: StateClient) -> None:
        self._client = client
        self.state: dict[str, Any] | None = None
        self._model = ""
        self._trouble = ""
        self._speeds: deque[float] = deque(maxlen=_SPEEDS)

    def ask(self) -> None:
        """Takes the server's state. Raises InputError if asking again cannot help."""
        try:
            if self._trouble or not self._model:  # another model may have been started meanwhile
                self._model = self._client.model()
            self.state = self._client.state()
        except ServerAway as error:
            self._trouble = one_line(error)
        else:
            self._trouble = ""
            self._speeds.append(float(self.state.get("tokens_per_s") or 0.0))

    @property
    def trouble(self) -> str:
        """Why the server did not answer; empty if it did."""
        return self._trouble

    @property
    def heading(self) -> Heading:
        return Heading(self._client.url, self._model, self._trouble, tuple(self._speeds))


def top(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help=f"Address of the server, or its port [default: {DEFAULT_URL}]."),
    ] = DEFAULT_URL,
    *,
    api_key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            envvar="WAGER_API_KEY",
            help="API key of the server.",
            rich_help_panel=SERVER,
        ),
    ] = "",
    interval: Annotated[
        float,
        typer.Option(metavar="S", help="Seconds between two updates.", rich_help_panel=SERVER),
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one table and end.", rich_help_panel=OUTPUT)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the state as JSON and end.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Watch a running server: requests, speed, bets, acceptance, the ledger and memory.

    q or Ctrl-C leaves. A server that is not there, or that goes away, is asked again until it answers.
    Without a terminal, every update is a line.
    """
    if not _LEAST_INTERVAL_S <= interval <= _MOST_INTERVAL_S:
        allowed = f"a number from {_LEAST_INTERVAL_S:g} to {_MOST_INTERVAL_S:g}"
        raise ConfigError("interval", interval, allowed)
    client = StateClient(url, api_key.partition(",")[0].strip())
    if as_json:
        typer.echo(json.dumps(client.state(), indent=1))
        return
    monitor, console = Monitor(client), Console(highlight=False)
    if once:
        _print_once(monitor, console)
    elif console.is_terminal:
        with _keys() as wait_for_key:
            _watch(monitor, console, interval, wait_for_key)
    else:
        _print_lines(monitor, interval)


def _print_once(monitor: Monitor, console: Console) -> None:
    monitor.ask()
    if monitor.state is None:
        raise ServerAway(monitor.trouble)
    console.print(draw(monitor.state, monitor.heading, console))


def _watch(monitor: Monitor, console: Console, interval: float, wait_for_key: WaitForKey) -> None:
    """Draws the screen until a key or Ctrl-C ends it."""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                monitor.ask()
                live.update(draw(monitor.state, monitor.heading, console), refresh=True)
                if wait_for_key(interval) in ("q", "Q", "\x1b"):
                    return
        except KeyboardInterrupt:
            return


def _print_lines(monitor: Monitor, interval: float) -> None:
    """Prints a line for every state, and one on stderr when the server goes away."""
    told = ""
    while True:
        monitor.ask()
        if monitor.trouble and monitor.trouble != told:
            print(f"wager: {monitor.trouble} (trying again)", file=sys.stderr, flush=True)
        elif not monitor.trouble and monitor.state is not None:
            print(summary_line(monitor.state), flush=True)
        told = monitor.trouble
        time.sleep(interval)


@contextmanager
def _keys() -> Iterator[WaitForKey]:
    """Yields a function that waits for a key; without a terminal as stdin it only waits."""
    try:
        import termios
        import tty
    except ImportError:
        termios = None  # type: ignore[assignment]
    if termios is None or not sys.stdin.isatty():
        yield _wait
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _key_within
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _key_within(seconds: float) -> str:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return sys.stdin.read(1) if ready else ""
