"""`wager models`: lists the demo pair, fetchable models and published pairs, or the pair for one model.

The tables and the search are in wager.pairs; this file prints them. It downloads and loads nothing.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from wager.cli.help import complete_models
from wager.errors import InputError
from wager.fetched import FETCHABLE, is_fetched
from wager.pairs import FETCHED, PAIRS, SHIPPED, Match, Pair, find_pair, shipped_folder

SHIPPED_LICENCE = "Apache-2.0"
"""The licence of the demo weights. LICENCES.md beside them lists their training data."""


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Show only the pair for this model name or folder.",
            autocompletion=complete_models,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the known pairs of target and drafter, or find the pair for one model.

    The demo pair included in Wager comes first, then models that `wager fetch` brings. With NAME, the pair is
    shown whose target name is part of NAME; if there are several, the longest name wins.
    """
    found = [Match(pair, True) for pair in (*SHIPPED, *FETCHED, *PAIRS)] if name is None else [_find(name)]
    if as_json:
        typer.echo(json.dumps([_as_dict(match) for match in found], indent=1))
        return
    for line in _table([match.pair for match in found]):
        typer.echo(line)
    if name is not None and not found[0].exact:
        typer.echo(
            f"\n{name} is not exactly this target: the output stays exact, but fewer drafts may be accepted."
        )


def _find(name: str) -> Match:
    match = find_pair(name)
    if match is None:
        raise InputError(f"no known pair for {name!r}; `wager models` lists them", "name")
    return match


def _as_dict(match: Match) -> dict[str, object]:
    pair = match.pair
    found: dict[str, object] = {**pair._asdict(), "runs": pair.runs, "exact": match.exact}
    if pair in SHIPPED:
        sizes = {"target_bytes": num_bytes(pair.target), "drafter_bytes": num_bytes(pair.drafter)}
        found |= {"licence": SHIPPED_LICENCE, **sizes}
    if pair in FETCHED:
        model = FETCHABLE[pair.target]
        found |= {
            "licence": model.licence,
            "target_bytes": model.num_bytes,
            "drafter_bytes": num_bytes(pair.drafter),
            "fetched": is_fetched(pair.target),
        }
    return found


def num_bytes(name: str) -> int:
    """Returns the size on disk of a model that ships; 0 if it is missing."""
    place = shipped_folder(name)
    assert place is not None, name
    files = place.glob("*") if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file())


def _note(pair: Pair) -> str:
    if pair in FETCHED:
        model = FETCHABLE[pair.target]
        state = "fetched" if is_fetched(pair.target) else pair.note
        sizes_mb = f"{model.num_bytes / 1e6:.1f} + {num_bytes(pair.drafter) / 1e6:.1f} MB"
        return f"{state}; {sizes_mb}, {model.licence}"
    if pair not in SHIPPED:
        return pair.note
    sizes = [num_bytes(pair.target), num_bytes(pair.drafter)]
    if not all(sizes):
        return f"{pair.note}, but missing in this installation"
    return f"{pair.note}; {' + '.join(f'{size / 1e6:.1f}' for size in sizes)} MB, {SHIPPED_LICENCE}"


def _table(pairs: list[Pair]) -> list[str]:
    rows = [("target", "drafter", "runs", "note")]
    rows += [(one.target, one.drafter, "yes" if one.runs else "no", _note(one)) for one in pairs]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
