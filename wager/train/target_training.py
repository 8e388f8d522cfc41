"""Trains a small target from a corpus to a model folder: tokenizer, rows, updates, export.

These are the stages of `wager train-target`. target.py and tokenizer.py have the model, loop.py the updates;
an interrupted run continues. recipe.py has the recipe of the demo pair, with its kinds and its drafters.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
import torch
from torch import Tensor

from wager.errors import InputError
from wager.text.chat import ChatTemplate
from wager.train.corpus import Corpus, Record, Split, read_corpus, split_heldout, split_long_text, tokenize
from wager.train.drafter_training import TrainingListener, pick_device, suggest_no_resume, train_config
from wager.train.loop import PackedBatches, Trainer, read_checkpoint
from wager.train.outfolder import OutFolder
from wager.train.settings import TargetSettings, lasting
from wager.train.target import TargetShape, build_model, next_token_loss, save_target
from wager.train.teacher import silence_bars
from wager.train.tokenizer import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    END_OF_TURN,
    PAD,
    save_tokenizer,
    special_id,
    train_tokenizer,
)

Rows = npt.NDArray[np.int32]

_CHARACTERS_PER_TOKEN = 16
_HELDOUT_ROWS = 64


@dataclass(frozen=True)
class TrainedTarget:
    """The result of a run; losses are in nats per token."""

    folder: Path
    loss: float
    heldout_loss: float
    num_parameters: int


class TargetTraining:
    """One run of target training."""

    def __init__(
        self, files: Sequence[Path], out: Path, settings: TargetSettings, listener: TrainingListener
    ) -> None:
        self.files, self.settings, self.listener = files, settings, listener
        self.out = OutFolder(out)
        self.device = pick_device(settings.device)

    def prepare(self, resume: bool | None = None) -> None:
        """Reads the corpus and the state of an earlier run. Raises InputError."""
        settings = self.settings
        self.out.refuse_other(drafter=False)
        self.out.prepare(resume=resume)
        self.corpus: Corpus = read_corpus(self.files, ChatTemplate(CHAT_TEMPLATE), settings.documents)
        most = _CHARACTERS_PER_TOKEN * settings.row_len
        cut = (piece for record in self.corpus.records for piece in split_long_text(record, most))
        self.split: Split = split_heldout(cut, settings.heldout_share, settings.seed)
        if self.out.checkpoint.exists():
            with suggest_no_resume():
                state = read_checkpoint(self.out.checkpoint, self.lasting, torch.device("cpu"))
            self.listener.message(
                f"{self.out.checkpoint}: continues from update {state['standing']['update']}"
            )
        self.listener.message(
            f"corpus: {len(self.corpus.records):,} documents, "
            f"{sum(file.num_characters for file in self.corpus.files):,} characters"
        )

    @property
    def lasting(self) -> dict[str, object]:
        """Returns the settings that the weights depend on."""
        files = " ".join(f"{file.name} {file.mark}" for file in self.corpus.files)
        return {"corpus": files, **lasting(self.settings)}

    def tokenizer(self) -> tokenizers.Tokenizer:
        """Returns the tokenizer of the run that is continued, else a new one."""
        path = self.out.path / "tokenizer.json"
        if self.out.checkpoint.exists():
            try:
                return tokenizers.Tokenizer.from_file(str(path))
            except Exception as error:  # the library raises Exception for every fault of the file
                raise InputError(f"{path} cannot be read: {error}", field="tokenizer") from error
        made = train_tokenizer(self._sample(self.split.training), self.settings.vocab_size)
        save_tokenizer(made, self.out.path)
        self.listener.message(f"tokenizer: {made.get_vocab_size():,} words")
        return made

    def _sample(self, records: Sequence[Record]) -> list[str]:
        """Returns texts of every kind, up to the same number of characters each."""
        sample, size = [], defaultdict[str, int](int)
        for record in random.Random(self.settings.seed).sample(records, len(records)):
            if size[record.kind] < self.settings.tokenizer_characters:
                sample.append(record.text)
                size[record.kind] += len(record.text)
        return sample

    def learn(self, tokenizer: tokenizers.Tokenizer, stop: Callable[[], bool] | None = None) -> TrainedTarget:
        """Trains and exports the target. Raises KeyboardInterrupt if `stop` asks for it."""
        settings = self.settings
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        ends = [special_id(tokenizer, END_OF_TURN), special_id(tokenizer, END_OF_TEXT)]
        rows = tokenize(self.split.training, tokenizer, ends[1]).packed(settings.row_len + 1, settings.seed)
        heldout = self._heldout_rows(tokenizer, ends[1])
        shape = _shape(settings, tokenizer.get_vocab_size())
        model = build_model(shape, ends, special_id(tokenizer, PAD), settings.seed).to(self.device)
        num_parameters = sum(weight.numel() for weight in model.parameters())
        self.listener.message(
            f"target: {num_parameters:,} parameters; {len(rows):,} rows of {settings.row_len} tokens; "
            f"{self.device}"
        )

        def loss(tokens: Tensor, _generator: torch.Generator) -> Tensor:
            return next_token_loss(model, tokens)

        config = train_config(settings)
        last = Trainer(
            model,
            loss,
            PackedBatches(rows, config.batch_rows, config.seed, self.device),
            config,
            self.device,
            self.listener.updated,
            lambda: {"nats per token": heldout_loss(model, heldout, self.device)},
            self.out.checkpoint,
            self.lasting,
            stop,
        ).run()
        silence_bars()
        save_target(model, self.out.path)
        return TrainedTarget(self.out.path, last, heldout_loss(model, heldout, self.device), num_parameters)

    def _heldout_rows(self, tokenizer: tokenizers.Tokenizer, end_id: int) -> Rows:
        corpus = tokenize(self.split.heldout, tokenizer, end_id)
        return corpus.packed(min(self.settings.row_len + 1, corpus.num_tokens), 0)[:_HELDOUT_ROWS]


def _shape(settings: TargetSettings, vocab_size: int) -> TargetShape:
    return TargetShape(
        vocab_size,
        settings.hidden_size,
        settings.layers,
        settings.heads,
        settings.kv_heads,
        settings.head_dim,
        settings.intermediate_size,
        settings.max_position,
    )


@torch.no_grad()
def heldout_loss(model: Any, rows: Rows, device: torch.device) -> float:
    """Returns nats per token, computed row by row; NaN without a predicted token."""
    if rows.shape[1] < 2:
        return math.nan
    was_training = model.training
    model.eval()
    losses = [
        float(next_token_loss(model, torch.from_numpy(row[None].astype(np.int64)).to(device))) for row in rows
    ]
    model.train(was_training)
    return sum(losses) / len(losses)
