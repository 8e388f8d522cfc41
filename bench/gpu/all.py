"""Run several of these benchmarks in one process, so that the grown pair is made once.

    python -m bench.gpu.all [--only floor batch load pair exactness passes] [--set pair.limit=2]

Each benchmark rewrites its result file as it goes on, so that a run that is cut short leaves what it has.
`bench.gpu.kernels` times kernels by themselves and is not part of this.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench.gpu import batch, exactness, floor, load, pair, passes
from bench.gpu.script import Script, add_session_options, make_session, run_script
from wager.errors import ConfigError

SCRIPTS: dict[str, Script] = {
    script.name: script
    for script in (floor.SCRIPT, batch.SCRIPT, load.SCRIPT, pair.SCRIPT, exactness.SCRIPT, passes.SCRIPT)
}
"""Passes come last, because they are profiled and a profiler makes later launches slower."""


def read_settings(words: Sequence[str]) -> dict[str, dict[str, str]]:
    """Read `SCRIPT.OPTION=VALUE` texts into options by script.

    Raises ConfigError where a text is not of that form.
    """
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
    add_session_options(parser)
    parser.add_argument("--only", nargs="+", choices=list(SCRIPTS), default=list(SCRIPTS))
    parser.add_argument("--set", nargs="+", default=[], metavar="SCRIPT.OPTION=VALUE")
    given = parser.parse_args(arguments)
    settings = read_settings(given.set)
    chosen = [
        (SCRIPTS[name], SCRIPTS[name].read_options(settings.get(name, {}), given.tiny)) for name in given.only
    ]
    session = make_session(given)
    for script, options in chosen:
        run_script(script, session, options)


if __name__ == "__main__":
    main()
