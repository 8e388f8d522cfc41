"""What must agree when a version is cut: changelog, metadata, pins, and the links between documents."""

import ast
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version

import pytest

import wager
from tests.architecture.layout import ROOT, imports_of, module_name, package_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
BROUGHT_ALONG = {"triton": "torch", "starlette": "fastapi", "pydantic_core": "pydantic"}
"""Packages that are imported but not declared, with the package that always installs them."""


def plain(requirement: str) -> str:
    return re.split(r"[<>=!~\[; ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def imported_packages() -> set[str]:
    """The third-party packages that any file of `wager` imports, at once or later."""
    found: set[str] = set()
    for path in package_files():
        tree, module = ast.parse(path.read_text(encoding="utf-8")), module_name(path)
        found |= {one.name.partition(".")[0] for one in imports_of(tree, module, path.name == "__init__.py")}
    return found - set(sys.stdlib_module_names) - {"wager"}


def test_the_changelog_heads_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\d[^\]]*)\]", text, flags=re.MULTILINE)
    assert versions[0] == PROJECT["version"]


def test_the_package_and_the_citation_have_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, flags=re.MULTILINE) == [PROJECT["version"]]
    try:
        version("wager")
    except PackageNotFoundError:
        pytest.skip("not installed: the package has no version")
    assert wager.__version__ == PROJECT["version"]


def test_every_direct_dependency_is_pinned_and_every_pin_is_one() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {plain(line) for line in lines if "==" in line and not line.startswith("#")}
    wanted = [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
    assert {plain(one) for one in wanted} - {"wager"} == pins


def test_what_is_imported_is_declared_and_the_core_is_imported() -> None:
    core = {plain(one).replace("-", "_") for one in PROJECT["dependencies"]}
    users = [one for extra in ("plot", "server", "train") for one in EXTRAS[extra]]
    declared = core | {plain(one).replace("-", "_") for one in users}
    found = imported_packages()
    assert {BROUGHT_ALONG.get(name, name) for name in found} <= declared
    assert core <= found


def test_every_dependency_has_a_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
    for one in [one for one in listed if plain(one) != "wager"]:
        assert re.search(rf'^    "{re.escape(one)}",  # \w.+', text, flags=re.MULTILINE), one


def test_links_between_documents_resolve() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = []
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} -> {target}")
    assert pages
    assert not broken, "\n".join(broken)
