"""`wager simulate`: replay a recorded trace under several policies and compare them.

Flags are turned into a checked comparison before any work begins, so that every mistake is one line at once.
The work is in wager.trace; the table and the plot are in the two files beside this one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from wager.cli.outputs import check_outputs, check_picture, counting, writing
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
    as_json,
    compare,
    plan,
    select,
)

_STALLS = re.compile(r"(?P<chance>[0-9.eE+-]+)x(?P<factor>[0-9.eE+-]+)")


class _Outputs(NamedTuple):
    json: Path | None
    plot: Path | None
    decisions: Path | None


def _many(help: str, metavar: str) -> Any:
    return typer.Option(help=help, metavar=metavar, show_default=False)


def simulate(
    traces: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Recorded drafts [default: a small trace].")
    ] = None,
    costs: Annotated[
        list[str] | None, _many("cpu, h200, moe or a JSON file [default: all three].", "CURVE")
    ] = None,
    policy: Annotated[
        list[str] | None,
        _many("auto, fixed:K, tree:B, bod, bod:tree; ema+ or entropy+ in front [default: auto].", "NAME"),
    ] = None,
    kind: Annotated[list[str] | None, _many("Only this kind of content.", "KIND")] = None,
    temperature: Annotated[list[str] | None, _many("Only this temperature, as 0.8 or t08.", "T")] = None,
    shift: Annotated[
        list[str] | None, _many("Kinds one behind the other, as code+prose; alone unless --kind.", "KINDS")
    ] = None,
    rows: Annotated[int, typer.Option(help="Sequences that share a pass.")] = 1,
    noise: Annotated[float, typer.Option(help="Relative spread of the times that policies see.")] = 0.0,
    stalls: Annotated[
        str, typer.Option(metavar="PxF", help="Chance and factor of stalls, as 0.01x20.", show_default=False)
    ] = "0x1",
    seed: Annotated[int, typer.Option(help="Seed of noise and stalls.")] = 0,
    floor: Annotated[float, typer.Option(help="How far the ledger may fall, as a part of the time.")] = 0.01,
    bod_mode: Annotated[str | None, typer.Option(metavar="MODE", help="chain or tree, for `bod`.")] = None,
    bod_min_bet: Annotated[int | None, typer.Option(metavar="N", help="Smallest bet of `bod`.")] = None,
    bod_max_bet: Annotated[int | None, typer.Option(metavar="N", help="Largest bet of `bod`.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE.json", help="Write all cells here.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw bets and speeds here.")] = None,
    decisions: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Write every decision here, a line each.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="The table alone: no progress, no hints.")] = False,
) -> None:
    """Replay a recorded trace under several policies and compare their speed with plain decoding's.

    Plain decoding (ar), the best fixed length in hindsight (best-fixed) and chains of perfect foresight
    (oracle-chain) are always compared too.
    """
    outputs = _Outputs(json_file, plot, decisions)
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
    _show(runs, comparison, outputs, quiet, is_demo=traces is None)


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
            stack.enter_context(writing("decisions"))
            file = stack.enter_context(outputs.decisions.open("w", encoding="utf-8"))

            def sink(record: dict[str, object]) -> None:
                file.write(json.dumps(record) + "\n")

        progress = None if quiet else stack.enter_context(counting(comparison.num_cells, "cells"))
        return compare(comparison, progress, sink)


def _show(runs: list[Run], comparison: Comparison, outputs: _Outputs, quiet: bool, *, is_demo: bool) -> None:
    from wager.cli.simulate_table import show_table

    show_table([run.cell for run in runs])
    if outputs.json is not None:
        with writing("json"):
            outputs.json.write_text(json.dumps(as_json(runs), indent=1) + "\n", encoding="utf-8")
    if outputs.plot is not None:
        from wager.cli.simulate_plot import draw

        with writing("plot"):
            draw(runs, comparison, outputs.plot)
    if not quiet:
        _say_where(outputs)
    if is_demo and not quiet:
        _say_next()


def _say_where(outputs: _Outputs) -> None:
    for path in outputs:
        if path is not None:
            typer.echo(f"wrote {path}")


def _say_next() -> None:
    references = ", ".join(REFERENCES)
    typer.echo(
        f"\nThis was the trace that ships with Wager. Every run compares with {references}.\n"
        "oracle-chain knows the future but bets on chains only, so a tree can be ahead of it.\n"
        "Next: --policy fixed:5 --policy tree:16, --noise 0.1, --shift code+prose, --plot bets.png;\n"
        "docs/policy.md says how bets are made, docs/trace-format.md how to bring a trace of your own."
    )
