"""Several of these benchmarks in one process: the grown pair is made once.

    python -m bench.gpu.all [--only floor batch pair exactness passes] [--set pair.limit=2 batch.batches=64]

Each writes its own result file and goes on writing it as it gets on, so that a run cut short leaves what it
had. Kernels alone are bench.gpu.kernels'.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench.gpu import batch, exactness, floor, pair, passes
from bench.gpu.script import Script, add_world, make_world, run_one
from wager.errors import ConfigError

SCRIPTS: dict[str, Script] = {
    script.name: script
    for script in (floor.SCRIPT, batch.SCRIPT, pair.SCRIPT, exactness.SCRIPT, passes.SCRIPT)
}
"""Passes come last: they are profiled, and behind a profiler launches are slower for good."""


def read_settings(words: Sequence[str]) -> dict[str, dict[str, str]]:
    """`SCRIPT.OPTION=VALUE` by script. Raises ConfigError where a word is not one."""
    found: dict[str, dict[str, str]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        name, dot, option = key.partition(".")
        if not equals or not dot or name not in SCRIPTS:
            raise ConfigError("set", word, f"SCRIPT.OPTION=VALUE with {', '.join(SCRIPTS)}")
        found.setdefault(name, {})[option.replace("-", "_")] = value
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu.all",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_world(parser)
    parser.add_argument("--only", nargs="+", choices=list(SCRIPTS), default=list(SCRIPTS))
    parser.add_argument("--set", nargs="+", default=[], metavar="SCRIPT.OPTION=VALUE")
    given = parser.parse_args(arguments)
    settings = read_settings(given.set)
    chosen = [
        (SCRIPTS[name], SCRIPTS[name].chosen(settings.get(name, {}), given.tiny)) for name in given.only
    ]
    world = make_world(given)
    for script, options in chosen:
        run_one(script, world, options)


if __name__ == "__main__":
    main()
