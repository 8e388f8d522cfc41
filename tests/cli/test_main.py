"""The command's endings: each has its exit status and at most one line on stderr, whatever the verb does."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Annotated

import pytest
import typer

import wager
from wager.cli import main
from wager.errors import ConfigError, InputError

Register = Callable[[Callable[..., object]], None]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Registers a function as the verb `probe`, found lazily in a module of its own."""

    def register(function: Callable[..., object]) -> None:
        module = ModuleType("wager.cli.probe")
        module.__dict__["probe"] = function
        monkeypatch.setitem(sys.modules, "wager.cli.probe", module)
        monkeypatch.setitem(main.VERBS, "probe", main.Verb("wager.cli.probe:probe", "Only for this test."))

    return register


def raising(error: BaseException) -> Callable[[], None]:
    def probe() -> None:
        raise error

    return probe


def only_line(text: str) -> str:
    [line] = text.splitlines()
    return line


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status([flag]) == 0
    assert capsys.readouterr().out == f"wager {wager.__version__}\n"


@pytest.mark.parametrize("args", [["--help"], ["-h"]])
def test_help_lists_every_verb_and_loads_none(
    args: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(main.VERBS, "absent", main.Verb("wager.cli.no_such_module:absent", "Never imported."))
    assert main.exit_status(args) == 0
    out = capsys.readouterr().out
    assert "Never imported." in out
    assert all(name in out for name in main.VERBS)


def test_without_arguments_it_says_what_to_type_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status([]) == 0
    out = capsys.readouterr().out
    assert all(f"  {command} " in out for command, _ in main.FIRST_COMMANDS) and len(main.FIRST_COMMANDS) == 3
    assert all(command.split()[1] in main.VERBS for command, _ in main.FIRST_COMMANDS)
    assert all(name in out for name in main.VERBS) and "wager --help" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_verb_gets_its_flags_and_its_help(verb: Register, capsys: pytest.CaptureFixture[str]) -> None:
    def probe(name: str, count: Annotated[int, typer.Option(help="How many.")] = 1) -> None:
        """Say a name."""
        typer.echo(f"{name} x{count}")

    verb(probe)
    assert main.exit_status(["probe", "dice", "--count", "3"]) == 0
    assert capsys.readouterr().out == "dice x3\n"
    assert main.exit_status(["probe", "--help"]) == 0
    assert "wager probe" in (out := capsys.readouterr().out)
    assert "Say a name." in out and "How many." in out


def test_a_verb_may_carry_a_generated_signature(verb: Register, capsys: pytest.CaptureFixture[str]) -> None:
    def probe(**values: object) -> None:
        typer.echo(str(values))

    flag = inspect.Parameter("max_bet", inspect.Parameter.KEYWORD_ONLY, default=16, annotation=int)
    probe.__signature__ = inspect.Signature([flag])  # type: ignore[attr-defined]
    verb(probe)
    assert main.exit_status(["probe", "--max-bet", "4"]) == 0
    assert capsys.readouterr().out == "{'max_bet': 4}\n"


def test_a_verb_may_have_verbs_of_its_own(verb: Register, capsys: pytest.CaptureFixture[str]) -> None:
    group = typer.Typer()
    group.command("one")(lambda: typer.echo("1"))
    group.command("two")(lambda: typer.echo("2"))
    verb(group)
    assert main.exit_status(["probe", "two"]) == 0
    assert capsys.readouterr().out == "2\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["simulat"], "no such command 'simulat', did you mean 'simulate'?"),
        (["xyzzy"], "no such command 'xyzzy' (see 'wager --help')"),
        (["--nonsense"], "--nonsense"),
        (["probe", "--count", "many"], "see 'wager probe --help'"),
        (["--log", "loud", "probe"], "--log = 'loud'"),
    ],
)
def test_a_usage_error_is_one_line_and_status_2(
    args: list[str], said: str, verb: Register, capsys: pytest.CaptureFixture[str]
) -> None:
    def probe(count: int = 1) -> None: ...

    verb(probe)
    assert main.exit_status(args) == 2
    out, err = capsys.readouterr()
    assert not out
    assert only_line(err).startswith("wager: error: ")
    assert said in err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            ConfigError("max_bet", -1, "an integer >= 1"),
            "wager: error: max_bet = -1: expected an integer >= 1",
        ),
        (InputError("not\na file", "trace"), "wager: error: trace: not a file"),
    ],
)
def test_a_wager_error_is_one_line_and_status_2(
    error: Exception, line: str, verb: Register, capsys: pytest.CaptureFixture[str]
) -> None:
    verb(raising(error))
    assert main.exit_status(["probe"]) == 2
    assert only_line(capsys.readouterr().err) == line


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_an_interrupt_is_one_line_and_status_130(
    error: BaseException, verb: Register, capsys: pytest.CaptureFixture[str]
) -> None:
    verb(raising(error))
    assert main.exit_status(["probe"]) == 130
    assert only_line(capsys.readouterr().err) == "wager: interrupted"


def test_a_verb_chooses_its_exit_status(verb: Register) -> None:
    verb(raising(typer.Exit(3)))
    assert main.exit_status(["probe"]) == 3


def test_a_bug_is_not_hidden(verb: Register) -> None:
    verb(raising(ZeroDivisionError("a fault of ours")))
    with pytest.raises(ZeroDivisionError):
        main.exit_status(["probe"])


@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_closed_pipe_is_quiet(lines: int) -> None:
    program = (
        "import sys; from types import ModuleType; from wager.cli import main\n"
        "module = sys.modules['probe'] = ModuleType('probe')\n"
        f"module.probe = lambda: [print('a line of output') for _ in range({lines})] and None\n"
        "main.VERBS['probe'] = main.Verb('probe:probe', '')\n"
        "sys.stdin.read(); sys.argv = ['wager', 'probe']; main.run()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
