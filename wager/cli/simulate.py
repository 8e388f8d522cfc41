"""`wager simulate`: replays a recorded trace under several policies and compares them.

All flags are checked before the replay begins. The replay is in wager.trace; the table and the plot are in
simulate_table.py and simulate_plot.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from wager.cli.flags import names_of
from wager.cli.help import OUTPUT, policy_option
from wager.cli.outputs import check_outputs, check_picture, progress_counter, write_errors
from wager.errors import ConfigError
from wager.trace.bod_range import BodRange
from wager.trace.costs import NAMES, load_costs
from wager.trace.format import demo_traces, load_traces
from wager.trace.replay import Noise
from wager.trace.simulate import (
    REFERENCES,
    Comparison,
    Run,
    SimulateOptions,
    compare,
    plan,
    select,
)
from wager.trace.simulate import as_json as json_of

_STALLS = re.compile(r"(?P<chance>[0-9.eE+-]+)x(?P<factor>[0-9.eE+-]+)")


class _Outputs(NamedTuple):
    out: Path | None
    plot: Path | None
    decisions: Path | None


def _option(metavar: str | None, help: str, *names: str, group: str = "") -> Any:
    return typer.Option(
        *names, metavar=metavar, help=help, show_default=False, rich_help_panel=group or _REPLAY
    )


_REPLAY, _DISTURBANCES, _BOD = "Replay", "Disturbances", "Policy bod"


_TRACES = "Recorded drafts [default: a small trace included in Wager]."
_COSTS = "Costs of a machine: cpu, h200, moe or a JSON file [default: all three]."
_POLICY = (
    "Policy: auto, fixed:K, tree:B, bod or bod:tree, with an optional gate (ema+ or entropy+) before it "
    "[default: auto]."
)
_SHIFT = "Replay these kinds one after another, such as code+prose. Other kinds need --kind."
_NOISE = "Relative standard deviation of the times that policies observe."
_STALL = "Make a step F times as long with probability P, such as 0.01x20."
_FLOOR = "Largest loss against plain decoding, as a fraction of the time."
_TEMPERATURE = "Use only this temperature: 0.8 or t08."
_OUT = "Write all results here."
_PLOT, _QUIET = "Write a plot of bets and speeds here.", "Print no progress and no hints."
_DECISIONS = "Write every decision here, one per line."


def simulate(
    traces: Annotated[Path | None, _option("FILE.npz", _TRACES)] = None,
    costs: Annotated[list[str] | None, _option("CURVE", _COSTS)] = None,
    policy: Annotated[list[str] | None, policy_option(_POLICY, _REPLAY)] = None,
    kind: Annotated[list[str] | None, _option("KIND", "Use only this kind of content.")] = None,
    temperature: Annotated[list[str] | None, _option("T", _TEMPERATURE, *names_of("temperature"))] = None,
    shift: Annotated[list[str] | None, _option("KINDS", _SHIFT)] = None,
    rows: Annotated[int, typer.Option(help="Number of sequences in a batch.", rich_help_panel=_REPLAY)] = 1,
    noise: Annotated[float, typer.Option(help=_NOISE, rich_help_panel=_DISTURBANCES)] = 0.0,
    stalls: Annotated[str, _option("PxF", _STALL, group=_DISTURBANCES)] = "0x1",
    seed: Annotated[int, typer.Option(help="Seed of noise and stalls.", rich_help_panel=_DISTURBANCES)] = 0,
    floor: Annotated[float, typer.Option(help=_FLOOR, rich_help_panel=_REPLAY)] = 0.01,
    bod_mode: Annotated[str | None, _option("MODE", "chain or tree, for `bod`.", group=_BOD)] = None,
    bod_min_bet: Annotated[int | None, _option("N", "Smallest bet of `bod`.", group=_BOD)] = None,
    bod_max_bet: Annotated[int | None, _option("N", "Largest bet of `bod`.", group=_BOD)] = None,
    as_json: Annotated[bool, _option(None, "Print all results as JSON.", "--json", group=OUTPUT)] = False,
    out: Annotated[Path | None, _option("FILE.json", _OUT, *names_of("out"), group=OUTPUT)] = None,
    plot: Annotated[Path | None, _option("FILE.png", _PLOT, group=OUTPUT)] = None,
    decisions: Annotated[Path | None, _option("FILE.jsonl", _DECISIONS, group=OUTPUT)] = None,
    quiet: Annotated[bool, _option(None, _QUIET, "--quiet", "-q", group=OUTPUT)] = False,
) -> None:
    """Compare policies on recorded drafts, without running a model.

    Three references are always included: plain decoding (ar), the fixed draft length that was best for each
    line (best-fixed), and chains of the perfect length at every step (oracle-chain).
    """
    outputs = _Outputs(out, plot, decisions)
    check_outputs(outputs._asdict())
    check_picture(plot)
    options = SimulateOptions(
        rows, _noise(noise, stalls, seed), floor, BodRange(bod_mode, bod_min_bet, bod_max_bet)
    )
    curves = [load_costs(name) for name in dict.fromkeys(costs or NAMES)]
    recorded = demo_traces() if traces is None else load_traces(traces)
    contents = select(recorded.traces, kind or (), temperature or (), shift or ())
    comparison = plan(contents, curves, policy or ("auto",), options)
    runs = _run(comparison, outputs, quiet)
    _show(runs, as_json)
    _write(runs, comparison, outputs)
    if not quiet:
        _print_written(outputs, to_stderr=as_json)
    if traces is None and not (quiet or as_json):
        _print_hints()


def _noise(spread: float, stalls: str, seed: int) -> Noise:
    match = _STALLS.fullmatch(stalls)
    try:
        chance, factor = (float(match["chance"]), float(match["factor"])) if match else (-1.0, -1.0)
    except ValueError:
        match = None
    if match is None:
        raise ConfigError("stalls", stalls, "a chance and a factor, such as 0.01x20")
    return Noise(spread, chance, factor, seed)


def _run(comparison: Comparison, outputs: _Outputs, quiet: bool) -> list[Run]:
    with ExitStack() as stack:
        sink: Callable[[dict[str, object]], None] | None = None
        if outputs.decisions is not None:
            stack.enter_context(write_errors("decisions"))
            file = stack.enter_context(outputs.decisions.open("w", encoding="utf-8"))

            def sink(record: dict[str, object]) -> None:
                file.write(json.dumps(record) + "\n")

        progress = None if quiet else stack.enter_context(progress_counter(comparison.num_cells, "cells"))
        return compare(comparison, progress, sink)


def _show(runs: list[Run], as_json: bool) -> None:
    from wager.cli.simulate_table import show_table

    if as_json:
        typer.echo(json.dumps(json_of(runs), indent=1))
    else:
        show_table([run.cell for run in runs])


def _write(runs: list[Run], comparison: Comparison, outputs: _Outputs) -> None:
    if outputs.out is not None:
        with write_errors("out"):
            outputs.out.write_text(json.dumps(json_of(runs), indent=1) + "\n", encoding="utf-8")
    if outputs.plot is not None:
        from wager.cli.simulate_plot import draw

        with write_errors("plot"):
            draw(runs, comparison, outputs.plot)


def _print_written(outputs: _Outputs, *, to_stderr: bool) -> None:
    for path in outputs:
        if path is not None:
            typer.echo(f"wrote {path}", err=to_stderr)


def _print_hints() -> None:
    typer.echo(
        f"\nThis trace is included in Wager. Every run is compared with {', '.join(REFERENCES)}.\n"
        "Try: --policy fixed:5 --policy tree:16, --noise 0.1, --shift code+prose, --plot bets.png.\n"
        "docs/policy.md explains how bets are chosen, docs/trace-format.md how to record your own trace."
    )
