"""How the help of a verb looks, and what a shell completes.

An option belongs to the group that its `rich_help_panel` names. The groups are printed as plain sections,
which fit into 80 columns and can be searched. main.py uses `GroupedCommand` for every verb.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

__all__ = [
    "BY_SETTING",
    "MACHINE",
    "MEMORY",
    "MODEL",
    "OTHER_POLICIES",
    "OUTPUT",
    "PROMPT",
    "SAMPLING",
    "SERVER",
    "SETTINGS",
    "SPECULATION",
    "THINKING",
    "Completion",
    "GroupedCommand",
    "complete_models",
    "completing",
    "policy_option",
    "write_section",
]

PROMPT, MODEL, SAMPLING, SPECULATION = "Prompt", "Model", "Sampling", "Speculation"
THINKING, OUTPUT, SERVER, MACHINE = "Thinking", "Output", "Server", "Machine"
MEMORY, SETTINGS = "Memory and batches", "Where settings come from"
OTHER_POLICIES = "Policies bod, ema and entropy"
_ORDER = (
    *(PROMPT, MODEL, SAMPLING, SPECULATION, OTHER_POLICIES, THINKING),
    *(OUTPUT, SERVER, MACHINE, MEMORY, SETTINGS),
)
"""The order of the groups; groups that are not listed come before OUTPUT."""
_OTHER = "Other options"
_WIDTH = 26
"""Width of the column of options. A longer one has a line of its own."""

Completion = Callable[[str], list[str]]


class GroupedCommand(TyperCommand):
    """A verb whose help shows its options by group."""

    # NOTE: typer contains its own copy of click, whose classes have no public names. Contexts are `Any` here.
    def format_options(self, ctx: Any, formatter: Any) -> None:
        params = self.get_params(ctx)
        arguments = [param for param in params if param.param_type_name == "argument"]
        write_section(formatter, "Arguments", [_argument_row(param) for param in arguments])
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in params:
            if param.param_type_name == "option" and (row := param.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(param, "rich_help_panel", None) or _OTHER, []).append(row)
        other = groups.pop(_OTHER, [])
        for name in sorted(groups, key=_place):
            write_section(formatter, name, groups[name])
        write_section(formatter, _OTHER if groups else "Options", other)


def _place(group: str) -> float:
    return _ORDER.index(group if group in _ORDER else OUTPUT) - (group not in _ORDER) / 2


def _argument_row(param: Any) -> tuple[str, str]:
    return param.metavar or param.name.upper(), param.help or ""


def write_section(formatter: Any, name: str, rows: Sequence[tuple[str, str]], width: int = _WIDTH) -> None:
    """Writes a heading, bold on a terminal, and its rows; nothing if there are no rows."""
    if rows:
        with formatter.section(typer.style(name, bold=True)):
            formatter.write_dl([(left.ljust(width), right) for left, right in rows], col_max=width)


def completing(words: Iterable[str]) -> Completion:
    """Returns a function that a shell calls for the values of an option."""
    known = list(words)
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


def complete_models(incomplete: str) -> list[str]:
    """Completes the names that work without a path. Where none fits, shells complete file names."""
    from wager.pairs import FETCHED, PAIRS, SHIPPED

    pairs = [pair for pair in (*SHIPPED, *FETCHED, *PAIRS) if pair.runs]
    return completing(dict.fromkeys(pair.target for pair in pairs))(incomplete)


def complete_drafters(incomplete: str) -> list[str]:
    from wager.pairs import BUILT_IN, SHIPPED

    return completing(["auto", *BUILT_IN, *(pair.drafter for pair in SHIPPED)])(incomplete)


def complete_policies(incomplete: str) -> list[str]:
    names = ("auto", "ar", "fixed:2", "fixed:4", "fixed:8", "tree:16", "bod", "bod:tree")
    return completing([*names, "ema+auto", "entropy+auto"])(incomplete)


def policy_option(help: str, group: str) -> Any:
    """Returns the option `--policy` of a command that compares policies."""
    return typer.Option(
        "--policy", metavar="NAME", help=help, rich_help_panel=group, autocompletion=complete_policies
    )


BY_SETTING: Mapping[str, Completion] = {
    "model": complete_models,
    "drafter": complete_drafters,
    "policy": complete_policies,
    "device": completing(["auto", "cpu", "cuda"]),
}
"""What completes the values of settings that have no fixed list of words."""
