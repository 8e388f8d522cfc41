"""`wager models`: the known pairs of target and drafter, or the one that belongs to a name.

The table and the search are in wager.pairs; this only shows them. It fetches and loads nothing.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from wager.errors import InputError
from wager.pairs import PAIRS, Match, Pair, find_pair


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A model's name or folder: show only its pair.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the known pairs of target and drafter, or find the one that belongs to a name.

    A name finds the pair whose target has the longest name inside it.
    """
    found = [Match(pair, True) for pair in PAIRS] if name is None else [_only(name)]
    if as_json:
        typer.echo(json.dumps([_as_dict(match) for match in found], indent=1))
        return
    for line in _table([match.pair for match in found]):
        typer.echo(line)
    if name is not None and not found[0].exact:
        typer.echo(
            f"\n{name} is not that target itself: guesses stay exact, but fewer of them may be accepted."
        )


def _only(name: str) -> Match:
    match = find_pair(name)
    if match is None:
        raise InputError(f"no known pair for {name!r}; `wager models` lists them", "name")
    return match


def _as_dict(match: Match) -> dict[str, object]:
    return {**match.pair._asdict(), "runs": match.pair.runs, "exact": match.exact}


def _table(pairs: list[Pair]) -> list[str]:
    rows = [("target", "drafter", "runs", "note")]
    rows += [(one.target, one.drafter, "yes" if one.runs else "no", one.note) for one in pairs]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
