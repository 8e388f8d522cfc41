"""The chat recipe from a model and a corpus to a measured drafter, in the smallest; and what it refuses."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.chat_model import INST, PLAIN, save_chat_model, write_chat_corpus
from tests.train.toy import Toy
from wager.errors import ConfigError, InputError
from wager.nn.models import load_target
from wager.nn.models.dflash import check_pair, load_drafter
from wager.train import recipe_chat
from wager.train.recipe_chat import ChatRecipe, read_options


def arguments(folder: Path, *more: str) -> list[str]:
    return [
        "--model",
        str(folder / "model"),
        "--corpus",
        str(folder / "corpus.jsonl"),
        "--out",
        str(folder / "out"),
        "--tiny",
        *more,
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_chat_model(tmp_path / "model")
    write_chat_corpus(tmp_path / "corpus.jsonl")
    return tmp_path


def figures(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "training" / "figures.json").read_text())
    return found


def test_the_whole_recipe_in_the_smallest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ChatRecipe(read_options(arguments(folder))).run()
    said, out = capsys.readouterr().out, folder / "out"
    found = figures(folder)
    kinds = [own["kind"] for own in found["measured"]]
    assert {"chat", "code", "math", "prose"} <= set(kinds) <= {"chat", "code", "math", "prose", "text"}
    assert all(own["tokens_per_step"] >= 1.0 and own["temperature"] == 0.0 for own in found["measured"])
    assert found["texts"] > 10 and found["tokens"] > 100
    for stage in ("held-out answers", "invented questions", "answers", "further questions", "update 6/6"):
        assert stage in said, stage
    assert "invented" in said.split("tokens of the target by kind:")[1].split("\n")[0]
    spec, target = load_drafter(out).spec, load_target(folder / "model")
    check_pair(spec, target.spec.hidden_size, target.spec.num_layers, target.spec.vocab_size)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "| math, greedy |" in card and "| corpus.jsonl | 96 |" in card and "| write_rows | 8 |" in card
    # A second run takes the texts and the checkpoint as they are, and its weights are the same.
    weights = (out / "model.safetensors").read_bytes()
    ChatRecipe(read_options(arguments(folder))).run()
    assert "held-out answers" not in capsys.readouterr().out
    assert (out / "model.safetensors").read_bytes() == weights


def test_the_drafter_learns_a_targets_answers(toy: Toy, tmp_path: Path) -> None:
    """The toy target repeats numbers in its chats, which a drafter learns in some updates."""
    given = ["--model", str(toy.target.folder), "--corpus", str(toy.corpus), "--out", str(tmp_path / "out")]
    sizes: dict[str, Any] = {
        "own-text": 60,
        "row-len": 96,
        "max-prompt": 60,
        "updates": 120,
        "batch-rows": 8,
        "anchors": 8,
    }
    sizes |= {"block-size": 6, "heldout-tokens": 20, "heldout-texts": 6, "evaluate-every": 0, "taps": "0-1-2"}
    sizes |= {"lr": 0.012, "report-every": 60, "long-every": 5}
    flags = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    ChatRecipe(read_options([*given, "--tiny", *flags])).run()
    by_kind = {own["kind"]: own["tokens_per_step"] for own in figures(tmp_path)["measured"]}
    assert by_kind["chat"] > 1.5


def test_other_settings_are_refused_or_begin_anew(folder: Path) -> None:
    ChatRecipe(read_options(arguments(folder))).run()
    with pytest.raises(InputError, match=r"other settings: seed was 0, now 1 \(--no-resume starts"):
        ChatRecipe(read_options(arguments(folder, "--seed", "1"))).run()
    with pytest.raises(
        InputError, match=r"checkpoint\.pt has other settings: lr was .* \(--no-resume starts"
    ):
        ChatRecipe(read_options(arguments(folder, "--lr", "0.1"))).run()
    before = (folder / "out" / "model.safetensors").read_bytes()
    ChatRecipe(read_options(arguments(folder, "--seed", "1", "--no-resume"))).run()
    assert (folder / "out" / "model.safetensors").read_bytes() != before


def test_held_out_questions_are_not_trained_on(folder: Path) -> None:
    training, heldout = ChatRecipe(read_options(arguments(folder))).questions()
    known = {tuple(question.prompt_ids) for question in heldout}
    assert len(known) == len(heldout) >= 8
    assert not known & {tuple(question.prompt_ids) for question in training}


@pytest.mark.parametrize(("template", "invents"), [(INST, True), (PLAIN, False)])
def test_other_templates(
    tmp_path: Path, template: str, invents: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of a question may be another token than that of an answer, or it may be none."""
    save_chat_model(tmp_path / "model", template, "llama")
    write_chat_corpus(tmp_path / "corpus.jsonl")
    ChatRecipe(read_options(arguments(tmp_path))).run()
    assert ("no invented questions" in capsys.readouterr().out) != invents
    assert figures(tmp_path)["texts"] > 10


def test_what_the_recipe_cannot_use_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match="row_len = 4096: expected at most the target's context of 512"):
        ChatRecipe(read_options(arguments(folder, "--row-len", "4096")))
    with pytest.raises(ConfigError, match="layers = 'many'"):
        read_options(arguments(folder, "--layers", "many"))
    with pytest.raises(InputError, match="write_seconds: leaves no time for a text"):
        ChatRecipe(read_options(arguments(folder, "--write-seconds", "0"))).run()
    (folder / "model" / "tokenizer_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"model: .* has no chat template"):
        ChatRecipe(read_options(arguments(folder)))


def test_a_mistake_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["recipe", *arguments(folder, "--corpus", "no-such-file")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(recipe_chat.__file__, run_name="__main__")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "recipe: error: corpus: no such file: no-such-file\n"


@pytest.mark.gpu
def test_the_recipe_on_a_device(folder: Path) -> None:
    ChatRecipe(read_options(arguments(folder, "--device", "cuda"))).run()
    assert torch.cuda.is_available() and figures(folder)["texts"] > 10
