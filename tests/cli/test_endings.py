"""Exit statuses of `wager generate` in a separate process: errors, an interrupt, and a closed pipe."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.architecture.layout import ROOT
from tests.engine.conftest import add_tokenizer
from tests.nn.tiny import save_drafter, save_target

WAGER = [sys.executable, "-c", "from wager.cli.main import run; run()"]
QUICK = ["--raw", "--drafter", "none", "--layout", "out_in", "--threads", "1", "--num-pages", "300"]
FOREVER = ["--max-tokens", "30000", "--ignore-eos", "--num-pages", "1000"]
PATIENCE_S = 120


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "target"
    save_target(folder, "qwen3", vocab_size=360, max_position_embeddings=32768)
    add_tokenizer(folder)
    return folder


@pytest.fixture
def copy(target: Path, tmp_path: Path) -> Path:
    """A copy of the target's folder, to be damaged."""
    return Path(shutil.copytree(target, tmp_path / "copy"))


def start(*args: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WAGER_")}
    return subprocess.Popen(
        [*WAGER, "generate", *args],
        cwd=ROOT,
        env=environment | {"HF_HUB_OFFLINE": "1", "WAGER_NATIVE": "off"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell's background jobs ignore interrupts, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def error_of(*args: str) -> str:
    """Returns the error of a command line that must fail: one line on stderr and nothing else."""
    process = start(*args)
    out, err = process.communicate(timeout=PATIENCE_S)
    text = err.decode()
    assert process.returncode == 2, text
    assert text.startswith("wager: error: ") and len(text.splitlines()) == 1 and "Traceback" not in text
    assert out == b""
    return text


def truncate(folder: Path) -> list[str]:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    return []


def swap_tokenizer(folder: Path) -> list[str]:
    """Writes a model with fewer tokens than its tokenizer."""
    shutil.rmtree(folder)
    save_target(folder, "qwen3", vocab_size=97)
    add_tokenizer(folder)
    return []


def foreign_drafter(folder: Path) -> list[str]:
    save_drafter(folder / "other", vocab_size=360, hidden_size=32)
    return ["--drafter", str(folder / "other")]


def spoil(folder: Path) -> list[str]:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncate, "model.safetensors"),
        (swap_tokenizer, "wrong tokenizer"),
        (foreign_drafter, "hidden_size"),
        (spoil, "NaN"),
    ],
)
def test_a_broken_model(copy: Path, damage: Callable[[Path], list[str]], said: str) -> None:
    assert said in error_of(str(copy), *QUICK, *damage(copy), "-p", "hello")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-p", ""], "prompt: is empty"),
        ([], "prompt: is empty"),
        (["-p", "word " * 5000, "--max-context", "4096"], "context"),
        (["-p", "a", "--fast"], "--fast"),
        (["-p", "a", "--policy", "best"], "policy = 'best'"),
        (["-p", "a", "--drafter", "no-such-folder"], "no-such-folder"),
        (["-p", "a", "--record-trace", "no-such-folder/a.npz"], "record_trace"),
        (["-p", "a", "--record-trace", "a.npz", "--drafter", "lookup"], "drafter = 'lookup'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_flag(target: Path, args: list[str], said: str) -> None:
    assert said in error_of(str(target), *QUICK, *args)


@pytest.mark.parametrize("model", ["./no/such/model", "nobody/has-such-a-model"])
def test_a_missing_model(model: str) -> None:
    assert model in error_of(model, *QUICK, "-p", "hello")


def test_an_interrupt_prints_the_text_so_far(target: Path) -> None:
    process = start(str(target), *QUICK, *FOREVER, "-p", "hello")
    assert process.stdout is not None
    assert len(process.stdout.read(8)) == 8
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert err == b"wager: interrupted\n"
    assert out.endswith(b"\n")


def test_a_closed_pipe_prints_no_error(target: Path) -> None:
    process = start(str(target), *QUICK, *FOREVER, "-p", "hello")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(8)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=PATIENCE_S) == 1
