"""The commands of `wager chat`: lines that begin with a slash.

Each is a function of the session and the text behind the name, and returns what happens next. A wrong value
raises a WagerError, which chat.py shows; the conversation goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wager.cli.conversation import read_conversation, write_conversation
from wager.errors import InputError, RequestError
from wager.policy import check_policy, settings_from

if TYPE_CHECKING:
    from wager.cli.chat_screen import ChatScreen
    from wager.cli.chat_session import ChatSession

__all__ = ["COMMANDS", "Next", "run_command"]

_OFF = ("off", "none")


class Next(Enum):
    """What happens after a command."""

    READ = "the next entry is read"
    ANSWER = "the last question is answered again"
    LEAVE = "the chat ends"


class Command(NamedTuple):
    argument: str
    """The name of its argument in /help; empty if it has none."""
    help: str
    run: Callable[[ChatSession, ChatScreen, str], Next]


def run_command(session: ChatSession, screen: ChatScreen, entry: str) -> Next:
    """Runs an entry that begins with a slash. Raises WagerError."""
    name, _, argument = entry.strip().partition(" ")
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "/help lists the commands"
        raise InputError(f"is no command; {hint}", name)
    command, argument = COMMANDS[name], argument.strip()
    if argument and not command.argument:
        raise InputError("has no argument", name)
    return command.run(session, screen, argument)


def _policy(session: ChatSession, screen: ChatScreen, name: str) -> Next:
    if name:
        session.llm.set_policy(check_policy(name, settings_from(session.llm.config.policy)))
    screen.notice(f"policy {session.llm.engine.controller.policy.name}")
    return Next.READ


def _stats(session: ChatSession, screen: ChatScreen, _: str) -> Next:
    screen.table("\n".join(f"{name:<18} {value}" for name, value in _stat_rows(session)))
    return Next.READ


def _stat_rows(session: ChatSession) -> list[tuple[str, str]]:
    totals, ledger = session.totals, session.llm.engine.controller.experience.ledger.total
    rows = [("answers", str(totals.answers)), ("tokens", str(totals.tokens))]
    if not totals.tokens:
        return rows
    rows.append(("tokens/s", f"{totals.tokens / totals.time_s:.1f}"))
    rows.append(("tokens per step", f"{totals.tokens / max(totals.steps, 1):.2f}"))
    for origin, count in totals.origins.most_common():
        label = {"target": "the model's own", "forced": "forced"}.get(origin, origin.replace("guess:", "by "))
        rows.append((f"  {label}", f"{count} ({count / totals.tokens:.0%})"))
    drafted = sum(totals.histogram.values())
    if drafted:
        mean = sum(depth * count for depth, count in totals.histogram.items()) / drafted
        rows.append(("drafted steps", f"{drafted}, with {mean:.2f} accepted guesses on average"))
    speed = "" if ledger.speedup is None else f", {ledger.speedup:.2f}x plain decoding"
    rows.append(("ledger", f"{ledger.balance_ms / 1e3:+.2f} s{speed}"))
    rows.append(("policy", session.llm.engine.controller.policy.name))
    return rows


def _system(session: ChatSession, screen: ChatScreen, text: str) -> Next:
    if text:
        session.conversation.system = "" if text in _OFF else text
    screen.notice(f"system text: {session.conversation.system or 'none'}")
    return Next.READ


def _temperature(session: ChatSession, screen: ChatScreen, text: str) -> Next:
    if text:
        session.params = replace(session.params, temperature=_number(text, "temperature"))
    screen.notice(f"temperature {session.params.temperature:g}")
    return Next.READ


def _seed(session: ChatSession, screen: ChatScreen, text: str) -> Next:
    if text:
        session.params = replace(session.params, seed=None if text in _OFF else _whole(text, "seed"))
    seed = session.params.seed
    screen.notice("seed: a new one for every answer" if seed is None else f"seed {seed}")
    return Next.READ


def _budget(session: ChatSession, screen: ChatScreen, text: str) -> Next:
    if text:
        budget = None if text in _OFF else _whole(text, "budget")
        if budget is not None and budget < 0:
            raise RequestError(f"{budget} is negative", "budget")
        if budget is not None and not session.shown_ids:
            raise RequestError("this model does not think", "budget")
        session.thinking = session.thinking._replace(budget=budget, effort=None)
    budget = session.thinking.budget
    screen.notice("thinking budget: none" if budget is None else f"thinking budget {budget} tokens")
    return Next.READ


def _retry(session: ChatSession, screen: ChatScreen, _: str) -> Next:
    if not session.conversation.take_back_answer():
        raise InputError("there is no answer to replace", "/retry")
    if session.params.is_greedy or session.params.seed is not None:
        why = "the temperature is 0" if session.params.is_greedy else "the seed is fixed"
        screen.notice(f"{why}: with the same settings the answer is the same")
    return Next.ANSWER


def _undo(session: ChatSession, screen: ChatScreen, _: str) -> Next:
    if not session.conversation.take_back_turn():
        raise InputError("there is no turn to take back", "/undo")
    screen.notice(f"took back the last turn; {session.conversation.num_turns} left")
    return Next.READ


def _clear(session: ChatSession, screen: ChatScreen, _: str) -> Next:
    session.conversation.clear()
    screen.notice("the conversation is empty")
    return Next.READ


def _save(session: ChatSession, screen: ChatScreen, name: str) -> Next:
    path = _path(name, "/save")
    write_conversation(session.conversation, path, str(session.llm.notes["model"]))
    screen.notice(f"wrote {path}: {session.conversation.num_turns} turns")
    return Next.READ


def _load(session: ChatSession, screen: ChatScreen, name: str) -> Next:
    path = _path(name, "/load")
    session.conversation = read_conversation(path)
    unanswered = session.conversation.messages.pop()["content"] if session.conversation.is_waiting else None
    screen.notice(f"read {path}: {session.conversation.num_turns} turns")
    if unanswered is not None:
        screen.notice("its last question has no answer and was left out")
    return Next.READ


def _help(_session: ChatSession, screen: ChatScreen, _: str) -> Next:
    names = {name: f"{name} {command.argument}".strip() for name, command in COMMANDS.items()}
    rows = [f"{names[name]:<16} {command.help}" for name, command in COMMANDS.items()]
    more = ['A line that ends in \\ is continued; """ begins and ends a text of several lines.']
    screen.table("\n".join([*rows, "", *more]))
    return Next.READ


def _exit(_session: ChatSession, _screen: ChatScreen, _: str) -> Next:
    return Next.LEAVE


COMMANDS: dict[str, Command] = {
    "/policy": Command("NAME", "show or change the policy: auto, ar, fixed:K, tree:B, bod", _policy),
    "/stats": Command("", "show the speed so far, and who guessed how much", _stats),
    "/system": Command("TEXT", "show or set the system text; off removes it", _system),
    "/temperature": Command("X", "show or set the sampling temperature; 0 is greedy", _temperature),
    "/seed": Command("N", "show or set the seed; off takes a new one for every answer", _seed),
    "/budget": Command("N", "enable thinking of at most N tokens; off removes the limit", _budget),
    "/retry": Command("", "answer the last question again", _retry),
    "/undo": Command("", "take back the last question and its answer", _undo),
    "/clear": Command("", "begin a new conversation", _clear),
    "/save": Command("FILE", "write the conversation to a file", _save),
    "/load": Command("FILE", "continue the conversation of a file", _load),
    "/help": Command("", "show this list", _help),
    "/exit": Command("", "leave, like Ctrl-D", _exit),
}


def _path(name: str, command: str) -> Path:
    if not name:
        raise InputError("needs the name of a file", command)
    return Path(name).expanduser()


def _number(text: str, field: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise RequestError(f"{text!r} is not a number", field) from error


def _whole(text: str, field: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise RequestError(f"{text!r} is not a whole number", field) from error
