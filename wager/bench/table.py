"""The tables of `wager bench`: speed-ups by kind, figures of the steps, and notes on them.

It formats figures and computes nothing. It uses colours on a terminal and plain text elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wager.bench.figures import ALL_KINDS, Figures, Spread, Summary, is_fixed
from wager.bench.plan import BASELINE
from wager.bench.profile import timeline
from wager.bench.records import Measured
from wager.bench.report import Report

__all__ = ["notes", "show", "text_notes"]

GROWN = (
    "the pair is a small one enlarged without changing what it computes: "
    "acceptance is the small pair's, cost the large shape's"
)
_SPEEDS_TITLE = "Whole requests: tokens/s of plain decoding, and speed-up over it (10 % to 90 % of prompts)"
_BUSY = 0.5
_NARROWEST = 100
_BEST, _SLOWER = "bold green", "red"


def show(report: Report, console: Console | None = None) -> None:
    """Prints the run to stdout or `console`."""
    summary = report.summary
    if console is None:
        console = Console()
        if not console.is_terminal:
            console = Console(width=max(_NARROWEST, 30 + 18 * len(summary.contenders)))
    if not summary.kinds:
        console.print("no prompt was finished", highlight=False)
        return
    console.print(_SPEEDS_TITLE, style="bold", highlight=False)
    console.print(_speeds(summary))
    if any(figures.steps for figures in summary.cells.values()):
        console.print("Figures of the steps", style="bold", highlight=False)
        console.print(_steps(summary))
    if report.measured.profiles:
        console.print(
            "Where a step's time goes: medians, and shares of all steps", style="bold", highlight=False
        )
        console.print(timeline(report.measured.profiles))
    for line in notes(report):
        console.print(line, highlight=False, soft_wrap=True)


def _speeds(summary: Summary) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("kind", no_wrap=True)
    table.add_column(f"{BASELINE} tok/s", justify="right")
    rivals = _rivals(summary)
    for name in rivals:
        table.add_column(name, justify="right", no_wrap=True)
    if summary.best_fixed:
        table.add_column("best fixed", justify="right", no_wrap=True)
    for kind in summary.kinds:
        table.add_row(*_speed_row(summary, kind, rivals))
    table.add_section()
    means = [
        Text(f"{summary.overall[name]:.2f}{' ' * 12}", style=_tone(summary.overall[name])) for name in rivals
    ]
    best = [f"{summary.best_fixed_overall:.2f}{' ' * 9}"] if summary.best_fixed_overall else []
    table.add_row("geo. mean", "", *means, *best)
    return table


def _speed_row(summary: Summary, kind: str, rivals: Sequence[str]) -> list[str | Text]:
    cells = [summary.cells[name, kind].speedup for name in rivals]
    top = max((found.mean for found in cells if found), default=0.0)
    row: list[str | Text] = [kind, f"{summary.cells[BASELINE, kind].tokens_per_s:.1f}"]
    row += [_speedup(found, is_best=found is not None and found.mean == top) for found in cells]
    if kind in summary.best_fixed:
        best = summary.best_fixed[kind]
        row.append(f"{best.speedup:.2f} {best.contender:>8}")
    return row


def _speedup(found: Spread | None, *, is_best: bool) -> Text:
    if found is None:
        return Text("-")
    text = Text(f"{found.mean:.2f}", style=_BEST if is_best else _tone(found.mean))
    return text.append(f" {found.low:.2f}-{found.high:.2f}", style="dim")


def _tone(speedup: float) -> str:
    return _SLOWER if speedup < 0.98 else ""


def _steps(summary: Summary) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("policy", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    for head in ("tok/s", "after 1st", "tokens/step", "mean bet", "bet 0", "kept 1, 2, 4, 8 deep", "ledger"):
        table.add_column(head, justify="right")
    before = ""
    for (name, kind), figures in summary.cells.items():
        if figures.steps is None or name == BASELINE:
            continue
        if before and name != before:
            table.add_section()
        table.add_row("" if name == before else name, kind, *_step_row(figures))
        before = name
    return table


def _step_row(figures: Figures) -> list[str]:
    steps = figures.steps
    assert steps is not None
    depths = [
        f"{100 * steps.acceptance_by_depth[depth - 1]:.0f}"
        if depth <= len(steps.acceptance_by_depth)
        else "0"
        for depth in (1, 2, 4, 8)
    ]
    decode = figures.decode_tokens_per_s
    return [
        f"{figures.tokens_per_s:.1f}",
        "-" if decode is None else f"{decode:.1f}",
        f"{steps.tokens_per_step:.2f}",
        f"{steps.mean_bet:.1f}",
        f"{100 * steps.plain_share:.0f} %",
        " ".join(f"{depth:>3}" for depth in depths) + " %",
        f"{steps.ledger_ms / 1e3:+.2f} s",
    ]


def notes(report: Report) -> list[str]:
    """Returns notes on these figures, one line each."""
    summary, measured = report.summary, report.measured
    lines = []
    if control := summary.control.get(ALL_KINDS):
        lines.append(
            f"plain against plain: {control.mean:.3f} ({control.low:.2f}-{control.high:.2f}); "
            "single ratios vary this much because of the machine alone"
        )
    lines += [_against_best(summary, name) for name in _rivals(summary) if _adapts(summary, name)]
    lines += [_beside(summary, name) for name in _rivals(summary) if summary.kinds]
    lines += text_notes(measured)
    if (load := report.config.get("load_before")) and load > _BUSY:
        lines.append(f"the machine was busy before the run began: load {load:g}")
    if report.config.get("grown_from"):
        lines.append(GROWN)
    if not measured.finished:
        lines.append("interrupted: figures are of the prompts finished until then")
    return [line for line in lines if line]


def text_notes(measured: Measured) -> list[str]:
    """Returns whether the texts equal plain decoding's, and every exception."""
    rivals = [name for name in measured.compared if name != BASELINE]
    parted = {(one.contender, one.prompt) for one in measured.differences}
    same = [name for name in rivals if not any(name == contender for contender, _ in parted)]
    lines = [f"text identical to plain decoding's in every answer: {', '.join(same)}"] if same else []
    for one in measured.differences:
        kind, id = measured.prompts[one.prompt]
        why = "not looked up" if one.gap is None else f"plain decoding's two best were {one.gap:.1e} apart"
        verdict = "near-tie" if one.excused else "NOT a near-tie"
        lines.append(
            f"{one.contender} left plain decoding's text: {kind} {id}, token {one.position}: {verdict}, {why}"
        )
    return lines


def _against_best(summary: Summary, name: str) -> str:
    """Compares an adaptive policy with the best fixed length of every kind in hindsight."""
    if summary.best_fixed_overall is None:
        return ""
    ratios = {kind: summary.speedup(name, kind) / best.speedup for kind, best in summary.best_fixed.items()}
    least = min(ratios, key=lambda kind: ratios[kind])
    return (
        f"{name} / best fixed:K of each kind in hindsight: "
        f"{summary.overall[name] / summary.best_fixed_overall:.3f}, least {ratios[least]:.3f} ({least})"
    )


def _beside(summary: Summary, name: str) -> str:
    """Returns the speed after the first token, and the slowest kind."""
    slowest = min(summary.kinds, key=lambda kind: summary.speedup(name, kind))
    return (
        f"{name}: {summary.overall_decode[name]:.2f} after the first token; "
        f"slowest kind {slowest}, {summary.speedup(name, slowest):.2f}"
    )


def _adapts(summary: Summary, name: str) -> bool:
    has_steps = any(summary.cells[name, kind].steps for kind in summary.kinds)
    return has_steps and not is_fixed(name)


def _rivals(summary: Summary) -> list[str]:
    return [name for name in summary.contenders if name != BASELINE]
