"""A missing extra is one line that says how to install it, and nothing else needs its packages."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture.layout import ROOT, module_name, package_files
from wager.cli import main
from wager.errors import InputError
from wager.extras import EXTRAS, missing_packages, require

ONLY_WITH_EXTRAS = ("wager.server.", "wager.bench.plot", "wager.cli.simulate_plot")
"""Modules that import the packages of an extra at once; the command line checks the extra before."""

WITHOUT_EXTRAS = """
import importlib, json, sys
blocked, modules = json.loads(sys.argv[1])
for name in blocked:
    sys.modules[name] = None
for name in modules:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name == "triton", (name, error)  # only with torch for CUDA
"""


def block(monkeypatch: pytest.MonkeyPatch, extra: str) -> None:
    for name in EXTRAS[extra]:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_are_those_of_the_project(extra: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = {line.partition(">")[0] for line in project["optional-dependencies"][extra]}
    assert installed - {"llguidance"} == {name.replace("_", "-") for name in EXTRAS[extra]}


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_missing_package_is_named_with_its_extra(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require(extra, "this")
    assert missing_packages(extra) == []
    block(monkeypatch, extra)
    with pytest.raises(InputError, match=rf"this needs {EXTRAS[extra][0]}.*pip install 'wager\[{extra}\]'"):
        require(extra, "this")


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("plot", ["simulate", "--plot", "out.png"]),
        ("plot", ["bench", "--plot", "out.png"]),
        ("server", ["serve"]),
        ("train", ["bench", "--peers", "transformers"]),
        ("train", ["train", "--corpus", "texts.txt", "--out", "drafter"]),
        ("train", ["train-target", "--corpus", "texts.txt", "--out", "target"]),
    ],
)
def test_a_command_without_its_extra_says_so_in_one_line(
    extra: str,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("a text\n")
    block(monkeypatch, extra)
    assert main.exit_status(command) == 2
    printed = capfd.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) == 1
    assert f"pip install 'wager[{extra}]'" in printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


def test_doctor_says_how_to_get_a_missing_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block(monkeypatch, "plot")
    assert main.exit_status(["doctor", "--json", "--model", ""]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert "pip install 'wager[plot]'" in checks["extra plot"]["detail"]
    assert checks["extra server"]["detail"] == "installed"


def test_every_other_module_imports_without_extras() -> None:
    names = [module_name(path) for path in package_files()]
    core = [name for name in names if not name.startswith(ONLY_WITH_EXTRAS)]
    blocked = ["scipy", "llguidance", "gguf", *(name for packages in EXTRAS.values() for name in packages)]
    argument = json.dumps([blocked, core])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, argument], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
