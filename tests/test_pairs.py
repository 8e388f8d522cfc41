"""Which drafter belongs to which target, by name."""

from pathlib import Path

import pytest

from wager.config import EngineConfig
from wager.errors import ModelError
from wager.pairs import (
    DEMO,
    DEMO_FOLDER,
    FETCHED,
    MODELS_FOLDER,
    PAIRS,
    SHIPPED,
    Pair,
    drafter_beside,
    find_pair,
    shipped_folder,
)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.target)
def test_every_target_finds_its_own_pair_in_any_spelling(pair: Pair) -> None:
    last = pair.target.partition("/")[2]
    for name in (
        pair.target,
        last,
        pair.target.upper(),
        f"models--{pair.target.replace('/', '--')}",
        last + "/",
    ):
        match = find_pair(name)
        assert match is not None and match.pair == pair and match.exact, name


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.drafter)
def test_a_drafters_name_finds_its_pair(pair: Pair) -> None:
    match = find_pair(pair.drafter)
    assert match is not None and match.pair == pair


def test_the_longest_name_wins() -> None:
    short, long = Pair("a/M-3", "d/M-3-x"), Pair("a/M-3-Coder", "d/M-3-Coder-x")
    for pairs in ((short, long), (long, short)):
        match = find_pair("someone/M-3-Coder-tuned", pairs)
        assert match is not None and match.pair == long and not match.exact
        match = find_pair("someone/M-3-tuned", pairs)
        assert match is not None and match.pair == short


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-4B"),
        ("somewhere/checkpoints/qwen3-8b-tuned", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-Coder-30B-A3B", "Qwen/Qwen3-Coder-30B-A3B-Instruct"),
        ("unsloth/Qwen3.5-27B-AWQ", "Qwen/Qwen3.5-27B"),
    ],
)
def test_a_relative_is_found_but_not_taken_for_the_target_itself(name: str, target: str) -> None:
    match = find_pair(name)
    assert match is not None and match.pair.target == target and not match.exact


@pytest.mark.parametrize(
    "name", ["", "Qwen/Qwen3-14B", "Qwen3-4Bit", "Qwen3-0.4B", "MyQwen3-4B", "x/Qwen3-8B-DFlash-mine", "gpt"]
)
def test_another_model_has_no_pair(name: str) -> None:
    assert find_pair(name) is None


def test_targets_that_run_are_of_a_known_type() -> None:
    from wager.nn.models import MODEL_TYPES

    assert any(pair.runs for pair in PAIRS)
    assert {pair.model_type for pair in PAIRS if pair.runs} <= set(MODEL_TYPES)


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    return folder


def test_a_drafter_is_found_inside_or_beside_its_target(tmp_path: Path) -> None:
    target = make(tmp_path / "Qwen3-8B")
    assert drafter_beside(target) is None
    assert drafter_beside(tmp_path / "absent") is None
    (tmp_path / "Qwen3-8B-DFlash").mkdir()
    assert drafter_beside(target) is None, "a folder without a config is no drafter"
    beside = make(tmp_path / "qwen3-8b-dflash-b16")
    assert drafter_beside(target) == beside
    inside = make(target / "drafter")
    assert drafter_beside(target) == inside


def test_a_drafter_is_found_beside_a_folder_called_target(tmp_path: Path) -> None:
    target, drafter = make(tmp_path / "target"), make(tmp_path / "drafter")
    assert drafter_beside(target) == drafter
    assert drafter_beside(make(tmp_path / "another")) is None


# -- the pair that ships


@pytest.mark.parametrize(
    ("name", "folder"), [("demo", "target"), ("demo/drafter", "drafter"), ("demo/chain", "chain")]
)
def test_the_names_that_ship_are_folders_of_the_package(name: str, folder: str) -> None:
    assert shipped_folder(name) == DEMO_FOLDER / folder
    assert (DEMO_FOLDER / folder / "config.json").is_file()
    match = find_pair(name)
    assert match is not None and match.pair in SHIPPED and match.exact


def test_the_drafter_of_the_fetched_model_ships() -> None:
    place = shipped_folder("smollm2/drafter")
    assert place is not None and place.is_file() and place.is_relative_to(MODELS_FOLDER)
    for name in ("smollm2", "smollm2/drafter"):
        match = find_pair(name)
        assert match is not None and match.pair in FETCHED and match.exact


@pytest.mark.parametrize(
    "name", ["", "Demo", "./demo", "demo/", "demo/target", "demo/..", "me/demo", "demo-7B"]
)
def test_other_names_do_not_ship(name: str) -> None:
    assert shipped_folder(name) is None
    assert find_pair(name) is None


def test_the_default_model_ships() -> None:
    assert shipped_folder(EngineConfig().model.model) is not None


def test_its_first_drafter_is_what_auto_finds() -> None:
    assert find_pair(DEMO) == (SHIPPED[0], True)
    assert drafter_beside(DEMO_FOLDER / "target") == shipped_folder(SHIPPED[0].drafter)


def test_a_name_that_ships_comes_before_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wager.engine.assemble import find_folder

    make(tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    assert find_folder("demo") == DEMO_FOLDER / "target"
    assert find_folder("./demo").resolve() == tmp_path / "demo"


def test_a_pair_that_is_missing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wager.engine.assemble import find_folder

    monkeypatch.setattr("wager.pairs.DEMO_FOLDER", tmp_path)
    for name in ("demo", "demo/chain"):
        with pytest.raises(ModelError, match="not in this installation"):
            find_folder(name)
