"""Prints the table of `wager simulate`: the speed-up over plain decoding by content and cost curve.

Geometric means and notes follow below. Colours are used only on a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wager.bench.figures import geometric_mean
from wager.trace.hindsight import BEST_FIXED_NAME, ORACLE_NAME
from wager.trace.simulate import PLAIN_NAME, Cell

_NARROWEST = 100
_BEST = "bold green"


class _Line(NamedTuple):
    """One line of the table, with the cell of every policy."""

    content: str
    temperature: str
    costs: str
    cells: dict[str, Cell]


def show_table(cells: Sequence[Cell], console: Console | None = None) -> None:
    """Prints the comparison to `console`, by default stdout."""
    policies = _columns(cells)
    if console is None:
        console = Console()
        if not console.is_terminal:
            console = Console(width=max(_NARROWEST, 50 + 12 * len(policies)))
    lines = _lines(cells)
    table = _empty_table(policies)
    before = lines[0].content
    for line in lines:
        if line.content != before:
            table.add_row()
        before = line.content
        table.add_row(*_row(line, policies, console.is_terminal))
    table.add_section()
    for label, group in _mean_groups(lines):
        table.add_row(*_mean_row(label, group, policies, console.is_terminal))
    console.print(table)
    for text in _notes(lines, policies):
        console.print(text, highlight=False, soft_wrap=True)


def display_temperature(label: str) -> str:
    """Turns a label into a number: t0 -> 0, t08 -> 0.8, t12 -> 1.2."""
    digits = label.removeprefix("t")
    return f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits


def _columns(cells: Sequence[Cell]) -> list[str]:
    """Returns the requested policies, then the references. Plain decoding is the baseline and no column."""
    names = dict.fromkeys(cell.policy for cell in cells)
    requested = [name for name in names if name not in (PLAIN_NAME, BEST_FIXED_NAME, ORACLE_NAME)]
    return [*requested, BEST_FIXED_NAME, ORACLE_NAME]


def _lines(cells: Sequence[Cell]) -> list[_Line]:
    lines: dict[tuple[str, str, str], _Line] = {}
    for cell in cells:
        key = (cell.kind, cell.temperature, cell.costs)
        lines.setdefault(key, _Line(*key, {})).cells[cell.policy] = cell
    return list(lines.values())


def _empty_table(policies: list[str]) -> Table:
    table = Table(
        box=SIMPLE_HEAD, title="Speed-up over plain decoding", title_justify="left", padding=(0, 1, 0, 0)
    )
    table.add_column("content", no_wrap=True)
    table.add_column("T", justify="right", no_wrap=True)
    table.add_column("costs", no_wrap=True)
    table.add_column("plain tokens/s", justify="right", width=8)
    for policy in policies:
        width = 10 if policy == BEST_FIXED_NAME else 5
        table.add_column(policy, justify="right", overflow="fold", min_width=width)
    if "auto" in policies:
        table.add_column("auto / best", justify="right", width=6)
    return table


def _row(line: _Line, policies: list[str], coloured: bool) -> list[Text | str]:
    speedups = {name: line.cells[name].speedup for name in policies}
    shown = _speedups(speedups, coloured)
    length = line.cells[BEST_FIXED_NAME].detail
    shown[policies.index(BEST_FIXED_NAME)] += Text(f"{length or '':>5}", style="dim")
    plain = f"{line.cells[PLAIN_NAME].tokens_per_s:.0f}"
    where = [line.content, display_temperature(line.temperature), line.costs, plain]
    return [*where, *shown, *_ratio(speedups)]


def _mean_row(label: str, lines: list[_Line], policies: list[str], coloured: bool) -> list[Text | str]:
    means = {name: geometric_mean([line.cells[name].speedup for line in lines]) for name in policies}
    shown = _speedups(means, coloured)
    return ["geo. mean", "", label, "", *shown, *_ratio(means)]


def _speedups(speedups: dict[str, float], coloured: bool) -> list[Text]:
    """Marks the best speed-up, oracle-chain excluded: by colour on a terminal, otherwise by a star."""
    best = max(value for name, value in speedups.items() if name != ORACLE_NAME)
    shown = []
    for name, value in speedups.items():
        is_best = name != ORACLE_NAME and value == best
        star = "" if coloured else ("*" if is_best else " ")
        style = _BEST if is_best else ("dim" if name == ORACLE_NAME else "")
        shown.append(Text(f"{value:.2f}{star}", style=style))
    return shown


def _ratio(speedups: dict[str, float]) -> list[str]:
    return [f"{speedups['auto'] / speedups[BEST_FIXED_NAME]:.2f}"] if "auto" in speedups else []


def _mean_groups(lines: list[_Line]) -> list[tuple[str, list[_Line]]]:
    curves = list(dict.fromkeys(line.costs for line in lines))
    groups = [(curve, [line for line in lines if line.costs == curve]) for curve in curves]
    return groups if len(groups) == 1 else [*groups, ("all", lines)]


def _notes(lines: list[_Line], policies: list[str]) -> list[str]:
    """Explains the references, and names the slowest line of every requested policy, which a mean hides."""
    notes = [
        f"{BEST_FIXED_NAME}: the fixed draft length, shown beside it, that is fastest in this line.",
        f"{ORACLE_NAME}: the best chain length at every step, known in advance; a tree can be faster.",
    ]
    for name in policies[:-2]:
        worst = min(lines, key=lambda line: line.cells[name].speedup)
        behind = min(line.cells[name].ledger_min for line in lines)
        notes.append(
            f"{name}: slowest line {worst.cells[name].speedup:.3f}x plain "
            f"({worst.content} T={display_temperature(worst.temperature)}, {worst.costs}); "
            f"never more than {-behind:.1f} ms behind plain decoding"
        )
    return notes
