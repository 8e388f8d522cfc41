"""How the scripts of this folder are called: options from a dataclass, `--tiny` for a run without a device.

Each script has a record of options and a function of a world and those options; `python -m bench.gpu.all`
runs several of them over one world. A tiny run checks the script, its times mean nothing; it writes results
only where `--out` says.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.gpu.grown import SHAPE, TINY_SHAPE, World
from wager.errors import ConfigError


class Script(NamedTuple):
    """One benchmark. `options()` are the device's; `tiny` is what a run without one changes."""

    name: str
    text: str
    options: type[Any]
    tiny: Mapping[str, Any]
    run: Callable[[World, Any], None]

    def chosen(self, given: Mapping[str, str], tiny: bool) -> Any:
        """The options with what was given as text. Raises ConfigError naming an unknown one."""
        options = replace(self.options(), **self.tiny) if tiny else self.options()
        known = {one.name: one.default for one in fields(self.options)}
        for name in given:
            if name not in known:
                raise ConfigError(self.name, name, f"one of {', '.join(known)}")
        return replace(options, **{name: read_value(known[name], text) for name, text in given.items()})


def read_value(default: Any, text: str) -> Any:
    """A flag's text as its default is written: a list has commas between."""
    if isinstance(default, tuple):
        kind = type(default[0])
        return tuple(kind(part) for part in text.split(",") if part)
    return type(default)(text)


def add_world(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tiny", action="store_true", help="a small growth and few tokens, on a CPU if need be"
    )
    parser.add_argument("--shape", help=f"what the pair is grown to [{SHAPE}; tiny: {TINY_SHAPE}]")
    parser.add_argument("--out", type=Path, help="folder of the result files [bench/results]")


def make_world(given: argparse.Namespace) -> World:
    if not given.tiny and not torch.cuda.is_available():
        raise SystemExit("no CUDA device; --tiny runs without one")
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("wager.engine").setLevel(logging.INFO)  # captures and calibration take their time
    out = given.out
    if out is None and given.tiny:
        out = Path(tempfile.mkdtemp(prefix="tiny-results-"))
    return World(given.shape or (TINY_SHAPE if given.tiny else SHAPE), given.tiny, out)


def main(script: Script, arguments: Sequence[str] | None = None) -> None:
    """Run one script from its command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.gpu.{script.name}",
        description=script.text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_world(parser)
    for one in fields(script.options):
        shown = ",".join(map(str, one.default)) if isinstance(one.default, tuple) else one.default
        parser.add_argument("--" + one.name.replace("_", "-"), help=f"[{shown}]".replace("%", "%%"))
    given = parser.parse_args(arguments)
    names = [one.name for one in fields(script.options)]
    own = {name: text for name in names if (text := getattr(given, name)) is not None}
    run_one(script, make_world(given), script.chosen(own, given.tiny))


def run_one(script: Script, world: World, options: Any) -> None:
    """Run over a world; whatever it could not do is said and kept in the result."""
    world.errors = []
    before = world.elapsed
    world.say(f"-- {script.name}: {options}")
    with world.case(script.name):
        script.run(world, options)
    failed = f"{len(world.errors)} failures, {world.drafter_failures} of the drafter"
    world.say(f"-- {script.name}: {world.elapsed - before:.1f} s, {failed}")
