"""`wager models`."""

import json

import pytest

from wager.cli import main
from wager.pairs import PAIRS


def test_all_pairs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status(["models"]) == 0
    out = capsys.readouterr().out
    assert all(pair.target in out and pair.drafter in out for pair in PAIRS)
    assert main.exit_status(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["target"], one["runs"]) for one in found] == [(pair.target, pair.runs) for pair in PAIRS]


def test_one_name_finds_one_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status(["models", "qwen/qwen3-8b", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found["drafter"] == "z-lab/Qwen3-8B-DFlash-b16" and found["exact"]
    assert main.exit_status(["models", "me/qwen3-8b-tuned"]) == 0
    out = capsys.readouterr().out
    assert "z-lab/Qwen3-8B-DFlash-b16" in out and "not that target itself" in out


def test_an_unknown_name_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status(["models", "nobody/nothing"]) == 2
    assert "no known pair for 'nobody/nothing'" in capsys.readouterr().err
