"""`wager models`: the pair that ships, the known published pairs, or the one that belongs to a name.

The tables and the search are in wager.pairs; this only shows them, with sizes where the files are here. It
fetches and loads nothing.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from wager.errors import InputError
from wager.pairs import PAIRS, SHIPPED, Match, Pair, find_pair, shipped_folder

SHIPPED_LICENCE = "Apache-2.0"
"""Of the weights that ship; what they were trained on is listed in LICENCES.md beside them."""


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A model's name or folder: show only its pair.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the known pairs of target and drafter, or find the one that belongs to a name.

    The pair that ships with Wager comes first. A name finds the pair whose target has the longest name
    inside it.
    """
    found = [Match(pair, True) for pair in (*SHIPPED, *PAIRS)] if name is None else [_only(name)]
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
    pair = match.pair
    found: dict[str, object] = {**pair._asdict(), "runs": pair.runs, "exact": match.exact}
    if pair in SHIPPED:
        sizes = {"target_bytes": num_bytes(pair.target), "drafter_bytes": num_bytes(pair.drafter)}
        found |= {"licence": SHIPPED_LICENCE, **sizes}
    return found


def num_bytes(name: str) -> int:
    """What a model that ships takes on the disk; 0 where it is missing."""
    folder = shipped_folder(name)
    assert folder is not None, name
    return sum(file.stat().st_size for file in folder.glob("*") if file.is_file())


def _note(pair: Pair) -> str:
    if pair not in SHIPPED:
        return pair.note
    sizes = [num_bytes(pair.target), num_bytes(pair.drafter)]
    if not all(sizes):
        return f"{pair.note}, but is not in this installation"
    return f"{pair.note}; {' + '.join(f'{size / 1e6:.1f}' for size in sizes)} MB, {SHIPPED_LICENCE}"


def _table(pairs: list[Pair]) -> list[str]:
    rows = [("target", "drafter", "runs", "note")]
    rows += [(one.target, one.drafter, "yes" if one.runs else "no", _note(one)) for one in pairs]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
