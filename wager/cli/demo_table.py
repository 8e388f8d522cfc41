"""The end of `wager demo`: the table by kind, what stands behind its figures, and where to go next.

It draws finished figures and measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wager.bench.figures import geometric_mean
from wager.cli.demo_runs import Figures, Trial, figures_by_kind, plain_scatter
from wager.cli.demo_screen import verdict

_NEXT = (
    ('wager generate -p "How do plants drink?"', "ask it yourself: a toy, do not trust what it says"),
    ("wager demo --temperature 0.8", "the same with sampling: the seed fixes the text, guesses or not"),
    ("wager demo --drafter demo/chain", "with the other drafter, a tiny model that guesses token by token"),
    ("wager models", "published pairs; `wager doctor MODEL` checks one of yours"),
    ("wager simulate", "what other policies would have done, on three machines"),
)


def show_end(trials: Sequence[Trial], console: Console) -> None:
    """Table and notes."""
    figures = figures_by_kind(trials)
    console.print()
    console.print(_table(figures))
    for line in _notes(figures, trials):
        console.print(line, soft_wrap=not console.is_terminal)


def show_next(console: Console) -> None:
    console.print("\nWhere to go next:")
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
    numbers = ("plain tokens/s", "Wager tokens/s", "speed-up", "tokens per step", "mean bet", "10-90 %")
    for name in numbers:
        footer = f"{mean:.2f}x" if name == "speed-up" else ""
        table.add_column(name, footer=footer, justify="right", max_width=8 if "tokens" in name else None)
    table.add_column("same text", justify="right")
    for one in figures:
        table.add_row(*_row(one))
    return table


def _row(one: Figures) -> list[str]:
    return [
        one.kind,
        f"{one.plain_tokens_per_s:.0f}",
        f"{one.wager_tokens_per_s:.0f}",
        f"{one.speedup:.2f}x",
        f"{one.tokens_per_step:.2f}",
        f"{one.bet_mean:.1f}",
        f"{one.bet_low:.0f}-{one.bet_high:.0f}",
        "yes" if one.identical else "NO",
    ]


def _notes(figures: Sequence[Figures], trials: Sequence[Trial]) -> list[str]:
    num_tokens = sum(one.num_tokens for one in figures)
    saved_s = sum(one.ledger_ms for one in figures) / 1e3
    lines = [
        f"{len(trials)} prompts, each answered twice plainly and twice with Wager, one at a time in mirrored "
        "order; times are of the whole answer.",
        f"Two plain runs of one prompt are {plain_scatter(trials):.1%} apart (median): less than that means "
        "nothing.",
        f"Ledger, kept by Wager itself while it runs: {saved_s:+.2f} s against plain decoding over "
        f"{num_tokens} tokens.",
    ]
    if all(one.identical for one in figures):
        return [*lines, "Every text is the same with and without guesses, token for token."]
    return [*lines, *(_parted(trial) for trial in trials if trial.first_difference is not None)]


def _parted(trial: Trial) -> str:
    return f"{trial.prompt.kind}: {verdict(trial)} (docs/exactness.md says when that may happen)"
