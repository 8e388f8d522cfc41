"""Help in groups, flags with one meaning in every command, and what a shell completes."""

import os
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
import typer

from tests.architecture.layout import ROOT
from wager.cli import main
from wager.cli.flags import SHORT_FLAGS

WAGER = [sys.executable, "-c", "import sys; sys.argv[0] = 'wager'; from wager.cli.main import run; run()"]


def options() -> list[tuple[str, Any]]:
    """Returns every option of every verb, with the verb's name."""
    commands = [(name, main._load(name, verb)) for name, verb in main.VERBS.items()]
    return [
        (name, param) for name, one in commands for param in one.params if param.param_type_name == "option"
    ]


def sections(text: str) -> dict[str, str]:
    parts = re.split(r"^(\S[^\n]*):\n(?=  )", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_generate_shows_its_options_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status(["generate", "--help"]) == 0
    found = sections(capsys.readouterr().out)
    names = ["Model", "Sampling", "Speculation", "Thinking", "Output", "Machine"]
    assert [name for name in found if name in names] == names
    expected = {"Model": "--model", "Sampling": "--top-k", "Speculation": "--policy"}
    expected |= {"Thinking": "--effort", "Output": "--json", "Machine": "--native"}
    for name, flag in expected.items():
        assert [one for one, text in found.items() if f"{flag} " in text] == [name]
    assert found["Machine"].index("--threads") < found["Machine"].index("--layout")


def test_help_fits_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for name in main.VERBS:
        assert main.exit_status([name, "-h"]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_short_flag_means_the_same_in_every_command() -> None:
    known = {short: "--" + name.replace("_", "-") for name, [short] in SHORT_FLAGS.items()}
    for verb, option in options():
        for short in set(option.opts) & known.keys():
            assert known[short] in option.opts, (verb, short)
        long = {name: short for short, name in known.items()}
        for name in set(option.opts) & long.keys() - {"--temperature"}:
            assert long[name] in option.opts or verb == "demo", (verb, name)


def test_json_prints_and_profile_names_settings_in_every_command() -> None:
    by_flag = {
        flag: [(verb, one) for verb, one in options() if flag in one.opts] for flag in ("--json", "--profile")
    }
    assert {"bench", "simulate", "generate", "doctor", "top"} <= {verb for verb, _ in by_flag["--json"]}
    assert all(one.is_flag and one.help.startswith("Print ") for _, one in by_flag["--json"])
    assert {"bench", "serve", "chat"} <= {verb for verb, _ in by_flag["--profile"]}
    assert {one.help for _, one in by_flag["--profile"]} == {by_flag["--profile"][0][1].help}


@pytest.mark.parametrize("verb", ["bench", "simulate"])
def test_the_earlier_meaning_of_json_is_explained(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status([verb, "--json", "results.json"]) == 2
    assert "--out results.json" in capsys.readouterr().err


def completed(line: str) -> list[str]:
    """Returns what bash is offered for the last word of a line."""
    words = line.split(" ")
    request = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_WAGER_COMPLETE": "complete_bash"}
    done = subprocess.run(WAGER, cwd=ROOT, env=os.environ | request, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("wager gen", ["generate"]),
        ("wager --vers", ["--version"]),
        ("wager generate --poli", ["--policy"]),
        ("wager generate --policy bod", ["bod", "bod:tree"]),
        ("wager serve --profile lo", ["low-memory", "long-context"]),
        ("wager chat dem", ["demo"]),
        ("wager generate --native o", ["on", "off"]),
        ("wager nonsense", []),
    ],
)
def test_a_shell_is_offered(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


def test_completing_verbs_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(main.VERBS, "absent", main.Verb("wager.cli.no_such_module:absent", "Never imported."))
    command = typer.main.get_command(main.app)
    found = command.shell_complete(command.make_context("wager", [], resilient_parsing=True), "a")
    assert [item.value for item in found] == ["absent"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_accepts_the_completion_script() -> None:
    named = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run([*WAGER, "--show-completion", "bash"], cwd=ROOT, env=named, capture_output=True)
    assert done.returncode == 0 and b"_WAGER_COMPLETE=complete_bash" in done.stdout
    checked = subprocess.run(["bash", "-n"], input=done.stdout, capture_output=True)
    assert checked.returncode == 0 and not checked.stderr
