"""`wager models`."""

import json
from pathlib import Path

import pytest

from wager.cli import main
from wager.pairs import DEMO_FOLDER, FETCHED, PAIRS, SHIPPED


def test_all_pairs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status(["models"]) == 0
    out = capsys.readouterr().out
    assert all(pair.target in out and pair.drafter in out for pair in (*SHIPPED, *FETCHED, *PAIRS))
    assert main.exit_status(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["target"], one["runs"]) for one in found] == [
        (pair.target, pair.runs) for pair in (*SHIPPED, *FETCHED, *PAIRS)
    ]


def test_the_demo_pair_comes_first_with_sizes_and_licence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status(["models"]) == 0
    _, first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == ["demo", "demo/drafter"] and second.split()[:2] == ["demo", "demo/chain"]
    assert " MB, Apache-2.0" in first and " MB, Apache-2.0" in second
    assert main.exit_status(["models", "demo", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    weights = DEMO_FOLDER.glob("target/*.safetensors")
    assert found["drafter"] == "demo/drafter" and found["licence"] == "Apache-2.0"
    assert found["target_bytes"] > sum(file.stat().st_size for file in weights) > 0


def test_a_missing_pair_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("wager.pairs.DEMO_FOLDER", tmp_path)
    assert main.exit_status(["models", "demo"]) == 0
    assert "missing in this installation" in capsys.readouterr().out


def test_a_name_finds_its_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status(["models", "qwen/qwen3-8b", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found["drafter"] == "z-lab/Qwen3-8B-DFlash-b16" and found["exact"]
    assert main.exit_status(["models", "me/qwen3-8b-tuned"]) == 0
    out = capsys.readouterr().out
    assert "z-lab/Qwen3-8B-DFlash-b16" in out and "is not exactly this target" in out


def test_an_unknown_name_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status(["models", "nobody/nothing"]) == 2
    assert "no known pair for 'nobody/nothing'" in capsys.readouterr().err
