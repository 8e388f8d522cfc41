"""The pair that ships: it is whole, small enough, described, and in what is built from this tree."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.architecture.layout import PACKAGE, ROOT
from wager.pairs import DEMO_FOLDER

BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
MAX_BYTES = 60e6
WHOLE = {
    "target": {"config.json", "tokenizer.json", "tokenizer_config.json"},
    "drafter": {"config.json"},
    "chain": {"config.json"},
}


def shipped_files() -> list[Path]:
    return sorted(path for path in DEMO_FOLDER.rglob("*") if path.is_file())


@pytest.mark.parametrize("folder", WHOLE)
def test_it_is_whole(folder: str) -> None:
    files = {path.name for path in (DEMO_FOLDER / folder).iterdir()}
    assert WHOLE[folder] <= files
    assert any(name.endswith(".safetensors") for name in files)


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in shipped_files()) <= MAX_BYTES


def test_it_is_described_and_its_sources_are_listed() -> None:
    card = (DEMO_FOLDER / "README.md").read_text(encoding="utf-8")
    assert "wager.train.recipe" in card and "toy" in card and "(LICENCES.md)" in card
    licences = (DEMO_FOLDER / "LICENCES.md").read_text(encoding="utf-8")
    rows = [line for line in licences.splitlines() if line.startswith("| ")][1:]
    assert {row.split("|")[2].strip() for row in rows} == {"code", "math", "prose", "chat", "dialog"}
    attributed = [row.split("|")[1] for row in rows if "CC-BY-4.0" in row]
    assert attributed and all(f"**{re.split('[ ,]', one.strip())[0]}**" in licences for one in attributed)


def test_builds_take_the_whole_package() -> None:
    assert DEMO_FOLDER.is_relative_to(PACKAGE)
    assert BUILD["targets"]["wheel"]["packages"] == ["wager"]
    assert "/wager" in BUILD["targets"]["sdist"]["include"]
    assert not any("exclude" in part for part in (BUILD, *BUILD["targets"].values()))


def test_no_ignore_file_drops_it() -> None:
    """Builds leave out what .gitignore names; a clone has only what git was not told to ignore."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    names = "\n".join(str(path.relative_to(ROOT)) for path in [*shipped_files(), ROOT / "wager" / "x.pyc"])
    command = ["git", "check-ignore", "--no-index", "--verbose", "--stdin"]
    found = subprocess.run(command, cwd=ROOT, input=names, capture_output=True, text=True).stdout
    by_file = [line.split("\t")[1] for line in found.splitlines() if line.startswith(".gitignore:")]
    assert by_file == ["wager/x.pyc"]
