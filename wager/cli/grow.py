"""`wager grow`: enlarges a trained pair to the shape of a larger model without changing its output.

Finds the folders, prints the plan and writes the pair; the work is done in wager.train.grow. A grown pair
measures what a model size costs with real acceptance rates; published figures must say that it was grown.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wager.cli.flags import names_of
from wager.errors import ConfigError, InputError
from wager.gguf.header import require_folder
from wager.pairs import BUILT_IN, DEMO
from wager.train.grow_shape import PRESETS, SHAPE_WORDS

if TYPE_CHECKING:
    from wager.train.grow import GrowthPlan, SmallPair

_DTYPES = ("bfloat16", "float16", "float32", "float64")
_SHAPE_HELP = (
    f"A preset ({', '.join(PRESETS)}), sizes such as hidden=512,layers=24, or both: 8b,layers=40. "
    f"Names of sizes: {', '.join(SHAPE_WORDS)}. Without a preset the other sizes stay as they are."
)


def grow(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="New folder for the target, with its drafter inside.")
    ],
    shape: Annotated[str, typer.Option(metavar="SHAPE", help=_SHAPE_HELP)] = "8b",
    model: Annotated[
        str, typer.Option(*names_of("model"), metavar="FOLDER", help="The small target.")
    ] = DEMO,
    drafter: Annotated[
        str,
        typer.Option(
            *names_of("drafter"),
            metavar="FOLDER",
            help="Its DFlash drafter; auto takes the one beside the target, none omits it.",
        ),
    ] = "auto",
    dtype: Annotated[
        str, typer.Option(help=f"Data type of the stored weights: {', '.join(_DTYPES)}.")
    ] = "bfloat16",
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0,
) -> None:
    """Enlarge a trained pair to the shape of a larger model without changing its output.

    The acceptance rates are those of the small pair, and a pass costs as much as in a model of that size. If
    you publish figures of such a pair, say that it was grown.
    """
    import torch

    from wager.train.grow import plan_growth, write_pair

    if dtype not in _DTYPES:
        raise ConfigError("dtype", dtype, f"one of {', '.join(_DTYPES)}")
    plan = plan_growth(_find(model, drafter), shape, getattr(torch, dtype), seed)
    for line in _describe(plan):
        typer.echo(line)
    write_pair(plan, out, lambda file, number, count: typer.echo(f"  {number}/{count}  {file}"))
    typer.echo(f"Wrote {out}. If you publish figures of this pair, say that it was grown.")


def _find(model: str, drafter: str) -> SmallPair:
    from wager.engine.assemble import find_folder
    from wager.pairs import drafter_beside
    from wager.train.grow import SmallPair

    target = find_folder(model)
    require_folder(target, "growing")
    if drafter == "none":
        return SmallPair(target)
    if drafter != "auto" and drafter not in BUILT_IN:
        return SmallPair(target, find_folder(drafter))
    beside = drafter_beside(target) if drafter == "auto" else None
    if beside is None:
        raise InputError(
            f"{drafter!r}: no DFlash drafter beside {model}; name its folder, or none", "drafter"
        )
    return SmallPair(target, beside)


def _describe(plan: GrowthPlan) -> list[str]:
    """Returns the sizes of both networks before and after."""
    lines = [f"{plan.num_bytes / 1e9:.2f} GB to write in {str(plan.dtype).removeprefix('torch.')}"]
    for name, net in (("target", plan.target), ("drafter", plan.drafter)):
        if net is None:
            continue
        before, after, growth = net.growth.small, net.growth.big, net.growth
        lines.append(
            f"{name}: {before.num_layers} layers x {growth.hidden.small} -> {after.num_layers} x "
            f"{growth.hidden.big}, heads {before.num_heads}/{before.num_kv_heads} of {before.head_dim} -> "
            f"{after.num_heads}/{after.num_kv_heads} of {after.head_dim}, vocabulary {growth.vocab.small} -> "
            f"{growth.vocab.big}, {net.num_parameters / 1e6:,.1f} M parameters"
        )
    return lines
