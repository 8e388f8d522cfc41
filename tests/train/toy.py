"""A toy corpus of sums and small chats, a toy target that has learned it, and the way to its drafter."""

import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from wager.cli.train_writer import EngineWriter
from wager.train.drafter_training import DrafterTraining, Trained
from wager.train.loop import Progress
from wager.train.settings import DrafterSettings, TargetSettings
from wager.train.target_training import TargetTraining
from wager.train.teacher import TargetFolder, open_target

TARGET = TargetSettings(
    vocab_size=330,
    layers=3,
    hidden_size=48,
    heads=2,
    kv_heads=1,
    head_dim=24,
    intermediate_size=96,
    max_position=256,
    row_len=48,
    heldout_share=0.05,
    updates=110,
    batch_rows=8,
    lr=6e-3,
    warm_up=8,
    device="cpu",
    evaluate_every=0,
    report_every=50,
)
DRAFTER: dict[str, Any] = {
    "layers": 1,
    "taps": "0-1-2",
    "block_size": 6,
    "shortest_block": 3,
    "most_known": 3,
    "anchors": 8,
    "own_text": 60,
    "row_len": 48,
    "max_prompt": 20,
    "heldout_texts": 6,
    "heldout_tokens": 20,
    "updates": 160,
    "batch_rows": 8,
    "lr": 0.012,
    "warm_up": 6,
    "report_every": 10,
    "evaluate_every": 0,
    "checkpoint_every": 1000,
    "device": "cpu",
}


def settings(**changes: Any) -> DrafterSettings:
    return DrafterSettings(**{**DRAFTER, **changes})


def write_corpus(path: Path, count: int = 200, chats: bool = True) -> Path:
    chance = random.Random(1)
    lines: list[dict[str, Any]] = []
    for _ in range(count):
        left, right = chance.randrange(30), chance.randrange(30)
        text = (
            f"What is {left} plus {right}? It is {left + right}. Then add one and get {left + right + 1}.\n"
        )
        lines.append({"kind": "math", "licence": "MIT", "text": text})
        answer = f"{left} {left}, that is {left} two times, and again {left} {left}."
        chat = [{"role": "user", "content": f"Say {left} twice."}, {"role": "assistant", "content": answer}]
        if chats:
            lines.append({"license": "CC0-1.0", "messages": chat})
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path


@dataclass
class Notes:
    """A listener that remembers."""

    lines: list[str] = field(default_factory=list)
    texts: list[tuple[str, int, int]] = field(default_factory=list)
    reports: list[Progress] = field(default_factory=list)

    def message(self, text: str) -> None:
        self.lines.append(text)

    def texts_written(self, what: str, done: int, count: int) -> None:
        self.texts.append((what, done, count))

    def updated(self, progress: Progress) -> None:
        self.reports.append(progress)


@dataclass(frozen=True)
class Toy:
    """A corpus and a target that knows it."""

    corpus: Path
    target: TargetFolder


def make_toy(folder: Path, updates: int = TARGET.updates) -> Toy:
    corpus = write_corpus(folder / "toy.jsonl")
    training = TargetTraining([corpus], folder / "target", replace(TARGET, updates=updates), Notes())
    training.prepare()
    training.learn(training.tokenizer())
    return Toy(corpus, open_target(folder / "target"))


def engine_writer(toy: Toy) -> EngineWriter:
    """Must be used as a context."""
    return EngineWriter(toy.target.folder, settings(), torch.device("cpu"), context=128)


def make_course(toy: Toy, out: Path, notes: Notes | None = None, **changes: Any) -> DrafterTraining:
    """A training that has read its corpus."""
    training = DrafterTraining(toy.target, [toy.corpus], out, settings(**changes), notes or Notes())
    training.prepare()
    return training


def run_course(training: DrafterTraining, toy: Toy, stop_after: int = 0) -> Trained:
    """Every stage; with `stop_after`, interrupted behind so many updates."""
    left = [stop_after]

    def stop() -> bool:
        left[0] -= 1
        return left[0] == 0

    with engine_writer(toy) as write:
        rows, heldout = training.rows(write), training.heldout(write)
    return training.learn(rows, heldout, stop)
