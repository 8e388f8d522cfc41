"""Writes what `wager demo` says around its runs: the header, the table by kind of text, notes, and commands.

The figures come from demo_figures.py; this file only puts them into words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wager.cli.demo_figures import (
    BUSY_SCATTER,
    DISTURBED,
    DeclinedSteps,
    Figures,
    Overall,
    Scatter,
    Verdict,
    declined_steps,
    figures_by_kind,
    is_busy,
    overall,
    repetition,
    scatter_of,
    speedup_of,
    verdict_of,
)
from wager.cli.demo_runs import Trial
from wager.pairs import DEMO
from wager.policy import Reason

_REASONS = {
    Reason.UNMEASURED: "the time of a pass was not known yet",
    Reason.NO_DRAFT: "no drafter had a proposal",
    Reason.NO_ROOM: "the pass had no room for a guess of known cost",
    Reason.PRICE: "a draft would have cost more than it was expected to gain",
    Reason.LEDGER: "the ledger allowed no further loss",
    Reason.TIMING: "a plain pass was timed again",
    Reason.SCORES: "no guess of the draft was worth verifying",
    Reason.RULE: "the policy decided so",
}
_MOST_REASONS = 3
_LEAST_SHARE = 0.02
"""Share of the steps from which a reason is mentioned."""
_STYLES = {Verdict.FASTER: "green", Verdict.SLOWER: "red"}


class Setup(NamedTuple):
    """What the header shows besides the notes of the engine."""

    notes: Mapping[str, Any]
    num_weights: int
    file: Path
    """The model's file or folder."""
    cpu: str
    cores: int | None
    load: float | None
    """The load average before the model was loaded."""


# -- before the runs


def show_setup(setup: Setup, console: Console) -> None:
    """Prints the model, the drafter and the machine."""
    notes = setup.notes
    rows = (
        ("model", f"{notes['model']}, {_weights(setup)}"),
        ("drafter", f"{' and '.join(notes['drafter']['value'])} ({notes['drafter']['source']})"),
        ("policy", str(notes["policy"])),
        ("machine", _machine(setup)),
        ("passes", _passes(notes)),
        ("load", _load(setup)),
    )
    if not console.is_terminal:
        for name, said in rows:
            console.print(Text.assemble(f"  {name:<9}", said), soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2))
    for name, said in rows:
        grid.add_row(Text(f"  {name}", style="bold"), Text.assemble(said))
    console.print(grid)
    console.print()


def _weights(setup: Setup) -> str:
    millions = setup.num_weights / 1e6
    said = f"{millions:.0f} million weights" if millions >= 10 else f"{millions:.1f} million weights"
    if not setup.file.is_file():
        return said
    return f"{said} ({setup.file.name}, {setup.file.stat().st_size / 1e6:.0f} MB)"


def _machine(setup: Setup) -> str:
    device = str(setup.notes["device"]["value"])
    parts = [setup.cpu, f"{setup.cores} cores", f"{setup.notes['threads']} threads"]
    parts += [] if device == "cpu" else [device]
    return ", ".join(parts)


def _load(setup: Setup) -> Text:
    """Describes the load before the demo."""
    if setup.load is None:
        return Text("unknown")
    said = f"{setup.load:.1f} on {setup.cores} cores before the demo"
    if is_busy(setup.load, setup.cores):
        return Text(f"{said}: other programs are running, so times may scatter", style="yellow")
    return Text(said)


def _passes(notes: Mapping[str, Any]) -> str:
    value, source, layout = notes["passes"]["value"], notes["passes"]["source"], str(notes["layout"])
    if value == "torch":
        return f"plain torch, not native ({source})"
    return layout if layout.startswith(value) else f"{value}, {layout}"


# -- one prompt


def trial_words(trial: Trial, scatter: Scatter, *, brief: bool = False) -> str:
    """Says whether the texts of a prompt are the same, and what the times show; with `brief` only what is
    news.
    """
    place = trial.first_difference
    if place is None:
        same = "" if brief else f"the same {trial.plain[0].num_tokens} tokens in all four runs; "
        return f"{same}{_speed_words(trial, scatter)}"
    if trial.is_near_tie:
        return (
            f"the texts differ from token {place + 1} on, at a near-tie: "
            f"the two best scores are {trial.gap:.0e} apart"
        )
    return f"THE TEXTS DIFFER from token {place + 1} on"


def _speed_words(trial: Trial, scatter: Scatter) -> str:
    speedup, verdict = speedup_of(trial), verdict_of(trial, scatter)
    has_bets = any(any(run.bets) for run in trial.wager)
    if not has_bets:
        declined = declined_steps(trial.wager)
        slower = f", at {speedup:.2f}x the speed" if verdict is Verdict.SLOWER else ""
        why = _reason_words(declined)
        return f"no bet was made{_plain_words(declined)}{slower}{why and f' ({why})'}"
    if verdict is Verdict.FASTER:
        return f"Wager was faster, {speedup:.2f}x"
    if verdict is Verdict.SLOWER:
        return f"Wager was slower, {speedup:.2f}x"
    return f"no difference that this short run can show ({speedup:.2f}x)"


def _plain_words(declined: Sequence[DeclinedSteps]) -> str:
    """Adds that decoding was plain, unless drafts were made that were not used."""
    drafted = any(one.reason is Reason.SCORES for one in declined)
    return "" if drafted else ": plain decoding throughout"


def _reason_words(declined: Sequence[DeclinedSteps], num_steps: int = 0) -> str:
    """Lists the most frequent reasons with their shares of these steps, of those without a bet if 0."""
    total = num_steps or sum(one.num_steps for one in declined)
    shown = [one for one in declined if one.num_steps >= _LEAST_SHARE * total][:_MOST_REASONS]
    return ", ".join(f"{_one_reason(one)} {one.num_steps / total:.0%}" for one in shown)


def _one_reason(one: DeclinedSteps) -> str:
    said = _REASONS[one.reason]
    if one.reason in (Reason.PRICE, Reason.LEDGER) and one.price:
        said += f" (price {one.price:.2f} of a plain step, gain {one.gain:.2f} tokens)"
    return f"{said}:"


# -- the end


def show_summary(trials: Sequence[Trial], setup: Setup, console: Console, *, is_greedy: bool) -> None:
    """Prints the table and the notes. Precondition: there is a trial."""
    figures = figures_by_kind(trials)
    whole = overall(trials, figures)
    console.print()
    console.print(_table(figures, whole))
    console.print()
    console.print(Text(_overall_words(whole, trials), style="bold"), soft_wrap=not console.is_terminal)
    for line in _notes(figures, trials, setup, is_greedy=is_greedy):
        console.print(line, soft_wrap=not console.is_terminal)


def show_next_commands(model: str, console: Console) -> None:
    name = "" if model == DEMO else f" {model}"
    lines = [
        (f'wager generate{name} -p "How do plants drink?"', "ask the model yourself"),
        ("wager serve" + name, "serve it, with a page to watch every bet"),
        ("wager demo --temperature 0.8", "use sampling; a seed fixes the text"),
        ("wager demo --model demo", "race on the toy pair included in Wager"),
        (f"wager doctor{name}", "check the machine, the model and the drafter"),
        ("wager simulate", "compare policies on recorded drafts"),
    ]
    console.print("\nCommands to try next:")
    shown = [line for line in lines if model != DEMO or "--model demo" not in line[0]]
    width = max(len(command) for command, _ in shown)
    for command, help in shown:
        line = Text.assemble("  ", (command.ljust(width), "bold"), "  ", help)
        console.print(line, soft_wrap=not console.is_terminal)


def _table(figures: Sequence[Figures], whole: Overall) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, show_footer=True)
    table.title, table.title_justify = "By kind of text", "left"
    table.add_column("kind", footer="mean", no_wrap=True)
    for name in ("plain\ntok/s", "Wager\ntok/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("speed-up", footer=f"{whole.speedup:.2f}x", justify="right", no_wrap=True)
    for name in ("by prompt", "tokens\nper step", "mean\nbet", "same\ntext"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", footer=_styled(whole.verdict), no_wrap=True)
    for row in figures:
        table.add_row(*_cells(row))
    return table


def _cells(row: Figures) -> list[str | Text]:
    return [
        row.kind,
        f"{row.plain_tokens_per_s:.0f}",
        f"{row.wager_tokens_per_s:.0f}",
        f"{row.speedup:.2f}x",
        f"{row.lowest:.2f}-{row.highest:.2f}",
        f"{row.tokens_per_step:.2f}",
        f"{row.bet_mean:.1f}",
        "yes" if row.identical else "NO",
        _styled(row.verdict),
    ]


def _styled(verdict: Verdict) -> Text:
    return Text(verdict.value, style=_STYLES.get(verdict, ""))


def _notes(
    figures: Sequence[Figures], trials: Sequence[Trial], setup: Setup, *, is_greedy: bool
) -> list[str]:
    scatter = scatter_of(trials)
    lines = [
        f"Each prompt was answered twice by plain decoding and twice with Wager, in mirrored order; times "
        f"include the prompt. Two plain runs of one prompt differ by {scatter.difference:.1%} (median), so a "
        f"prompt shows no difference below {math.expm1(scatter.limit()):.0%}.",
        _bet_words(figures, trials),
        f"{repetition(trials):.0%} of all 8-grams of the {'greedy' if is_greedy else 'sampled'} answers had "
        "occurred in the same answer before; such text is easy to guess.",
    ]
    if busy := _busy_words(scatter, setup):
        lines.append(busy)
    if all(one.identical for one in figures):
        return [*lines, "Every text is the same with and without drafts, token for token."]
    return [*lines, *(_difference(trial, scatter) for trial in trials if trial.first_difference is not None)]


def _busy_words(scatter: Scatter, setup: Setup) -> str:
    """Says that the machine was busy; empty if it seems to have been idle."""
    load = f"load average {setup.load or 0.0:.1f} on {setup.cores} cores before the demo"
    if scatter.difference > BUSY_SCATTER:
        return (
            f"The machine was busy or changed its speed ({load}): plain runs of one prompt should agree "
            "better. Repeat the demo when it is idle."
        )
    if scatter.num_disturbed:
        return (
            f"Something disturbed the runs: for {scatter.num_disturbed} of {scatter.num_pairs} prompts two "
            f"plain runs differ by more than {DISTURBED:.0%} ({load})."
        )
    if is_busy(setup.load, setup.cores):
        return f"Other programs were running ({load}): on an idle machine both ways may be faster."
    return ""


def _overall_words(whole: Overall, trials: Sequence[Trial]) -> str:
    if whole.low is None or whole.high is None:
        return "One prompt says nothing about others."
    span = f"{whole.low:.2f}x to {whole.high:.2f}x"
    declined = declined_steps(run for trial in trials for run in trial.wager)
    over = f"{len(trials)} prompts: {whole.speedup:.2f}x, and {span} is the 95 % range for such prompts."
    said = {
        Verdict.FASTER: "Wager was faster on",
        Verdict.SLOWER: "Wager was slower on",
        Verdict.NO_BET: f"No bet was made{_plain_words(declined)} on",
    }
    return f"{said.get(whole.verdict, 'No difference that this short run can show on')} {over}"


def _bet_words(figures: Sequence[Figures], trials: Sequence[Trial]) -> str:
    runs = [run for trial in trials for run in trial.wager]
    num_steps = max(sum(len(run.bets) for run in runs), 1)
    bets = sum(bet > 0 for run in runs for bet in run.bets)
    said = "A bet is the number of guesses that one step verifies."
    said += f" Wager bet in {bets / num_steps:.0%} of its steps."
    why = _reason_words(declined_steps(runs), num_steps)
    saved_s = sum(one.ledger_ms for one in figures) / 1e3
    ledger = f"Its own ledger of one answer to each prompt: {saved_s:+.2f} s saved."
    return f"{said} {f'In the others, by share of all steps: {why}. ' if why else ''}{ledger}"


def _difference(trial: Trial, scatter: Scatter) -> str:
    words = trial_words(trial, scatter)
    return f"{trial.prompt.kind}: {words} (docs/exactness.md explains when this can happen)"
