"""`wager grow`: a trained pair in a big model's shape, computing what it did before.

Finds the folders, shows the plan and writes; what goes where is wager.train.grow's. The result is for
measuring what a size costs with real acceptance: it says so at the end, and so must whoever shows figures of
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wager.errors import ConfigError, InputError
from wager.pairs import BUILT_IN, DEMO
from wager.train.grow_shape import PRESETS, SHAPE_WORDS

if TYPE_CHECKING:
    from wager.train.grow import GrowthPlan, SmallPair

_DTYPES = ("bfloat16", "float16", "float32", "float64")
_SHAPE_HELP = (
    f"A preset ({', '.join(PRESETS)}), sizes such as hidden=512,layers=24, or both: 8b,layers=40. "
    f"Words: {', '.join(SHAPE_WORDS)}. Sizes not named are the preset's, or stay."
)


def grow(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New folder: the target, its drafter inside.")],
    shape: Annotated[str, typer.Option(metavar="SHAPE", help=_SHAPE_HELP)] = "8b",
    model: Annotated[str, typer.Option(metavar="FOLDER", help="The small target.")] = DEMO,
    drafter: Annotated[
        str, typer.Option(metavar="FOLDER", help="Its DFlash drafter; auto: the one beside it; none.")
    ] = "auto",
    dtype: Annotated[
        str, typer.Option(help=f"What weights are stored in: {', '.join(_DTYPES)}.")
    ] = "bfloat16",
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
) -> None:
    """Enlarge a trained pair to a big model's shape without changing what it computes.

    Guesses are accepted as in the small pair and passes cost what they do in a model of that size. State
    wherever you show its figures that the pair is a grown one.
    """
    import torch

    from wager.train.grow import plan_growth, write_pair

    if dtype not in _DTYPES:
        raise ConfigError("dtype", dtype, f"one of {', '.join(_DTYPES)}")
    plan = plan_growth(_find(model, drafter), shape, getattr(torch, dtype), seed)
    for line in _describe(plan):
        typer.echo(line)
    write_pair(plan, out, lambda file, number, count: typer.echo(f"  {number}/{count}  {file}"))
    typer.echo(f"Done: {out}. A grown pair: say so wherever its figures appear.")


def _find(model: str, drafter: str) -> SmallPair:
    from wager.engine.assemble import find_folder
    from wager.pairs import drafter_beside
    from wager.train.grow import SmallPair

    target = find_folder(model)
    if drafter == "none":
        return SmallPair(target)
    if drafter != "auto" and drafter not in BUILT_IN:
        return SmallPair(target, find_folder(drafter))
    beside = drafter_beside(target) if drafter == "auto" else None
    if beside is None:
        raise InputError(f"{drafter!r} finds none beside {model}: name a DFlash folder, or none", "drafter")
    return SmallPair(target, beside)


def _describe(plan: GrowthPlan) -> list[str]:
    """The sizes of both networks, before and after."""
    lines = [f"{plan.num_bytes / 1e9:.2f} GB to write in {str(plan.dtype).removeprefix('torch.')}"]
    for name, net in (("target", plan.target), ("drafter", plan.drafter)):
        if net is None:
            continue
        before, after, growth = net.growth.small, net.growth.big, net.growth
        lines.append(
            f"{name}: {before.num_layers} layers x {growth.hidden.small} -> {after.num_layers} x "
            f"{growth.hidden.big}, heads {before.num_heads}/{before.num_kv_heads} of {before.head_dim} -> "
            f"{after.num_heads}/{after.num_kv_heads} of {after.head_dim}, words {growth.vocab.small} -> "
            f"{growth.vocab.big}, {net.num_parameters / 1e6:,.1f} M parameters"
        )
    return lines
