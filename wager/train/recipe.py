"""The recipe of the demo pair in stages: tokenizer, target, the target's texts, drafters, figures.

    python -m wager.train.recipe --corpus corpus.jsonl.xz --heldout heldout.jsonl.xz --out build/demo

Each stage has a time budget and stores its results in the output folder, so a later stage can run again. It
is meant for one GPU and some minutes; `--tiny` runs all stages at a small size on a CPU.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers
import torch
from torch import Tensor

from wager.errors import InputError
from wager.train.corpus import Record, TokenArray, TokenCorpus, read_records, tokenize
from wager.train.drafter import (
    BlockSampling,
    DrafterShape,
    GraphedTeacher,
    HFTeacher,
    Teacher,
    block_loss,
    build_drafter,
    drafter_config,
    save_drafter,
)
from wager.train.generate import write_rows
from wager.train.heldout import JudgeOptions, judge, losses, read_heldout
from wager.train.loop import PackedBatches, TrainConfig, Trainer
from wager.train.recipe_output import num_parameters, run_recipe, say, show
from wager.train.target import TargetShape, build_model, next_token_loss, save_target
from wager.train.tokenizer import (
    END_OF_TEXT,
    END_OF_TURN,
    MASK,
    PAD,
    save_tokenizer,
    special_id,
    train_tokenizer,
    with_thinking,
)

REPEATS = {"chat": 1.0, "dialog": 0.8, "math": 1.0, "code": 1.0, "prose": 1.25}
"""How often a kind comes per round: scarce kinds are soon known by heart, and that costs on new text."""
TEMPERATURES = (0.0, 0.8, 0.0, 0.6, 1.0)
"""Of the target's own text, one after the other."""
LEAST_DOCUMENT = 24
"""Shorter documents begin no text of the target's own."""

Rows = npt.NDArray[np.int32]
Loss = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Scale:
    """The values that differ between the full recipe and `--tiny`."""

    documents: int
    """Number of documents read; 0: all."""
    characters: int
    """Number of characters of each kind that the tokenizer is trained on."""
    vocab_size: int
    target: TargetShape
    row_len: int
    target_training: TrainConfig
    text_len: int
    text_rows: int
    text_turns: int
    prompt_lens: tuple[int, ...]
    drafter_training: TrainConfig
    chain_training: TrainConfig
    num_output: int
    """Number of tokens written after every held-out prompt."""


FULL = Scale(
    documents=0,
    characters=6_000_000,
    vocab_size=8192,
    target=TargetShape(),
    row_len=1024,
    target_training=TrainConfig(100_000, warm_up=100, report_every=100),
    text_len=512,
    text_rows=4096,
    text_turns=10_000,
    prompt_lens=(16, 32, 64, 128, 192),
    drafter_training=TrainConfig(100_000, 32, warm_up=100, report_every=200, weight_decay=0.05),
    chain_training=TrainConfig(100_000, 128, lr=4e-3, report_every=500),
    num_output=128,
)

TINY = Scale(
    documents=2000,
    characters=200_000,
    vocab_size=1024,
    target=TargetShape(1024, 64, 4, 2, 1, 32, 128, 512),
    row_len=128,
    target_training=TrainConfig(30, 8, warm_up=10, report_every=10),
    text_len=96,
    text_rows=8,
    text_turns=2,
    prompt_lens=(16, 32),
    drafter_training=TrainConfig(20, 4, warm_up=5, report_every=10, weight_decay=0.05),
    chain_training=TrainConfig(20, 8, lr=4e-3, report_every=10),
    num_output=24,
)


class DrafterPlan(NamedTuple):
    """A drafter to train."""

    name: str
    shape: DrafterShape
    sampling: BlockSampling


def texts_of(path: Path, seed: int, limit: int = 0) -> list[Record]:
    """Returns the corpus; two of three worked problems have their reasoning in the think span."""
    chance = random.Random(seed)
    records: list[Record] = []
    for record in read_records(path):
        text = record.text
        if record.kind == "math" and chance.random() < 2 / 3:
            text = with_thinking(text)
        records.append(replace(record, text=text))
        if len(records) == limit:
            break
    return records


def plan_drafters(text: str) -> list[DrafterPlan]:
    """Reads `layers:taps:soft,...`; taps are target layers joined by `-`, or `auto`."""
    plans = []
    for part in text.split(",") if text != "none" else ():
        try:
            layers, taps, soft = part.split(":")
            ids = tuple(int(i) for i in taps.split("-")) if "-" in taps else ()
            shape = DrafterShape(num_layers=int(layers), layer_ids=ids)
            sampling = BlockSampling(soft=float(soft))
        except ValueError as error:
            raise InputError(f"{part!r} is not layers:taps:soft", field="drafters") from error
        plans.append(DrafterPlan(f"drafter-{part.replace(':', '_')}", shape, sampling))
    return plans


def choose_prompts(
    documents: Mapping[str, Sequence[TokenArray]], size: int, count: int, chance: random.Random
) -> list[list[int]]:
    """Returns `count` parts of `size` tokens, with alternating kinds; half of them begin a document."""
    kinds = sorted(kind for kind, found in documents.items() if any(len(doc) >= size for doc in found))
    if not kinds:
        raise InputError(f"holds no document of {size} tokens", field="corpus")
    prompts: list[list[int]] = []
    while len(prompts) < count:
        doc = chance.choice(documents[kinds[len(prompts) % len(kinds)]])
        start = 0 if len(doc) <= size or chance.random() < 0.5 else chance.randrange(len(doc) - size)
        if len(doc) - start >= size:
            prompts.append(doc[start : start + size].tolist())
    return prompts


class Recipe:
    """The stages over one output folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out = Path(options.out)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tiny = bool(options.tiny)
        self.scale = TINY if self.tiny else FULL
        self.figures: dict[str, Any] = {}

    def run(self) -> None:
        plans = plan_drafters(self.options.drafters)
        self.out.mkdir(parents=True, exist_ok=True)
        corpus = self.corpus()
        model = self.target(corpus)
        self.judge_target(model)
        rows = self.own_text(model, corpus)
        for plan in plans:
            self.drafter(plan, model, rows)
        if self.options.chain_seconds:
            self.chain(model, rows)
        self.note("options", {name: str(value) for name, value in vars(self.options).items()})
        self.note("shape", asdict(self.target_shape))
        say("done")

    def note(self, name: str, figures: object) -> None:
        """Stores figures at once, because a later stage may fail."""
        self.figures[name] = figures
        (self.out / self.options.figures).write_text(json.dumps(self.figures, indent=1), encoding="utf-8")

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        path = self.out / "target" / "tokenizer.json"
        if path.exists():
            return tokenizers.Tokenizer.from_file(str(path))
        sample: list[str] = []
        size: dict[str, int] = defaultdict(int)
        records = self.records
        for record in random.Random(2).sample(records, len(records)):
            if size[record.kind] < self.scale.characters:
                sample.append(record.text)
                size[record.kind] += len(record.text)
        made = train_tokenizer(sample, self.scale.vocab_size)
        save_tokenizer(made, self.out / "target")
        say("tokenizer", made.get_vocab_size(), "words from", sum(size.values()), "characters")
        return made

    @cached_property
    def records(self) -> list[Record]:
        return texts_of(Path(self.options.corpus), 1, self.scale.documents)

    @cached_property
    def heldout(self) -> dict[str, list[str]]:
        return read_heldout(Path(self.options.heldout))

    @property
    def target_shape(self) -> TargetShape:
        return self.scale.target if self.tiny else replace(self.scale.target, num_layers=self.options.layers)

    def corpus(self) -> TokenCorpus:
        corpus = tokenize(self.records, self.tokenizer, special_id(self.tokenizer, END_OF_TEXT))
        say("corpus", corpus.num_tokens, "tokens")
        return corpus

    def load_target(self) -> Any:
        """Returns the target as it ships, with the rounded weights of the folder."""
        from transformers import Qwen3ForCausalLM

        loaded: Any = Qwen3ForCausalLM.from_pretrained(self.out / "target", dtype=torch.float32)
        return loaded.to(self.device)

    def target(self, corpus: TokenCorpus) -> Any:
        folder = self.out / "target"
        if (folder / "config.json").exists():
            say("target loaded")
            return self.load_target()
        ends = [special_id(self.tokenizer, END_OF_TURN), special_id(self.tokenizer, END_OF_TEXT)]
        model = build_model(self.target_shape, ends, special_id(self.tokenizer, PAD), seed=0).to(self.device)
        rows = corpus.packed(self.scale.row_len + 1, 3, REPEATS)
        config = replace(
            self.scale.target_training, lr=self.options.lr, weight_decay=self.options.weight_decay
        )
        if not self.tiny:
            config = replace(config, batch_rows=self.options.batch_rows)
        say("target", num_parameters(model), "parameters,", rows.shape, "rows")
        timed = self.timed(config, self.options.target_seconds)
        self.learn_next_tokens(model, rows, timed, self.options.compile)
        save_target(model, folder)
        return self.load_target()

    def timed(self, config: TrainConfig, seconds: float) -> TrainConfig:
        """Returns the training config with the optimiser of the options, limited by time or, with --tiny, by
        updates.
        """
        return replace(config, optimizer=self.options.optimizer, max_seconds=0.0 if self.tiny else seconds)

    def train(self, net: torch.nn.Module, loss: Loss, rows: Rows, config: TrainConfig) -> None:
        batches = PackedBatches(rows, config.batch_rows, config.seed, self.device)
        Trainer(net, loss, batches, config, self.device, show).run()

    def learn_next_tokens(self, model: Any, rows: Rows, config: TrainConfig, compiled: bool) -> None:
        if compiled:  # all layers share the code of one layer, which compiles in seconds instead of a minute
            for layer in model.model.layers:
                layer.compile(dynamic=False)
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")

        def loss(tokens: Tensor, _generator: torch.Generator) -> Tensor:
            return next_token_loss(model, tokens)

        self.train(model, loss, rows, config)

    def own_text(self, model: Any, corpus: TokenCorpus) -> Rows:
        """Returns rows that begin with corpus text and continue as the target writes, greedy and sampled."""
        path = self.out / "own_text.npy"
        if path.exists():
            stored: Rows = np.load(path)
            return stored
        chance, scale = random.Random(5), self.scale
        documents = {
            kind: [doc for doc in found if len(doc) > LEAST_DOCUMENT]
            for kind, found in corpus.documents.items()
        }
        rows: list[Rows] = []
        began = time.perf_counter()
        model.eval()
        # There is at least one turn, whatever the time limit.
        while not rows or (
            len(rows) < scale.text_turns and time.perf_counter() - began < self.options.text_seconds
        ):
            temperature = TEMPERATURES[len(rows) % len(TEMPERATURES)]
            size = chance.choice(scale.prompt_lens)
            prompts = choose_prompts(documents, size, scale.text_rows, chance)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                done = write_rows(model, prompts, scale.text_len - size, temperature)
            rows.append(done.tokens.cpu().numpy().astype(np.int32))
        found = np.concatenate(rows)
        np.save(path, found)
        say("own text", found.shape, f"{time.perf_counter() - began:.0f} s")
        return found

    def drafter(self, plan: DrafterPlan, model: Any, rows: Rows) -> None:
        """Trains a block drafter on the target's own text, saves it and evaluates it."""
        shape, sampling = plan.shape, plan.sampling
        if self.tiny:
            shape = replace(shape, num_heads=2, num_kv_heads=1, head_dim=32, intermediate_size=128)
            sampling = replace(sampling, anchors=4)
        config = drafter_config(shape, model.config, special_id(self.tokenizer, MASK), sampling)
        teacher = HFTeacher(model, tuple(config["dflash_config"]["target_layer_ids"]))
        quick: Teacher = GraphedTeacher(teacher) if self.device.type == "cuda" else teacher
        net = build_drafter(config, seed=1).to(self.device)
        if self.options.compile:
            net.compile(dynamic=False)
        training = replace(self.scale.drafter_training, lr=self.options.drafter_lr)

        def loss(tokens: Tensor, generator: torch.Generator) -> Tensor:
            return block_loss(net, quick, tokens, sampling, generator)

        say("drafter", plan.name, num_parameters(net), "parameters, layers", teacher.layer_ids)
        self.train(net, loss, rows, self.timed(training, self.options.drafter_seconds))
        save_drafter(net, config, self.out / plan.name)
        plain = build_drafter(config).to(self.device)
        plain.load_state_dict({name: w.bfloat16().float() for name, w in net.state_dict().items()})
        options = JudgeOptions(self.options.judge_texts, self.scale.num_output)
        found = judge(plain, teacher, self.tokenizer, self.heldout, options)
        self.note(plan.name, found)
        say(plan.name, {key: round(value["tokens_per_step"], 2) for key, value in found.items()})

    def chain(self, model: Any, rows: Rows) -> None:
        """Trains a small autoregressive drafter on the target's own text."""
        shape = TargetShape(model.config.vocab_size, 128, 2, 2, 1, 64, 384, 2048)
        ends = list(model.config.eos_token_id)
        small = build_model(shape, ends, model.config.pad_token_id, seed=3).to(self.device)
        say("chain drafter", num_parameters(small), "parameters")
        timed = self.timed(self.scale.chain_training, self.options.chain_seconds)
        self.learn_next_tokens(small, rows, timed, compiled=False)
        save_target(small, self.out / "chain")

    def judge_target(self, model: Any) -> None:
        found = losses(model, self.tokenizer, self.heldout)
        self.note("heldout_loss", found)
        say("held-out nats per token", {kind: round(own["nats_per_token"], 2) for kind, own in found.items()})


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--heldout", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tiny", action="store_true", help="run all stages at a small size")
    parser.add_argument("--compile", action="store_true", help="compile the target for training")
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    parser.add_argument("--layers", type=int, default=20, help="number of layers of the target")
    parser.add_argument("--batch-rows", type=int, default=64, help="rows per update of the target")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.5, help="weight decay of the target")
    parser.add_argument("--drafter-lr", type=float, default=2e-3)
    parser.add_argument("--target-seconds", type=float, default=420)
    parser.add_argument("--text-seconds", type=float, default=100)
    parser.add_argument("--drafter-seconds", type=float, default=180)
    parser.add_argument("--chain-seconds", type=float, default=60, help="0: no chain drafter")
    parser.add_argument("--judge-texts", type=int, default=40, help="held-out texts of each kind; 0: all")
    parser.add_argument("--drafters", default="4:auto:0.6", help="layers:taps:soft, comma separated; or none")
    parser.add_argument("--figures", default="figures.json", help="name of the file of figures")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_recipe(lambda: Recipe(read_options()).run())
