"""What the machine refuses is one line and a status: room, permissions, devices, pipes, broken files."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.architecture.layout import ROOT
from wager.cli import main
from wager.engine.assemble import pick_device
from wager.errors import ConfigError

WAGER = [sys.executable, "-c", "from wager.cli.main import run; run()"]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Registers a verb `probe` that raises an error."""

    def register(error: BaseException) -> None:
        def probe() -> None:
            raise error

        module = ModuleType("wager.cli.probe")
        module.__dict__["probe"] = probe
        monkeypatch.setitem(sys.modules, "wager.cli.probe", module)
        monkeypatch.setitem(main.VERBS, "probe", main.Verb("wager.cli.probe:probe", "Only for this test."))

    return register


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/a/file"), "/a/file: Permission denied"),
        (OSError(errno.EROFS, "Read-only file system", "b"), "b: Read-only file system"),
        (MemoryError(), "out of memory"),
    ],
)
def test_what_the_machine_refuses_is_one_line(
    error: BaseException,
    line: str,
    failing: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing(error)
    assert main.exit_status(["probe"]) == 2
    assert capsys.readouterr().err == f"wager: error: {line}\n"
    with pytest.raises(type(error)):
        main.exit_status(["--log", "debug", "probe"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("verb", ["generate -p a", "chat", "bench", "serve"])
def test_a_missing_cuda_is_one_line(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status([*verb.split(), "--device", "cuda"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("wager: error: device = 'cuda': expected cpu or auto: ")


def test_a_cuda_device_with_a_number_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda:1").value == "cuda:1"
    with pytest.raises(ConfigError, match=r"cuda:0 to cuda:1"):
        pick_device("cuda:2")


@pytest.mark.parametrize("text", ["{", "[1]", '{"prompt": 5}'])
def test_a_broken_prompt_file_is_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    assert main.exit_status(["bench", "--prompts", str(path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("wager: error: prompts: ") and "line 1" in line


def test_a_full_disk_behind_stdout_is_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run([*WAGER, "models"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == f"wager: error: {os.strerror(errno.ENOSPC)}\n"


@pytest.mark.parametrize("verb", ["models", "models --json", "simulate --kind code -t 0 --costs cpu -q"])
def test_a_closed_pipe_is_quiet(verb: str) -> None:
    with subprocess.Popen(
        [*WAGER, *verb.split()], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_converted_files_can_be_read_by_others(tmp_path: Path) -> None:
    file, folder = tmp_path / "drafter.gguf", tmp_path / "folder"
    before = os.umask(0o022)
    try:
        assert main.exit_status(["convert", "demo/drafter", str(file)]) == 0
        assert main.exit_status(["convert", str(file), str(folder)]) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (file, *folder.iterdir())}
    assert modes == {0o644} and any(path.suffix == ".safetensors" for path in folder.iterdir())
