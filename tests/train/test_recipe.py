"""The recipe from corpus to judged drafters, in the smallest, and the choices it makes on the way."""

import json
import random
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wager.errors import InputError
from wager.nn.models import load_target
from wager.nn.models.dflash import check_pair, load_drafter
from wager.text.chat import ChatTemplate
from wager.train import recipe
from wager.train.loop import TrainConfig
from wager.train.recipe import DrafterPlan, Recipe, choose_prompts, plan_drafters, read_options
from wager.train.target import TargetShape

SMALLEST = replace(
    recipe.TINY,
    vocab_size=300,
    target=TargetShape(300, 32, 3, 2, 1, 16, 48, 256),
    row_len=40,
    target_training=TrainConfig(4, 4, warm_up=1, report_every=2),
    text_len=40,
    text_rows=4,
    text_turns=1,
    prompt_lens=(16,),
    drafter_training=TrainConfig(3, 2, warm_up=1, report_every=1),
    chain_training=TrainConfig(2, 2, report_every=1),
    num_output=6,
)


def write_corpus(path: Path, count: int) -> Path:
    chance = random.Random(3)
    lines = []
    for number in range(count):
        left, right = chance.randrange(100), chance.randrange(100)
        lines += [
            {
                "kind": "math",
                "text": f"<|user|>\n{left} + {right}?\n<|assistant|>\nAdd {left} and {right}.\n"
                f"The answer is {left + right}.\n<|end|>",
            },
            {"kind": "prose", "text": f"It was day {number} and the wind came from the sea. " * 3},
        ]
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_the_whole_recipe_in_the_smallest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "TINY", SMALLEST)
    corpus, heldout = write_corpus(tmp_path / "c.jsonl", 30), write_corpus(tmp_path / "h.jsonl", 2)
    out = tmp_path / "out"
    options = ["--corpus", corpus, "--heldout", heldout, "--out", out, "--tiny", "--drafters", "1:0-2:0.5"]
    chosen = read_options([str(option) for option in options])
    Recipe(chosen).run()
    figures = json.loads((out / "figures.json").read_text())
    assert (
        set(figures["heldout_loss"]) == {"math", "math-natural", "prose"}
        and figures["shape"]["num_layers"] == 3
    )
    judged = figures["drafter-1_0-2_0.5"]
    kinds = ("math", "math-natural", "prose")
    assert set(judged) == {f"{kind}_t{heat}" for kind in kinds for heat in ("0", "0.8")}
    assert all(own["tokens_per_step"] >= 1 and len(own["by_depth"]) == 15 for own in judged.values())
    target = load_target(out / "target", "float32", "cpu")
    spec = load_drafter(out / "drafter-1_0-2_0.5").spec
    check_pair(spec, target.spec.hidden_size, target.spec.num_layers, target.spec.vocab_size)
    assert load_target(out / "chain").spec.vocab_size == target.spec.vocab_size
    assert ChatTemplate.from_folder(out / "target") is not None
    # A second run takes the target and its text as they are.
    before = {path: path.stat().st_mtime_ns for path in (out / "target").iterdir()}
    Recipe(chosen).run()
    assert {path: path.stat().st_mtime_ns for path in (out / "target").iterdir()} == before


def test_two_of_three_worked_problems_think(tmp_path: Path) -> None:
    records = recipe.texts_of(write_corpus(tmp_path / "c.jsonl", 300), seed=1)
    thinking = [record for record in records if "<think>" in record.text]
    assert all(record.kind == "math" for record in thinking) and 170 < len(thinking) < 230
    assert len(recipe.texts_of(tmp_path / "c.jsonl", 1, limit=7)) == 7


def test_drafters_are_planned_from_text() -> None:
    plans: list[DrafterPlan] = plan_drafters("2:auto:0.5,1:3-9:1")
    assert [plan.name for plan in plans] == ["drafter-2_auto_0.5", "drafter-1_3-9_1"]
    assert [plan.shape.layer_ids for plan in plans] == [(), (3, 9)]
    assert [(plan.shape.num_layers, plan.sampling.soft) for plan in plans] == [(2, 0.5), (1, 1.0)]
    for text in ("2", "2:auto", "x:auto:0.5", "2:auto:much", ""):
        with pytest.raises(InputError, match="layers:taps:soft"):
            plan_drafters(text)


def test_prompts_are_pieces_of_every_kind_in_turn() -> None:
    documents = {
        "a": [np.arange(10, dtype=np.int32), np.arange(100, 140, dtype=np.int32)],
        "b": [np.arange(200, 216, dtype=np.int32)],
        "short": [np.arange(3, dtype=np.int32)],
    }
    prompts = choose_prompts(documents, 16, 40, random.Random(0))
    assert all(len(ids) == 16 and ids == list(range(ids[0], ids[0] + 16)) for ids in prompts)
    assert all(100 <= ids[0] < 200 for ids in prompts[::2]) and {ids[0] for ids in prompts[1::2]} == {200}
    assert len({ids[0] for ids in prompts[::2]}) > 3
    with pytest.raises(InputError, match="no document of 50 tokens"):
        choose_prompts(documents, 50, 1, random.Random(0))


def test_a_mistake_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--corpus", "no-such-file", "--heldout", "neither", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["recipe", *given])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(recipe.__file__, run_name="__main__")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "recipe: error: corpus: no such file: no-such-file\n"
