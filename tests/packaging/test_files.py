"""The project's own files agree: image, citation, security policy, wheel, and the extras in the pages."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.architecture.layout import ROOT
from tests.packaging import wheel_check

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^([A-Z]+) (.+?)(?<!\\)$", DOCKERFILE, flags=re.MULTILINE | re.DOTALL)


def arguments(instruction: str) -> list[str]:
    return [text for name, text in COMMANDS if name == instruction]


def test_the_image_serves_as_a_user_without_privileges() -> None:
    assert arguments("ENTRYPOINT") == ['["wager", "serve"]']
    assert [name for name, _ in COMMANDS].index("USER") < [name for name, _ in COMMANDS].index("ENTRYPOINT")
    [user] = arguments("USER")
    assert user.isdigit() and int(user) >= 1000
    assert "WAGER_HOST=0.0.0.0" in arguments("ENV")[0] and "WAGER_PORT=8000" in arguments("ENV")[0]
    assert arguments("EXPOSE") == ["8000"]


def test_the_image_has_a_supported_python_and_the_extra_of_the_server() -> None:
    versions = {re.sub(r"^python:(3\.\d+)-slim.*", r"\1", text) for text in arguments("FROM")}
    assert len(versions) == 1
    assert f"Programming Language :: Python :: {versions.pop()}" in PROJECT["classifiers"]
    assert "[server]" in DOCKERFILE and "--constraint" in DOCKERFILE


def test_the_health_check_is_a_program_that_fails_without_a_server() -> None:
    [check] = arguments("HEALTHCHECK")
    program = re.search(r'"-c", \\\n\s+"(.+)"\]', check)
    assert program is not None and "/health" in program[1]
    variables = {"PATH": "", "WAGER_PORT": "9"}
    done = subprocess.run([sys.executable, "-c", program[1]], env=variables, capture_output=True, text=True)
    assert done.returncode == 1 and "refused" in done.stderr


def test_what_the_image_is_built_from_reaches_the_build() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines and all((ROOT / name).exists() for name in sent)
    assert {
        "pyproject.toml",
        "constraints.txt",
        "wager",
        PROJECT["readme"],
        *PROJECT["license-files"],
    } == sent


def test_the_installation_page_names_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    extras = re.findall(r"^\| `(\w+)` \| (.+?) \|", page, flags=re.MULTILINE)
    assert {name for name, _ in extras} == set(PROJECT["optional-dependencies"])
    for name in ("plot", "server", "train"):
        packages = {re.split("[<>=]", one)[0] for one in PROJECT["optional-dependencies"][name]}
        assert set(dict(extras)[name].split(", ")) == packages


def test_the_security_policy_and_the_page_refer_to_each_other() -> None:
    assert "(docs/security.md)" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "(../SECURITY.md)" in (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_the_wheel_check_sees_a_missing_and_a_superfluous_file(tmp_path: Path) -> None:
    for change in ("missing", "superfluous"):
        names = sorted(wheel_check.package_files(ROOT))
        names = names[1:] if change == "missing" else [*names, "tests/__init__.py"]
        wheel = tmp_path / f"{change}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in names:
                archive.writestr(name, "")
        with pytest.raises(wheel_check.Fault, match="differs from the tree"):
            wheel_check.check_wheel(wheel)


@pytest.mark.slow
def test_the_wheel_and_the_sdist_are_whole(tmp_path: Path) -> None:
    try:
        wheel_check.build(tmp_path)
    except wheel_check.Fault as fault:
        if "pip install" in str(fault):
            pytest.skip("the build backend cannot be had here")
        raise
