"""What `wager top` shows of a server's state: figures, bets, acceptance by depth, and requests.

It draws a state as /wager/state sends it, and knows nothing of HTTP. Figures that a server does not send are
shown as a dash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["Heading", "draw", "summary_line"]

State = Mapping[str, Any]
_BUCKETS = ((0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 64))
"""Sizes of bets that are counted together; larger ones follow in a last group."""
_MAX_DEPTHS = 8
_BAR = 16
_BLOCKS = " ▁▂▃▄▅▆▇█"
_OTHER_LINES = 22
"""Lines of the screen besides the requests."""
_LEAST_REQUESTS = 4


class Heading(NamedTuple):
    """What is known besides the state."""

    url: str
    model: str = ""
    trouble: str = ""
    """Why there is no new state; empty if there is."""
    speeds: Sequence[float] = ()
    """Tokens per second of the last states."""


def draw(state: State | None, heading: Heading, console: Console) -> RenderableType:
    """Returns the whole screen; without any state, only its heading."""
    parts: list[RenderableType] = [_title(state, heading)]
    if heading.trouble:
        parts.append(Text(f"{heading.trouble} (trying again)", style="bold yellow"))
    if state is not None:
        parts += [Text(), _figures(state, heading), Text(), _charts(state), Text()]
        room = max(console.height - _OTHER_LINES, _LEAST_REQUESTS) if console.is_terminal else None
        parts.append(_requests(state, room))
    return Group(*parts)


def summary_line(state: State) -> str:
    """Returns the most important figures in one line, for output without a terminal."""
    parts = [f"{_count(state, 'running')} running, {_count(state, 'waiting')} waiting"]
    parts += [f"{_number(state, 'tokens_per_s', '.1f')} tokens/s", f"bet {_number(state, 'bet_mean', '.2f')}"]
    parts += [f"acceptance {_number(state, 'acceptance_ema', '.2f')}", f"ledger {_ledger(state)}"]
    return "  ".join([*parts, f"pages {_pages(state)}"])


def _title(state: State | None, heading: Heading) -> Text:
    title = Text("wager top", style="bold")
    for part in (heading.url, heading.model, f"policy {state['policy']}" if state else ""):
        if part:
            title.append(f" · {part}", style="not bold")
    return title


def _figures(state: State, heading: Heading) -> Table:
    table = Table.grid(padding=(0, 2), expand=False)
    for style in ("dim", "bold", "dim", "bold"):
        table.add_column(style=style, no_wrap=True)
    running = f"{_count(state, 'running')} running, {_count(state, 'waiting')} waiting"
    speed = f"{_number(state, 'tokens_per_s', '.1f')}  {_sparkline(heading.speeds)}".rstrip()
    table.add_row("tokens/s", speed, "requests", f"{running} (room for {state.get('max_rows', '-')})")
    table.add_row("tokens per step", _number(state, "tokens_per_step", ".2f"), "pages", _pages(state))
    table.add_row("acceptance", f"{_number(state, 'acceptance_ema', '.2f')} (EMA)", "ledger", _ledger(state))
    return table


def _charts(state: State) -> Table:
    """Bets by size on the left, acceptance by depth on the right."""
    table = Table.grid(padding=(0, 4))
    table.add_column()
    table.add_column()
    depths = list(state.get("acceptance_by_depth") or ())[:_MAX_DEPTHS]
    rates = [(str(depth), share, f"{share:.2f}") for depth, share in enumerate(depths, 1)]
    bets = Text(f"bets, mean {_number(state, 'bet_mean', '.2f')}", style="dim")
    right = Text("accepted at least so many guesses", style="dim")
    table.add_row(bets, right)
    table.add_row(_bars(_bet_rows(state), "green"), _bars(rates, "cyan"))
    return table


def _bet_rows(state: State) -> list[tuple[str, float, str]]:
    counts = list(state.get("bet_histogram") or ())
    total = sum(counts)
    rows = []
    for low, high in _BUCKETS:
        label = str(low) if low == high else f"{low}-{high}"
        rows.append((label, sum(counts[low : high + 1]) / total if total else 0.0))
    rows.append((f">{_BUCKETS[-1][1]}", sum(counts[_BUCKETS[-1][1] + 1 :]) / total if total else 0.0))
    return [(label, share, f"{share:.0%}" if share else "") for label, share in rows]


def _bars(rows: Sequence[tuple[str, float, str]], style: str) -> RenderableType:
    if not rows:
        return Text("none yet", style="dim")
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    table.add_column(style=style, width=_BAR, no_wrap=True)
    table.add_column(justify="right")
    for label, share, value in rows:
        table.add_row(label, "█" * round(share * _BAR), value)
    return table


def _requests(state: State, room: int | None) -> RenderableType:
    requests = state.get("requests")
    if requests is None:
        return Text("this server does not list its requests", style="dim")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="dim")
    names = ("request", "state", "prompt", "tokens", "of", "per step", "accepted", "speed")
    for name in names:
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    shown = list(requests)[:room]
    for one in shown:
        table.add_row(
            *(str(one.get(key, "-")) for key in ("id", "state", "prompt_tokens", "tokens", "max_tokens")),
            _number(one, "tokens_per_step", ".2f"),
            _number(one, "acceptance", ".2f"),
            _with_unit(one, "speedup"),
        )
    if not shown:
        return Text("no requests", style="dim")
    if len(shown) < len(requests):
        return Group(table, Text(f"and {len(requests) - len(shown)} more", style="dim"))
    return table


def _sparkline(values: Sequence[float]) -> str:
    highest = max(values, default=0.0)
    if highest <= 0.0:
        return ""
    return "".join(_BLOCKS[round(value / highest * (len(_BLOCKS) - 1))] for value in values).strip()


def _number(values: State, key: str, form: str) -> str:
    value = values.get(key)
    return "-" if value is None else format(value, form)


def _count(state: State, key: str) -> str:
    return str(state.get(key, "-"))


def _with_unit(values: State, key: str) -> str:
    return "-" if values.get(key) is None else f"{values[key]:.2f}x"


def _pages(state: State) -> str:
    used, total = state.get("pages_used"), state.get("pages_total")
    if used is None or not total:
        return "-"
    return f"{used} of {total} ({used / total:.0%})"


def _ledger(state: State) -> str:
    saved_ms = state.get("ledger_ms")
    if saved_ms is None:
        return "-"
    speed = "" if state.get("speedup") is None else f" ({state['speedup']:.2f}x plain decoding)"
    return f"{saved_ms / 1e3:+.2f} s{speed}"
