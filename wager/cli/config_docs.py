"""Prints docs/config.md, generated from the fields: `python -m wager.cli.config_docs > docs/config.md`.

A test compares the page with this output, so the page always has every field. This file has only the text
around the tables; the rows come from wager.config and wager.resolve.
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

Every setting has the same name in four places: a keyword of `wager.LLM(...)`, a flag, an environment variable
and a key of a TOML file. These are the sources; a later one overrides the earlier ones:

1. the default;
2. a profile (`--profile`, else `WAGER_PROFILE`, else `profile` in the file);
3. a file (`--config`, else `WAGER_CONFIG`), with one table per section;
4. the environment;
5. flags.

`wager doctor` shows every effective value with its source. Unknown names are refused in each of them, with
the nearest known one. A flag that has no effect under the chosen policy is refused too: `--bod-max-bet` needs
the policy `bod`, and `--ema-margin` needs a policy with the gate `ema`, such as `ema+auto`.

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

These are the fields of `wager.SamplingParams` and the flags of `wager generate`. They belong to one request,
so the file and the environment cannot set them.
"""

_SECTIONS = {
    "model": "Model and device",
    "cache": "KV cache",
    "scheduler": "Scheduler",
    "policy": "Speculation policy",
    "server": "Server, for `wager serve` only",
    "": "Other settings",
}


def config_page() -> str:
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
    lines = [
        title,
        "",
        "| field | flag | variable | default | allowed | meaning |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_row, settings), ""])


def _row(setting: Setting) -> str:
    flag = f"`{setting.flag}`" + (f", `--no-{setting.flag[2:]}`" if setting.allowed.type is bool else "")
    default = "" if setting.default == "" else f"`{_toml(setting.default)}`"
    cells = (f"`{setting.name}`", flag, f"`{setting.variable}`", default, str(setting.allowed), setting.help)
    return f"| {' | '.join(cells)} |"


def _requests() -> Iterator[str]:
    yield from ("| field | flag | default | meaning |", "|---|---|---|---|")
    for field in fields(SamplingParams):
        default = "" if field.default in (None, ()) else f"`{_toml(field.default)}`"
        flag = f"`--{field.name.replace('_', '-')}`" if field.metadata["flag"] else ""
        yield f"| `{field.name}` | {flag} | {default} | {field.metadata['help']} |"


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    print(config_page(), end="")
