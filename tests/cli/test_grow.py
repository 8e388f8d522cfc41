"""`wager grow`."""

from pathlib import Path

import pytest

from tests.train.grown import save_pair
from wager.cli import main
from wager.train.grow import SmallPair, grown_from


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> SmallPair:
    return save_pair(tmp_path_factory.mktemp("pair"))


def test_a_pair_is_grown_with_the_drafter_beside_it(
    pair: SmallPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "big"
    args = ["grow", str(out), "--model", str(pair.target), "--shape", "hidden=64,vocab=120", "--seed", "4"]
    assert main.exit_status(args) == 0
    shown = capsys.readouterr().out
    assert "target: 3 layers x 48 -> 3 x 64" in shown and "vocabulary 97 -> 120" in shown
    assert "say that it was grown" in shown
    for folder in (out, out / "drafter"):
        found = grown_from(folder)
        assert found is not None and found["seed"] == 4
        probe = tmp_path / "probe"
        probe.touch()
        modes = {path.stat().st_mode for path in folder.iterdir() if path.is_file()}
        assert modes == {probe.stat().st_mode}


def test_without_a_drafter(pair: SmallPair, tmp_path: Path) -> None:
    args = ["grow", str(tmp_path / "big"), "--model", str(pair.target), "--shape", "hidden=64"]
    assert main.exit_status([*args, "--drafter", "none", "--dtype", "float32"]) == 0
    assert not (tmp_path / "big" / "drafter").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--shape", "13b"], "shape = '13b'"),
        (["--shape", "hidden=16"], "hidden_size = 16: expected at least 48"),
        (["--dtype", "int8"], "dtype = 'int8'"),
        (["--drafter", "lookup"], "no DFlash drafter beside"),
        (["--model", "./nowhere"], "no such model folder"),
    ],
)
def test_mistakes_are_one_line(
    pair: SmallPair, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    out = tmp_path / "big"
    assert main.exit_status(["grow", str(out), "--model", str(pair.target), *flags]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not out.exists()
