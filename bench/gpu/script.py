"""The command line of the scripts in this folder: options from a dataclass, and `--tiny` without a device.

Each script has a record of options and a function that takes a session and those options. `python -m
bench.gpu.all` runs several scripts over one session. A tiny run checks the script; its times mean nothing,
and it writes results only where `--out` says.
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

from bench.gpu.grown import SHAPE, TINY_SHAPE, BenchSession
from wager.errors import ConfigError


class Script(NamedTuple):
    """One benchmark. `tiny` holds the options that a run without a device changes."""

    name: str
    text: str
    options: type[Any]
    tiny: Mapping[str, Any]
    run: Callable[[BenchSession, Any], None]

    def read_options(self, given: Mapping[str, str], tiny: bool) -> Any:
        """The options with the given texts read in. Raises ConfigError naming an unknown option."""
        options = replace(self.options(), **self.tiny) if tiny else self.options()
        defaults = {option.name: option.default for option in fields(self.options)}
        for name in given:
            if name not in defaults:
                raise ConfigError(self.name, name, f"one of {', '.join(defaults)}")
        return replace(options, **{name: read_value(defaults[name], text) for name, text in given.items()})


_SWITCH = {"true": True, "false": False}


def read_value(default: Any, text: str) -> Any:
    """Read an option's text as the type of its default; the values of a tuple are separated by commas.

    Raises ConfigError where a switch is neither true nor false.
    """
    if isinstance(default, bool):
        if text not in _SWITCH:
            raise ConfigError("switch", text, "true or false")
        return _SWITCH[text]
    if isinstance(default, tuple):
        kind = type(default[0])
        return tuple(kind(part) for part in text.split(",") if part)
    return type(default)(text)


def add_session_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tiny", action="store_true", help="grow the pair a little and write few tokens; runs on a CPU, too"
    )
    parser.add_argument("--shape", help=f"the shape that the pair is grown to [{SHAPE}; tiny: {TINY_SHAPE}]")
    parser.add_argument("--out", type=Path, help="folder for the result files [bench/results]")


def make_session(given: argparse.Namespace) -> BenchSession:
    if not given.tiny and not torch.cuda.is_available():
        raise SystemExit("no CUDA device; --tiny runs without one")
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("wager.engine").setLevel(logging.INFO)  # shows the progress of captures and calibration
    out = given.out
    if out is None and given.tiny:
        out = Path(tempfile.mkdtemp(prefix="tiny-results-"))
    return BenchSession(given.shape or (TINY_SHAPE if given.tiny else SHAPE), given.tiny, out)


def main(script: Script, arguments: Sequence[str] | None = None) -> None:
    """Run one script from its command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.gpu.{script.name}",
        description=script.text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_session_options(parser)
    for one in fields(script.options):
        shown = ",".join(map(str, one.default)) if isinstance(one.default, tuple) else one.default
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if isinstance(one.default, bool) else {}
        text = f"[{shown}]".replace("%", "%%")
        parser.add_argument("--" + one.name.replace("_", "-"), help=text, **switch)
    given = parser.parse_args(arguments)
    names = [one.name for one in fields(script.options)]
    texts = {name: text for name in names if (text := getattr(given, name)) is not None}
    run_script(script, make_session(given), script.read_options(texts, given.tiny))


def run_script(script: Script, session: BenchSession, options: Any) -> None:
    """Run a script over a session; failures are printed and kept in the result file."""
    session.errors = []
    before = session.elapsed
    session.say(f"-- {script.name}: {options}")
    with session.case(script.name):
        script.run(session, options)
    failed = f"{len(session.errors)} failed parts, {session.drafter_failures} failed drafts"
    session.say(f"-- {script.name}: {session.elapsed - before:.1f} s, {failed}")
