"""`wager chat`: entries, conversations and their files, answers in a pipe and on a terminal."""

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import on_terminal
from tests.server.harness import save_speaker
from wager.cli import main
from wager.cli.chat_commands import COMMANDS, Next, run_command
from wager.cli.chat_input import Entries
from wager.cli.chat_screen import PlainChatScreen, figures, styles_of
from wager.cli.chat_session import Answered, ChatSession
from wager.cli.conversation import Conversation, read_conversation, write_conversation
from wager.cli.generate_screen import PlainScreen
from wager.cli.thinking import ThinkingOptions
from wager.errors import InputError, ModelError, RequestError
from wager.fetched import FETCHABLE, default_chat_model, fetched_path
from wager.llm import LLM, StreamEvent
from wager.records import SamplingParams

FLAGS = [
    "--drafter",
    "lookup",
    "--layout",
    "out_in",
    "--threads",
    "1",
    "--num-pages",
    "400",
    "--page-size",
    "8",
]
SETTINGS: dict[str, Any] = {"drafter": "lookup", "layout": "out_in", "threads": 1, "num_pages": 400}


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_speaker(tmp_path_factory.mktemp("speaker"))


@pytest.fixture(scope="module")
def llm(speaker: Path) -> LLM:
    return LLM(str(speaker), page_size=8, **SETTINGS)


@pytest.fixture
def session(llm: LLM) -> ChatSession:
    notices: list[str] = []
    found = ChatSession(
        llm, SamplingParams(max_tokens=12, ignore_eos=True), ThinkingOptions(), notices.append
    )
    found.notices = notices  # type: ignore[attr-defined]
    return found


def ask(session: ChatSession, text: str) -> Answered:
    session.conversation.ask(text)
    return session.answer(session.prompt_ids(), PlainScreen)


# -- reading


def entries(*lines: str | type[BaseException]) -> tuple[list[str], list[str]]:
    """Returns what was read from these lines, and the warnings."""
    waiting, warnings, found = list(lines), list[str](), list[str]()

    def read_line(_prompt: str) -> str:
        line = waiting.pop(0) if waiting else EOFError
        if isinstance(line, str):
            return line
        raise line

    reader = Entries(read_line, warnings.append)
    while (entry := reader.next()) is not None:
        found.append(entry)
    return found, warnings


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["one", "  ", "two"], ["one", "two"]),
        (["one \\", "two\\", "three", "four"], ["one \ntwo\nthree", "four"]),
        (['"""', "one", "", "two", '"""', "three"], ["one\n\ntwo", "three"]),
        (['"""one', 'two"""', "three"], ["one\ntwo", "three"]),
        (['"""one"""', "two"], ["one", "two"]),
        (['"""', "cut off"], ["cut off"]),
        (["cut off\\"], ["cut off"]),
    ],
)
def test_entries_of_one_and_several_lines(lines: list[str], expected: list[str]) -> None:
    assert entries(*lines)[0] == expected


def test_the_second_interrupt_in_a_row_leaves() -> None:
    found, warnings = entries("one", KeyboardInterrupt, "two", KeyboardInterrupt, KeyboardInterrupt, "three")
    assert found == ["one", "two"] and len(warnings) == 2


def test_an_interrupt_drops_the_lines_of_an_unfinished_entry() -> None:
    assert entries("one\\", KeyboardInterrupt, "two")[0] == ["two"]


# -- conversations


def test_the_oldest_turns_are_hidden_but_kept() -> None:
    talk = Conversation("be brief")
    for text in "abc":
        talk.ask(text)
        talk.answer(text.upper())
    talk.ask("d")
    assert talk.drop_oldest_turn() and talk.drop_oldest_turn()
    assert [one["content"] for one in talk.prompt] == ["be brief", "c", "C", "d"]
    assert talk.drop_oldest_turn() and not talk.drop_oldest_turn()
    assert talk.num_turns == 4 and len(talk.messages) == 7
    assert talk.take_back_turn() and talk.take_back_turn()
    assert [one["content"] for one in talk.messages] == ["a", "A", "b", "B"] and talk.prompt[1:] == []
    talk.clear()
    assert not talk.take_back_turn() and not talk.take_back_answer()


def test_a_conversation_survives_its_file(tmp_path: Path) -> None:
    talk = Conversation(
        "be brief", [{"role": "user", "content": "é"}, {"role": "assistant", "content": "b"}], 2
    )
    write_conversation(talk, tmp_path / "talk.json", "model")
    assert read_conversation(tmp_path / "talk.json") == Conversation(talk.system, talk.messages)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a conversation"),
        ("{}", "has no messages"),
        (
            '{"messages": [{"role": "assistant", "content": "a"}]}',
            "messages[0] is not a message of the role user",
        ),
        ('{"messages": [{"role": "user", "content": 5}]}', "messages[0] has no text"),
    ],
)
def test_a_broken_file_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text(text)
    with pytest.raises(InputError, match=said.replace("[", r"\[")):
        read_conversation(tmp_path / "talk.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_conversation(tmp_path / "absent.json")
    with pytest.raises(InputError, match="cannot be written"):
        write_conversation(Conversation(), tmp_path / "no" / "folder.json", "model")


# -- answers


def test_later_turns_see_the_earlier_ones_and_reuse_their_prefix(session: ChatSession) -> None:
    first = ask(session, "one two three four five six seven eight")
    second = ask(session, "and again")
    assert first.output is not None and second.output is not None
    assert second.output.stats.reused > 0
    assert len(second.output.prompt_ids) > len(first.output.prompt_ids)
    assert [one["content"] for one in session.conversation.messages][1::2] == [first.content, second.content]
    assert session.totals.answers == 2 and session.totals.tokens == 24
    assert sum(session.totals.origins.values()) == 24
    assert "12 tokens" in figures(first) and "tokens per step" in figures(first)


def test_guesses_name_their_drafter(session: ChatSession) -> None:
    session.params = SamplingParams(max_tokens=60, ignore_eos=True, speculation="fixed:4")
    answered = ask(session, "a b a b a b a b")
    assert set(answered.origins) <= {"target", "guess:lookup"} and answered.origins["guess:lookup"] > 0


def test_a_full_context_drops_the_oldest_turns(speaker: Path) -> None:
    notices: list[str] = []
    llm = LLM(str(speaker), page_size=8, max_context=96, **SETTINGS)
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    session = ChatSession(llm, params, ThinkingOptions(), notices.append)
    for number in range(4):
        assert ask(session, f"question {number}").num_tokens == 10
    assert session.conversation.num_turns == 4 and session.conversation.num_dropped > 0
    assert notices and all("the context of 96 tokens is full" in line for line in notices)
    session.conversation.ask("word " * 200)
    with pytest.raises(RequestError, match="the context holds 96"):
        session.prompt_ids()


class StoppingScreen(PlainScreen):
    """Presses Ctrl-C at the third event."""

    def __init__(self) -> None:
        super().__init__()
        self.num_events = 0

    def show(self, event: StreamEvent) -> None:
        self.num_events += 1
        if self.num_events == 3:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_stops_the_answer_and_keeps_what_was_said(session: ChatSession) -> None:
    before = signal.getsignal(signal.SIGINT)
    session.params = SamplingParams(max_tokens=500, ignore_eos=True)
    session.conversation.ask("one")
    answered = session.answer(session.prompt_ids(), StoppingScreen)
    assert answered.output is None and 0 < answered.num_tokens < 500 and "stopped" in figures(answered)
    assert session.conversation.messages[-1] == {"role": "assistant", "content": answered.content}
    assert not session.llm.engine.scheduler.has_work
    session.params = SamplingParams(max_tokens=5, ignore_eos=True)
    assert ask(session, "two").num_tokens == 5
    assert signal.getsignal(signal.SIGINT) is before


def test_a_thinking_budget_is_kept_and_thinking_is_not_remembered(session: ChatSession) -> None:
    session.thinking = ThinkingOptions(close="</think>")
    run_command(session, PlainChatScreen(), "/budget 4")
    session.params = SamplingParams(max_tokens=40, ignore_eos=True)
    answered = ask(session, "think")
    assert answered.output is not None and answered.output.close is not None
    assert answered.output.close.thinking_tokens <= 4
    assert "</think>" in answered.text and "</think>" not in answered.content
    run_command(session, PlainChatScreen(), "/budget off")
    assert session.thinking.budget is None


def test_a_question_that_cannot_be_asked_is_forgotten(
    speaker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The closing text of the card has too many tokens for this model, so that no budget can be kept."""
    path = tmp_path / "talk.json"
    text = f"/budget 4\nfirst\n/budget off\nsecond\n/save {path}\n".encode()
    assert piped(monkeypatch, text, str(speaker), *FLAGS, "-n", "4", "--ignore-eos") == 2
    assert "close_ids has" in capsys.readouterr().err
    assert [one["content"] for one in json.loads(path.read_text())["messages"]][::2] == ["second"]


def test_a_model_without_a_template_is_refused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "chat_template", None)
    with pytest.raises(ModelError, match="no chat template"):
        ChatSession(llm, SamplingParams(), ThinkingOptions(), print)


# -- commands


def test_every_command_is_in_the_help(session: ChatSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(session, PlainChatScreen(), "/help") is Next.READ
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)
    assert max(map(len, out.splitlines())) <= 80


def test_commands_change_the_session(session: ChatSession, tmp_path: Path) -> None:
    screen = PlainChatScreen()
    for entry in ("/temperature 0.5", "/seed 3", "/system be brief", "/policy fixed:2", "/budget 9"):
        assert run_command(session, screen, entry) is Next.READ
    assert (session.params.temperature, session.params.seed, session.thinking.budget) == (0.5, 3, 9)
    assert session.conversation.system == "be brief"
    assert session.llm.engine.controller.policy.name == "fixed:2"
    for entry in ("/seed off", "/system off", "/policy auto", "/budget off"):
        run_command(session, screen, entry)
    assert session.params.seed is None and not session.conversation.system
    ask(session, "one")
    ask(session, "two")
    path = tmp_path / "talk.json"
    run_command(session, screen, f"/save {path}")
    assert run_command(session, screen, "/retry") is Next.ANSWER and session.conversation.is_waiting
    assert run_command(session, screen, "/undo") is Next.READ and session.conversation.num_turns == 1
    run_command(session, screen, "/clear")
    assert not session.conversation.messages
    run_command(session, screen, f"/load {path}")
    assert session.conversation.num_turns == 2
    assert run_command(session, screen, "/exit") is Next.LEAVE


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("/undu", "did you mean /undo"),
        ("/xyzzy", "/help lists"),
        ("/policy best", "policy = 'best'"),
        ("/temperature warm", "'warm' is not a number"),
        ("/temperature -1", "temperature"),
        ("/seed x", "not a whole number"),
        ("/budget -3", "negative"),
        ("/retry", "no answer"),
        ("/undo", "no turn"),
        ("/save", "needs the name"),
        ("/load absent.json", "cannot be read"),
        ("/stats now", "has no argument"),
    ],
)
def test_a_wrong_command_is_one_line(session: ChatSession, entry: str, said: str) -> None:
    with pytest.raises((InputError, RequestError, Exception), match=said):
        run_command(session, PlainChatScreen(), entry)


# -- in a pipe


def piped(monkeypatch: pytest.MonkeyPatch, text: bytes, *args: str) -> int:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
    return main.exit_status(["chat", *args])


def test_lines_of_a_pipe_are_turns(
    speaker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "talk.json"
    text = f"hello\nhello\\\nworld\n/save {path}\n/temperature 0.7\n".encode()
    assert (
        piped(monkeypatch, text, str(speaker), *FLAGS, "-n", "8", "--ignore-eos", "--system", "be brief") == 0
    )
    out, err = capsys.readouterr()
    stored = json.loads(path.read_text())
    assert stored["system"] == "be brief"
    questions = [one["content"] for one in stored["messages"][::2]]
    assert questions == ["hello", "hello\nworld"]
    for answer in stored["messages"][1::2]:
        assert answer["content"].strip("\n") in out
    assert "\x1b" not in out and "tokens/s" not in out
    assert "wager: temperature 0.7" in err


def test_a_wrong_line_of_a_pipe_does_not_end_the_chat(
    speaker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert piped(monkeypatch, b"/nope\n/stats\n\xff\n/exit\nnever\n", str(speaker), *FLAGS, "-n", "4") == 2
    out, err = capsys.readouterr()
    assert "/nope: is no command" in err and "answers" in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--policy", "best"], "policy = 'best'"),
        (["--model", ""], "model = ''"),
        (["-t", "-1"], "temperature"),
    ],
)
def test_a_wrong_flag_is_refused_before_anything_is_loaded(
    args: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wager.cli.chat.load_llm", lambda _: pytest.fail("loaded"))
    assert piped(monkeypatch, b"", *args) == 2
    assert said in capsys.readouterr().err


def test_the_default_model_is_the_fetched_one_if_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAGER_MODELS", str(tmp_path))
    assert default_chat_model() == "demo"
    [name] = FETCHABLE
    path = fetched_path(name)
    assert path is not None
    with path.open("wb") as file:
        file.truncate(FETCHABLE[name].num_bytes)
    assert default_chat_model() == name


# -- on a terminal


def test_each_drafter_has_its_style() -> None:
    colours = styles_of(["block", "lookup"], has_colours=True)
    assert len({colours["guess:block"], colours["guess:lookup"], colours["target"]}) == 3
    plain = styles_of(["block", "lookup"], has_colours=False)
    assert "underline" in plain["guess:block"] and "underline" in plain["guess:lookup"]
    assert plain["guess:block"] != plain["guess:lookup"]


def test_on_a_terminal_an_interrupt_stops_the_answer_and_the_chat_goes_on(
    speaker: Path, tmp_path: Path
) -> None:
    flags = [*FLAGS, "--max-tokens", "900", "--ignore-eos", "--no-color"]
    with on_terminal("chat", str(speaker), *flags, home=tmp_path) as terminal:
        terminal.wait_for(lambda seen: seen.endswith("> "))
        assert "guessed by lookup" in terminal.seen
        terminal.type("hello\n")
        terminal.wait_for(lambda seen: "tokens per step" in seen)  # the status line of a running answer
        terminal.type("\x03")
        said = terminal.wait_for(lambda seen: "stopped" in seen and seen.endswith("> "))
        assert "tokens/s" in said and "\x1b[32m" not in said
        terminal.type("/stats\n")
        assert "answers            1" in terminal.wait_for(
            lambda seen: "policy" in seen and seen.endswith("> ")
        )
        terminal.interrupt_prompt()
        terminal.type("\x04")
    assert terminal.process.returncode == 0
    assert (tmp_path / "wager" / "chat_history").read_text().split("\n")[-3:-1] == ["hello", "/stats"]
