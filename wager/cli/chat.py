"""`wager chat`: a conversation with a model in the terminal.

Reads entries, runs commands and answers questions until the input ends. chat_session.py talks to the model,
chat_commands.py has the commands, chat_input.py reads, and chat_screen.py shows. When stdin is no terminal,
every line is a turn, and the answers are plain text.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wager.cli.chat_commands import COMMANDS, Next, run_command
from wager.cli.chat_input import Entries, read_piped_line, read_terminal_line, use_readline
from wager.cli.chat_screen import ChatScreen, PlainChatScreen, TerminalChatScreen
from wager.cli.chat_session import ChatSession
from wager.cli.flags import (
    config_flags,
    model_argument,
    names_of,
    resolve_config,
    sampling_flags,
    sampling_params,
    source_flags,
    with_flags,
)
from wager.cli.help import OUTPUT, PROMPT, SAMPLING
from wager.cli.notices import announce_native
from wager.cli.thinking import thinking_flags, thinking_options
from wager.config import EngineConfig
from wager.errors import ConfigError, WagerError, one_line
from wager.fetched import default_chat_model
from wager.policy import check_policy, settings_from

if TYPE_CHECKING:
    from wager.llm import LLM

DEFAULT_TOKENS = 1024
"""The largest number of tokens of an answer, if the user does not say."""

# Flags that mean nothing in a chat: its answers have no log-probabilities, and it has one request at a time.
_NO_FLAGS = ("max_tokens", "logprobs", "priority", "order")


def _flags(group: list[Any]) -> list[Any]:
    return [flag for flag in group if flag.name not in _NO_FLAGS]


@with_flags(source_flags(), thinking_flags(), _flags(sampling_flags()), _flags(config_flags(EngineConfig)))
def chat(
    name: Annotated[str | None, model_argument()] = None,
    *,
    system: Annotated[
        str, typer.Option(metavar="TEXT", help="The system text.", rich_help_panel=PROMPT)
    ] = "",
    max_tokens: Annotated[
        int,
        typer.Option(
            *names_of("max_tokens"),
            metavar="N",
            help="Largest number of tokens of an answer.",
            rich_help_panel=SAMPLING,
        ),
    ] = DEFAULT_TOKENS,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Underline instead of colours.", rich_help_panel=OUTPUT)
    ] = False,
    **values: object,
) -> None:
    """Talk to a model in this terminal: MODEL, or the one that `wager fetch` brought, else the demo model.

    The tokens of an answer are coloured by their origin: the model itself, or the drafter that guessed them.
    Lines that begin with a slash are commands; /help lists them. Ctrl-C stops an answer, Ctrl-D leaves.
    Without a terminal, every line of stdin is a question, and the answers are plain text.
    """
    settings = resolve_config(values, EngineConfig, name)
    if settings.sources["model.model"] == "default":
        settings = settings.choose("model", default_chat_model(), "default")
    config = settings.config
    if not config.model.model:
        raise ConfigError("model", "", "a folder or a published name (see `wager models`)")
    check_policy(config.policy.policy, settings_from(config.policy))
    thinking, params = thinking_options(values), sampling_params({**values, "max_tokens": max_tokens})
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    screen = TerminalChatScreen(no_color=no_color) if is_terminal else PlainChatScreen()
    with screen.loading(config.model.model):
        llm = load_llm(config)
    announce_native(config.model.native, llm.engine)
    session = ChatSession(llm, params, thinking, screen.notice)
    session.conversation.system = system
    _talk(session, screen, _entries(screen))


def load_llm(config: EngineConfig) -> LLM:
    from wager.llm import LLM

    return LLM(config=config)


def _entries(screen: ChatScreen) -> Entries:
    if isinstance(screen, TerminalChatScreen):
        return Entries(read_terminal_line, screen.notice)
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    return Entries(read_piped_line, screen.notice)


def _talk(session: ChatSession, screen: ChatScreen, entries: Entries) -> None:
    """Reads and answers until the end. Without a terminal, the exit status is 2 if an entry failed."""
    is_terminal = isinstance(screen, TerminalChatScreen)
    store = use_readline(list(COMMANDS)) if is_terminal else lambda: None
    num_failed = 0
    try:
        screen.greet(session)
        while (entry := entries.next()) is not None:
            try:
                if not _take(session, screen, entry):
                    break
            except WagerError as error:
                num_failed += 1
                screen.notice(one_line(error))
    finally:
        store()
    if num_failed and not is_terminal:
        raise typer.Exit(2)


def _take(session: ChatSession, screen: ChatScreen, entry: str) -> bool:
    """Runs a command or answers a question; returns False if the chat ends."""
    if entry.startswith("/"):
        following = run_command(session, screen, entry)
        if following is not Next.ANSWER:
            return following is Next.READ
    else:
        session.conversation.ask(entry)
    try:
        prompt_ids = session.prompt_ids()
        answered = session.answer(prompt_ids, lambda: screen.answer(session, prompt_ids))
    except WagerError:
        if session.conversation.is_waiting:  # the question could not be asked
            session.conversation.take_back_turn()
        raise
    screen.finished(answered)
    return True
