"""`wager train` and `wager train-target`: a run with a tiny model, one-line errors, and interrupts."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import TextColumn
from safetensors.torch import load_file

from tests.architecture.layout import ROOT
from tests.train.toy import DRAFTER, TARGET, Toy, make_toy, write_corpus
from wager.cli import main
from wager.cli.train import one_line_errors
from wager.cli.train_screen import BarScreen, LineScreen, deferred_interrupt, evaluation_line
from wager.config import settings_of
from wager.errors import InputError, ModelError
from wager.train.loop import Progress
from wager.train.settings import TargetSettings

WAGER = [sys.executable, "-c", "from wager.cli.main import run; run()"]
PATIENCE_S = 120
SHORT = {"updates": 6, "own_text": 24, "heldout_texts": 2, "heldout_tokens": 8, "report_every": 1}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("toy"), updates=4)


def as_flags(values: dict[str, Any]) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def command(toy: Toy, out: Path, **changes: Any) -> list[str]:
    flags = as_flags({**DRAFTER, **SHORT, **changes})
    return [
        "train",
        "--model",
        str(toy.target.folder),
        "--corpus",
        str(toy.corpus),
        "--out",
        str(out),
        *flags,
    ]


def test_a_drafter_is_trained(toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = tmp_path / "more.txt"
    more.write_text("What is 1 plus 1? It is 2. Then add one and get 3.\n" * 20, encoding="utf-8")
    out = tmp_path / "drafter"
    named = command(toy, out, evaluate_every=3)
    # In `--corpus a b`, b is a positional argument, which names another file.
    assert main.exit_status([*named[:5], str(more), *named[5:]]) == 0
    said, told = capsys.readouterr()
    assert "greedy:" in said and "T = 0.8:" in said and f"--drafter {out}" in said
    assert "on this machine" in said and "as fast as plain decoding" in " ".join(said.split())
    modes = {path.stat().st_mode & 0o777 for path in out.iterdir() if path.is_file()}
    assert modes == {more.stat().st_mode & 0o777}
    assert "update 6/6" in told and "held out: tokens per step" in told and "24 of 24" in told
    assert "mask token" in told
    config = json.loads((out / "config.json").read_text())
    assert config["dflash_config"]["target_layer_ids"] == [0, 1, 2]
    card = (out / "README.md").read_text()
    assert "| toy.jsonl |" in card and "| more.txt | 1 |" in card and "base_model: target" in card


def test_a_second_call_continues(toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = command(toy, tmp_path, own_text=0)
    assert main.exit_status(asked) == 0
    before = (tmp_path / "training" / "heldout.npz").stat().st_mtime_ns
    capsys.readouterr()
    assert main.exit_status([*asked, "--resume"]) == 0
    told = capsys.readouterr().err
    assert "update 6/6" not in told and "continues from update 6" in told
    assert (tmp_path / "training" / "heldout.npz").stat().st_mtime_ns == before
    assert main.exit_status([*asked, "--no-resume"]) == 0
    assert "update 6/6" in capsys.readouterr().err
    assert "updates was 6, now 7" in error_of(capsys, command(toy, tmp_path, own_text=0, updates=7))
    (tmp_path / "training" / "checkpoint.pt").write_bytes(b"torn")
    assert "checkpoint.pt is not a checkpoint of this run" in error_of(capsys, asked)


def error_of(capsys: pytest.CaptureFixture[str], args: list[str]) -> str:
    """Returns the last line of a command line that must fail: one error, no traceback, status 2."""
    assert main.exit_status(args) == 2
    out, err = capsys.readouterr()
    assert not out and "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("wager: error: ")
    return last


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--updates", "many"], "updates = 'many'"),
        (["--taps", "0-9"], "taps = '0-9': expected rising layers from 0 to 2"),
        (["--no-own-text", "--own-text", "5"], "own_text = '5': expected not given together"),
        (["--device", "cuda:7"], "device = 'cuda:7'"),
        (["--mask-token-id", "5000"], "mask_token_id = 5000"),
        (["--resume"], "resume: there is no checkpoint"),
        (["no-such-file.txt"], "corpus: no such file: no-such-file.txt"),
        (["--model", "./no/such/model"], "./no/such/model"),
        (["--fast"], "--fast"),
    ],
)
def test_a_wrong_flag_is_a_one_line_error(
    toy: Toy,
    tmp_path: Path,
    extra: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert said in error_of(capsys, [*command(toy, tmp_path), *extra])


def test_a_missing_option_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for verb in ("train", "train-target"):
        assert "corpus: is missing" in error_of(capsys, [verb, "--out", "x"])
        text = tmp_path / "text.txt"
        text.write_text("", encoding="utf-8")
        assert "out: is missing" in error_of(capsys, [verb, str(text)])
        (tmp_path / "file").write_text("", encoding="utf-8")
        asked = [verb, str(text), "--out", str(tmp_path / "file" / "out")]
        assert "out: cannot write" in error_of(capsys, asked)


def test_bad_data_and_models_are_named(toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n", encoding="utf-8")
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    folder, corpus = str(toy.target.folder), str(toy.corpus)
    asked = ["train", "--out", str(tmp_path / "out"), "--device", "cpu", "--row-len", "64"]
    assert "corpus: holds no text" in error_of(capsys, [*asked, "--model", folder, str(empty)])
    assert "'gpt2' is not supported" in error_of(capsys, [*asked, "--model", str(other), corpus])


def test_an_interrupt_writes_a_checkpoint(toy: Toy, tmp_path: Path) -> None:
    endless = command(toy, tmp_path / "cut", updates=400, own_text=0)
    process = subprocess.Popen(
        [*WAGER, *endless], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "update 2/" in line:
            process.send_signal(signal.SIGINT)
            break
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and err.endswith("wager: interrupted\n") and "Traceback" not in err
    assert "checkpoint.pt was written: the same command continues from it" in err
    state = torch.load(tmp_path / "cut" / "training" / "checkpoint.pt", weights_only=True)
    assert 2 <= state["standing"]["update"] < 400
    assert not (tmp_path / "cut" / "model.safetensors").exists()


def test_the_first_interrupt_is_deferred_and_the_second_is_not(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupt() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert "stopping after this update" in capfd.readouterr().err


def test_failures_of_disk_and_memory_are_one_line_errors() -> None:
    with pytest.raises(InputError, match=r"out: cannot be written: .*full"), one_line_errors():
        raise OSError(28, "the disk is full")
    with pytest.raises(ModelError, match="out of memory: reduce --batch-rows"), one_line_errors():
        raise torch.OutOfMemoryError("2 GiB")
    with pytest.raises(BrokenPipeError), one_line_errors():
        raise BrokenPipeError


REPORT = Progress(20, 80, 1.25, 2e-3, 12.5, 3.0, {"tokens per step": 2.5, "depth 1": 0.8, "depth 2": 0.6})


def test_lines_for_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    screen = LineScreen()
    screen.message("begun")
    screen.texts_written("own_text", 3, 9)
    screen.updated(REPORT)
    assert capsys.readouterr().err.splitlines() == [
        "wager: begun",
        "wager: texts of the target: 3 of 9",
        "wager: update 20/80  loss 1.2500  lr 2.0e-03  12.5 rows/s  3 s",
        "wager:   held out: tokens per step 2.500, acceptance by depth 0.80 0.60",
    ]
    assert evaluation_line({"nats per token": 3.2}) == "  held out: nats per token 3.200"


def test_bars_for_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    columns = (TextColumn("{task.description}"), TextColumn("{task.fields[figures]}"))
    with Bars(*columns, console=console, auto_refresh=False) as bars:
        screen = BarScreen(bars)
        screen.texts_written("own_text", 3, 9)
        screen.texts_written("own_text", 9, 9)
        screen.updated(REPORT)
        assert [(task.description, task.completed, task.total) for task in bars.tasks] == [
            ("texts of the target", 9, 9),
            ("updates", 20, 80),
        ]
    assert isinstance(console.file, io.StringIO)
    assert "held out: tokens per step 2.500" in console.file.getvalue()


def test_a_target_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus, out = write_corpus(tmp_path / "toy.jsonl", 40), tmp_path / "target"
    values = {one.name: getattr(TARGET, one.name) for one in settings_of(TargetSettings)}
    flags = as_flags(
        {name: value for name, value in values.items() if not isinstance(value, bool)} | {"updates": 3}
    )
    assert main.exit_status(["train-target", str(corpus), "--out", str(out), *flags]) == 0
    modes = {path.stat().st_mode for path in out.iterdir() if path.is_file()}
    assert modes == {corpus.stat().st_mode}
    said, told = capsys.readouterr()
    assert "nats per token" in said and f"wager train --model {out}" in said
    assert "update 3/3" in told
    assert load_file(out / "model.safetensors") and (out / "tokenizer.json").exists()
    assert "kv_heads = 3" in error_of(capsys, ["train-target", str(corpus), "--out", "x", "--kv-heads", "3"])
