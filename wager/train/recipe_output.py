"""What the recipes print and how they end: lines with the time, and mistakes in one line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from wager.errors import WagerError
from wager.train.loop import Progress, progress_lines


def say(*words: object) -> None:
    print(time.strftime("%H:%M:%S"), *words, flush=True)


def show(progress: Progress) -> None:
    for line in progress_lines(progress):
        say(line)


def num_parameters(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def run_recipe(recipe: Callable[[], None]) -> None:
    """Runs a recipe, and ends the process with status 2 after a mistake, with 130 after Ctrl-C."""
    try:
        recipe()
    except WagerError as error:
        print(f"recipe: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
