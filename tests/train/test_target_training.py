"""A small target from a corpus: it learns, its folder runs, and a resumed run is the uninterrupted one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.train.toy import TARGET, Notes, Toy, write_corpus
from wager.errors import InputError
from wager.llm import LLM
from wager.records import SamplingParams
from wager.train.settings import TargetSettings
from wager.train.target_training import TargetTraining

SHORT = replace(TARGET, updates=6, report_every=2)


def run(corpus: Path, out: Path, settings: TargetSettings = SHORT, stop_after: int = 0) -> Notes:
    notes = Notes()
    training = TargetTraining([corpus], out, settings, notes)
    training.prepare()
    left = [stop_after]

    def stop() -> bool:
        left[0] -= 1
        return left[0] == 0

    training.learn(training.tokenizer(), stop)
    return notes


def test_the_toy_target_has_learned_and_runs(toy: Toy) -> None:
    llm = LLM(str(toy.target.folder), None, "ar", layout="out_in", threads=1)
    [output] = llm.generate("What is 3 plus 4? It is", SamplingParams(max_tokens=30))
    assert "Then add one" in output.text
    assert llm.chat_template is not None
    assert toy.target.tokenizer.special_id("mask_token") is not None


def test_the_loss_falls_and_is_judged(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "toy.jsonl", 60)
    notes = run(corpus, tmp_path / "out", replace(SHORT, updates=24, evaluate_every=12))
    losses = [report.loss for report in notes.reports]
    assert losses[-1] < losses[0] - 1
    judged = [report.evaluation for report in notes.reports if report.evaluation]
    assert len(judged) == 2 and judged[1]["nats per token"] < judged[0]["nats per token"]


def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "toy.jsonl", 60)
    run(corpus, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(corpus, tmp_path / "cut", stop_after=3)
    words = (tmp_path / "cut" / "tokenizer.json").stat().st_mtime_ns
    notes = run(corpus, tmp_path / "cut")
    assert [report.update for report in notes.reports] == [4, 6]
    assert (tmp_path / "cut" / "tokenizer.json").stat().st_mtime_ns == words
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(weight, resumed[name]) for name, weight in whole.items())
    with pytest.raises(InputError, match=r"other settings: lr was 0\.006, now 0\.1"):
        run(corpus, tmp_path / "cut", replace(SHORT, lr=0.1))
    (tmp_path / "cut" / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"tokenizer: .*tokenizer\.json cannot be read"):
        run(corpus, tmp_path / "cut")


def test_a_drafters_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"dflash_config": {}}', encoding="utf-8")
    with pytest.raises(InputError, match="not a target"):
        run(write_corpus(tmp_path / "toy.jsonl", 5), tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read"):
        run(tmp_path / "toy.jsonl", tmp_path)
