"""Writes docs/config.md from the fields: `python -m wager.cli.config_docs > docs/config.md`.

A test compares the page with what this prints, so a new field cannot be forgotten there. It knows the wording
around the tables; every row comes from wager.config and wager.resolve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import groupby

from wager.config import Setting, settings_of
from wager.records import SamplingParams
from wager.resolve import PROFILES
from wager.server_config import ServeConfig

_INTRO = """\
# Configuration

This page is generated from the fields of `wager/config.py` and `wager/server_config.py` by
`python -m wager.cli.config_docs`.

Every setting has one name in four places: a keyword of `wager.LLM(...)`, a flag, a variable of the
environment and a key of a TOML file. Sources, each outranking those before it:

1. the default;
2. a profile (`--profile`, else `WAGER_PROFILE`, else `profile` in the file);
3. a file (`--config`, else `WAGER_CONFIG`), with one table per section;
4. the environment;
5. flags.

`wager doctor` shows every effective value with its source. Unknown names are refused in each of them, with
the nearest known one. Two values of one source that contradict each other are refused, such as
`--bod-enabled --policy fixed:3` or `--policy ema+auto --gate entropy`; between two sources the higher one
wins. A flag that would do nothing is refused too: `--bod-max-bet` needs the policy `bod`, `--ema-margin` the
gate `ema`.

```toml
profile = "latency"
threads = 4

[model]
model = "models/mine"

[policy]
policy = "ema+auto"
```
"""

_REQUEST = """\
## Requests

Fields of `wager.SamplingParams`, and flags of `wager generate`. They belong to one request, so files and
environment do not set them.
"""

_SECTIONS = {
    "model": "What is run, and on what",
    "cache": "The pages that hold keys and values",
    "scheduler": "Who runs when",
    "policy": "How much is bet",
    "server": "Only for `wager serve`",
    "": "Everything else",
}


def config_page() -> str:
    """The whole page."""
    parts = [_INTRO, _profiles()]
    parts += [
        _section(name, list(rows)) for name, rows in groupby(settings_of(ServeConfig), lambda s: s.section)
    ]
    return "\n".join([*parts, _REQUEST, "\n".join(_requests())]) + "\n"


def _profiles() -> str:
    lines = ["## Profiles", "", "| profile | sets |", "|---|---|"]
    for name, values in PROFILES.items():
        lines.append(f"| `{name}` | {', '.join(f'`{key} = {value}`' for key, value in values.items())} |")
    return "\n".join([*lines, ""])


def _section(name: str, settings: list[Setting]) -> str:
    title = f"## {_SECTIONS[name]}" + (f" (`[{name}]`)" if name else "")
    lines = [title, "", "| field | flag | variable | default | allowed | |", "|---|---|---|---|---|---|"]
    return "\n".join([*lines, *map(_row, settings), ""])


def _row(one: Setting) -> str:
    flag = f"`{one.flag}`" + (f", `--no-{one.flag[2:]}`" if one.allowed.type is bool else "")
    default = "" if one.default == "" else f"`{_toml(one.default)}`"
    return f"| `{one.name}` | {flag} | `{one.variable}` | {default} | {one.allowed} | {one.help} |"


def _requests() -> Iterator[str]:
    yield from ("| field | flag | default | |", "|---|---|---|---|")
    for one in fields(SamplingParams):
        default = "" if one.default in (None, ()) else f"`{_toml(one.default)}`"
        flag = f"`--{one.name.replace('_', '-')}`" if one.metadata["flag"] else ""
        yield f"| `{one.name}` | {flag} | {default} | {one.metadata['help']} |"


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    print(config_page(), end="")
