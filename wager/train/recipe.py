"""The recipe of the demo pair, stage by stage: tokenizer, target, its own text, drafters, and what they reached.

    python -m wager.train.recipe --corpus corpus.jsonl.xz --heldout heldout.jsonl.xz --out build/demo

Each stage has a time budget and leaves its results in the output folder, so a later stage can be run again.
Meant for one GPU and some minutes; `--tiny` runs the whole of it in small on a CPU.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch

from wager.train.acceptance import Rows, acceptance_by_depth, offered, repeated_share, tokens_per_step
from wager.train.corpus import Record, TokenCorpus, read_records, tokenize
from wager.train.drafter import (
    DrafterShape,
    HFTeacher,
    Lesson,
    block_loss,
    build_drafter,
    drafter_config,
    save_drafter,
)
from wager.train.generate import write_rows
from wager.train.loop import Progress, TrainConfig, Trainer, progress_lines
from wager.train.target import TargetShape, build_model, next_token_loss, save_target
from wager.train.tokenizer import END_OF_TEXT, END_OF_TURN, MASK, PAD, save_tokenizer, train_tokenizer, with_thinking

REPEATS = {"chat": 5.0, "dialog": 2.0, "math": 2.0, "code": 1.0, "prose": 1.0}


def say(*words: object) -> None:
    print(time.strftime("%H:%M:%S"), *words, flush=True)


def show(progress: Progress) -> None:
    for line in progress_lines(progress):
        say(line)


def texts_of(path: Path, seed: int, limit: int = 0) -> list[Record]:
    """The corpus, two of three worked problems with their reasoning in the think span."""
    chance = random.Random(seed)
    records = []
    for record in read_records(path):
        text = record.text
        if record.kind == "math" and chance.random() < 2 / 3:
            text = with_thinking(text)
        records.append(replace(record, text=text))
        if limit and len(records) >= limit:
            break
    return records


class Recipe:
    """The stages over one output folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out = Path(options.out)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tiny = bool(options.tiny)
        self.figures: dict[str, Any] = {}

    # -- tokenizer and corpus

    def tokenizer(self) -> tokenizers.Tokenizer:
        path = self.out / "target" / "tokenizer.json"
        if path.exists():
            return tokenizers.Tokenizer.from_file(str(path))
        records = texts_of(Path(self.options.corpus), 1, 2000 if self.tiny else 0)
        chance = random.Random(2)
        sample: list[str] = []
        size: dict[str, int] = defaultdict(int)
        for record in chance.sample(records, len(records)):
            if size[record.kind] < (200_000 if self.tiny else 6_000_000):
                sample.append(record.text)
                size[record.kind] += len(record.text)
        made = train_tokenizer(sample, 1024 if self.tiny else 8192)
        save_tokenizer(made, self.out / "target")
        say("tokenizer", made.get_vocab_size(), "words from", sum(size.values()), "characters")
        return made

    def corpus(self, tokenizer: tokenizers.Tokenizer) -> TokenCorpus:
        records = texts_of(Path(self.options.corpus), 1, 2000 if self.tiny else 0)
        corpus = tokenize(records, tokenizer, tokenizer.token_to_id(END_OF_TEXT))
        say("corpus", corpus.num_tokens, "tokens")
        return corpus

    # -- target

    def target(self, tokenizer: tokenizers.Tokenizer, corpus: TokenCorpus) -> Any:
        from transformers import Qwen3ForCausalLM

        folder = self.out / "target"
        if (folder / "config.json").exists():
            model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).to(self.device)
            say("target loaded")
            return model
        shape = TargetShape(num_layers=self.options.layers)
        if self.tiny:
            shape = TargetShape(1024, 64, 4, 2, 1, 32, 128, 512)
        ends = [tokenizer.token_to_id(END_OF_TURN), tokenizer.token_to_id(END_OF_TEXT)]
        model = build_model(shape, ends, tokenizer.token_to_id(PAD), seed=0).to(self.device)
        rows = corpus.packed(129 if self.tiny else 1025, 3, REPEATS)
        config = TrainConfig(
            updates=30 if self.tiny else 100_000,
            batch_rows=8 if self.tiny else self.options.batch_rows,
            lr=self.options.lr,
            warm_up=10 if self.tiny else 100,
            report_every=10 if self.tiny else 100,
            optimizer=self.options.optimizer,
            max_seconds=0 if self.tiny else self.options.target_seconds,
        )
        step = model
        if self.options.compile:
            step = torch.compile(model)
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        say("target", sum(p.numel() for p in model.parameters()), "parameters,", rows.shape, "rows")
        Trainer(model, lambda tokens, _g: next_token_loss(step, tokens), rows, config, self.device, show).run()
        save_target(model, folder)
        return model

    # -- the target's own text

    def own_text(self, model: Any, corpus: TokenCorpus) -> np.ndarray:
        """Rows that begin with corpus text and go on as the target writes, greedy and sampled."""
        path = self.out / "own_text.npy"
        if path.exists():
            return np.load(path)
        chance = random.Random(5)
        length = 96 if self.tiny else 512
        batch = 8 if self.tiny else 2048
        rows: list[np.ndarray] = []
        began, turn = time.perf_counter(), 0
        docs = {kind: [d for d in found if len(d) > 24] for kind, found in corpus.documents.items()}
        kinds = sorted(kind for kind, found in docs.items() if found)
        model.eval()
        while time.perf_counter() - began < self.options.text_seconds and turn < (2 if self.tiny else 10_000):
            temperature = (0.0, 0.8, 0.0, 0.6, 1.0)[turn % 5]
            size = chance.choice((16, 32, 64, 128, 192)[: 2 if self.tiny else 5])
            prompts = []
            while len(prompts) < batch:
                doc = chance.choice(docs[kinds[len(prompts) % len(kinds)]])
                start = 0 if len(doc) <= size or chance.random() < 0.5 else chance.randrange(len(doc) - size)
                if len(doc) - start >= size:
                    prompts.append(doc[start : start + size].tolist())
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                done = write_rows(model, prompts, length - size, temperature)
            rows.append(done.tokens.cpu().numpy().astype(np.int32))
            turn += 1
        found = np.concatenate(rows)
        np.save(path, found)
        say("own text", found.shape, f"{time.perf_counter() - began:.0f} s")
        return found

    # -- drafters

    def drafter(self, name: str, model: Any, rows: np.ndarray, shape: DrafterShape, lesson: Lesson) -> None:
        folder = self.out / name
        mask_id = self.tokenizer().token_to_id(MASK)
        if self.tiny:
            shape = replace(shape, num_heads=2, num_kv_heads=1, head_dim=32, intermediate_size=128)
            lesson = replace(lesson, anchors=4)
        config = drafter_config(shape, model.config, mask_id, lesson)
        teacher = HFTeacher(model, tuple(config["dflash_config"]["target_layer_ids"]))
        net = build_drafter(config, seed=1).to(self.device)
        training = TrainConfig(
            updates=20 if self.tiny else 100_000,
            batch_rows=4 if self.tiny else 32,
            lr=self.options.drafter_lr,
            warm_up=5 if self.tiny else 100,
            report_every=10 if self.tiny else 200,
            optimizer=self.options.optimizer,
            weight_decay=0.05,
            max_seconds=0 if self.tiny else self.options.drafter_seconds,
        )
        say("drafter", name, sum(p.numel() for p in net.parameters()), "parameters, layers", teacher.layer_ids)
        loss = lambda tokens, g: block_loss(net, teacher, tokens, lesson, g)  # noqa: E731
        Trainer(net, loss, rows, training, self.device, show).run()
        save_drafter(net, config, folder)
        self.judge(name, model, net, teacher)

    def chain(self, model: Any, rows: np.ndarray) -> None:
        """A tiny autoregressive drafter, trained on the target's own text."""
        shape = TargetShape(model.config.vocab_size, 128, 2, 2, 1, 64, 384, 2048)
        ends = list(model.config.eos_token_id)
        small = build_model(shape, ends, model.config.pad_token_id, seed=3).to(self.device)
        training = TrainConfig(
            updates=20 if self.tiny else 100_000,
            batch_rows=8 if self.tiny else 128,
            lr=4e-3,
            report_every=10 if self.tiny else 500,
            optimizer=self.options.optimizer,
            max_seconds=0 if self.tiny else self.options.chain_seconds,
        )
        say("chain drafter", sum(p.numel() for p in small.parameters()), "parameters")
        Trainer(small, lambda tokens, _g: next_token_loss(small, tokens), rows, training, self.device, show).run()
        save_target(small, self.out / "chain")

    # -- what they reached

    def heldout(self) -> dict[str, list[str]]:
        by_kind: dict[str, list[str]] = defaultdict(list)
        for line in read_records(Path(self.options.heldout)):
            by_kind[line.kind].append(line.text)
        return dict(by_kind)

    def judge(self, name: str, model: Any, net: Any, teacher: HFTeacher) -> None:
        """Tokens per step on held-out beginnings: 400 characters of prompt, 128 new tokens."""
        tokenizer = self.tokenizer()
        found: dict[str, Any] = {}
        net.eval()
        for kind, texts in self.heldout().items():
            prompts = [tokenizer.encode(text[:400]).ids for text in texts[: self.options.judge_texts]]
            prompts = [p for p in prompts if len(p) >= 4]
            for temperature in (0.0, 0.8):
                seeds = list(range(1000, 1000 + len(prompts)))
                num_output = 24 if self.tiny else 128
                with torch.autocast(self.device.type, torch.bfloat16, enabled=False):
                    done = write_rows(model, prompts, num_output, temperature, seeds)
                    rows = Rows(done.tokens, done.num_prompt, num_output, temperature, seeds)
                    seen = offered(net, teacher, rows)
                outputs = np.stack(
                    [r[n : n + num_output] for r, n in zip(done.tokens.cpu().numpy(), done.num_prompt.tolist(), strict=True)]
                )
                found[f"{kind}_t{temperature:g}"] = {
                    "tokens_per_step": tokens_per_step(seen.ranks),
                    "by_depth": [round(rate, 3) for rate in acceptance_by_depth(seen.ranks)],
                    "repeated_8grams": repeated_share(outputs),
                }
        self.figures[name] = found
        say(name, {key: round(value["tokens_per_step"], 2) for key, value in found.items()})
        (self.out / "figures.json").write_text(json.dumps(self.figures, indent=1))

    @torch.no_grad()
    def heldout_loss(self, model: Any) -> None:
        tokenizer = self.tokenizer()
        result = {}
        model.eval()
        for kind, texts in self.heldout().items():
            nats = tokens = characters = 0.0
            for text in texts[:100]:
                ids = tokenizer.encode(text).ids[:1024]
                if len(ids) < 2:
                    continue
                loss = float(next_token_loss(model, torch.tensor([ids], device=self.device)))
                nats += loss * (len(ids) - 1)
                tokens += len(ids) - 1
                characters += len(tokenizer.decode(ids, skip_special_tokens=False))
            result[kind] = {"nats_per_token": nats / tokens, "nats_per_character": nats / characters}
        self.figures["heldout_loss"] = result
        say("held-out", {k: (round(v["nats_per_token"], 2), round(v["nats_per_character"], 3)) for k, v in result.items()})
        (self.out / "figures.json").write_text(json.dumps(self.figures, indent=1))

    def run(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        tokenizer = self.tokenizer()
        corpus = self.corpus(tokenizer)
        model = self.target(tokenizer, corpus)
        self.heldout_loss(model)
        rows = self.own_text(model, corpus)
        for text in self.options.drafters.split(","):
            layers, taps, soft = text.split(":")
            ids = tuple(int(i) for i in taps.split("-")) if "-" in taps else ()
            shape = DrafterShape(num_layers=int(layers), layer_ids=ids)
            self.drafter(f"drafter-{text.replace(':', '_')}", model, rows, shape, Lesson(soft=float(soft)))
        if self.options.chain_seconds:
            self.chain(model, rows)
        self.figures["options"] = {k: str(v) for k, v in vars(self.options).items()}
        self.figures["shape"] = asdict(TargetShape())
        (self.out / "figures.json").write_text(json.dumps(self.figures, indent=1))
        say("done")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--heldout", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--optimizer", default="muon")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--batch-rows", type=int, default=64)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--drafter-lr", type=float, default=2e-3)
    parser.add_argument("--target-seconds", type=float, default=420)
    parser.add_argument("--text-seconds", type=float, default=100)
    parser.add_argument("--drafter-seconds", type=float, default=180)
    parser.add_argument("--chain-seconds", type=float, default=60)
    parser.add_argument("--judge-texts", type=int, default=40)
    parser.add_argument("--drafters", default="2:auto:0.5", help="layers:taps:soft, comma separated")
    Recipe(parser.parse_args()).run()


if __name__ == "__main__":
    main()
