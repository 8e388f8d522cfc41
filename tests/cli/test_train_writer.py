"""Which writer `wager train` takes for the target's texts; both write the same texts."""

from pathlib import Path

import pytest

from tests.train.toy import Toy, make_course, make_toy
from wager.cli import train_writer
from wager.cli.train_writer import EngineWriter, target_writer
from wager.train.texts import Text

SHORT = {"own_text": 12, "heldout_texts": 2, "heldout_tokens": 8, "write_rows": 5}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("toy"), updates=20)


def heldout_texts(toy: Toy, out: Path, device: str = "cpu") -> list[Text]:
    training = make_course(toy, out, **{**SHORT, "device": device})
    with target_writer(training) as write:
        training.rows(write)
        return training.heldout(write)


def test_a_cpu_lets_the_engine_write(toy: Toy, tmp_path: Path) -> None:
    assert isinstance(target_writer(make_course(toy, tmp_path, **SHORT)), EngineWriter)


def test_both_writers_write_the_same_texts(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = heldout_texts(toy, tmp_path / "engine")
    monkeypatch.setattr(train_writer, "can_capture", lambda *_: True)
    assert not isinstance(target_writer(make_course(toy, tmp_path / "slots", **SHORT)), EngineWriter)
    assert heldout_texts(toy, tmp_path / "slots") == want
    assert {text.temperature for text in want} == {0.0, 0.8}


@pytest.mark.gpu
def test_a_device_writes_in_slots(toy: Toy, tmp_path: Path) -> None:
    training = make_course(toy, tmp_path / "slots", **{**SHORT, "device": "cuda"})
    assert not isinstance(target_writer(training), EngineWriter)
    want = heldout_texts(toy, tmp_path / "engine")
    got = heldout_texts(toy, tmp_path / "slots", "cuda")
    assert sum(left.output_ids == right.output_ids for left, right in zip(got, want, strict=True)) >= 3
