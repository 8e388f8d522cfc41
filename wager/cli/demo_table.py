"""Prints the end of `wager demo`: the table by kind of text, notes on it, and commands to try next."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wager.bench.figures import geometric_mean
from wager.cli.demo_runs import Figures, Trial, figures_by_kind, plain_noise
from wager.cli.demo_screen import verdict

_NEXT = (
    ('wager generate -p "How do plants drink?"', "ask the demo model; it is a toy, do not trust its answers"),
    ("wager demo --temperature 0.8", "use sampling; the seed fixes the text, with or without drafts"),
    ("wager demo --drafter demo/chain", "use the other drafter, a tiny model that drafts token by token"),
    ("wager models", "list published pairs; `wager doctor MODEL` checks your model"),
    ("wager simulate", "compare policies on recorded drafts, for three machines"),
)


def show_summary(trials: Sequence[Trial], console: Console) -> None:
    """Prints the table and the notes."""
    figures = figures_by_kind(trials)
    console.print()
    console.print(_table(figures))
    for line in _notes(figures, trials):
        console.print(line, soft_wrap=not console.is_terminal)


def show_next_commands(console: Console) -> None:
    console.print("\nCommands to try next:")
    width = max(len(command) for command, _ in _NEXT)
    for command, help in _NEXT:
        line = Text.assemble("  ", (command.ljust(width), "bold"), "  ", help)
        console.print(line, soft_wrap=not console.is_terminal)


def _table(figures: Sequence[Figures]) -> Table:
    table = Table(
        box=SIMPLE_HEAD, title="By kind of text", title_justify="left", padding=(0, 1, 0, 0), show_footer=True
    )
    table.add_column("kind", footer="geo. mean", no_wrap=True)
    mean = geometric_mean([one.speedup for one in figures])
    numbers = ("plain tokens/s", "Wager tokens/s", "speed-up", "tokens per step", "mean bet", "bet 10-90 %")
    for name in numbers:
        footer = f"{mean:.2f}x" if name == "speed-up" else ""
        table.add_column(name, footer=footer, justify="right", max_width=8 if "tokens" in name else None)
    table.add_column("same text", justify="right")
    for row in figures:
        table.add_row(*_cells(row))
    return table


def _cells(row: Figures) -> list[str]:
    return [
        row.kind,
        f"{row.plain_tokens_per_s:.0f}",
        f"{row.wager_tokens_per_s:.0f}",
        f"{row.speedup:.2f}x",
        f"{row.tokens_per_step:.2f}",
        f"{row.bet_mean:.1f}",
        f"{row.bet_low:.0f}-{row.bet_high:.0f}",
        "yes" if row.identical else "NO",
    ]


def _notes(figures: Sequence[Figures], trials: Sequence[Trial]) -> list[str]:
    num_tokens = sum(one.num_tokens for one in figures)
    saved_s = sum(one.ledger_ms for one in figures) / 1e3
    lines = [
        "The bet is the number of draft tokens that the model verifies in one step; 80 % of all bets are in "
        "the range 10-90 %.",
        f"{len(trials)} prompts, each answered twice by plain decoding and twice with Wager, one at a time "
        "in mirrored order. Times include the prompt.",
        f"Two plain runs of one prompt differ by {plain_noise(trials):.1%} (median); smaller differences in "
        "speed are noise.",
        f"Wager's own ledger: {saved_s:+.2f} s saved compared with plain decoding over {num_tokens} tokens.",
    ]
    if all(one.identical for one in figures):
        return [*lines, "Every text is the same with and without drafts, token for token."]
    return [*lines, *(_difference(trial) for trial in trials if trial.first_difference is not None)]


def _difference(trial: Trial) -> str:
    return f"{trial.prompt.kind}: {verdict(trial)} (docs/exactness.md explains when this can happen)"
