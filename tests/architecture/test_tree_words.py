"""Words that may not appear in the tree: catch-all module names, and paths of somebody's own machine."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.architecture.layout import ROOT, package_files

CATCH_ALLS = {"utils", "util", "common", "helpers", "helper", "core", "manager", "misc"}

# The trailing part keeps routes and prose such as "/home" or "/work" from being taken for a path.
HOME_PATH = re.compile(r"(?<![\w.])/(?:home|Users|root|work)/[\w.-]+")

TEXT = {".py", ".md", ".toml", ".txt", ".json", ".yml", ".yaml", ".cfg", ".html", ".js", ".css", ".sh", ""}
NOT_OURS = {".git", ".venv", "out", "build", "dist"}


def tracked_files() -> list[Path]:
    """What git tracks or would track; without git, every file that is not a build product."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        found = [path for path in ROOT.rglob("*") if not NOT_OURS & set(path.relative_to(ROOT).parts)]
    else:
        found = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in found if path.is_file() and path.suffix in TEXT]


def test_no_catch_all_modules() -> None:
    names = {part for path in package_files() for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not CATCH_ALLS & names


def test_no_paths_of_somebodys_machine() -> None:
    files = tracked_files()
    assert ROOT / "pyproject.toml" in files
    found = []
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in HOME_PATH.finditer(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["home", "Users", "root", "work"])
def test_such_a_path_is_seen(folder: str) -> None:
    assert HOME_PATH.search(f"see /{folder}/someone/models")
    assert not HOME_PATH.search(f"https://example.org/{folder}/page")
