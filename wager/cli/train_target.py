"""`wager train-target`: trains a small Qwen3 target and its tokenizer, and writes a model folder.

The training is in wager.train.target_training; corpus files and errors are handled as in `wager train`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wager.cli.flags import config_flags, given_values, with_flags
from wager.cli.train import (
    CorpusFiles,
    MoreFiles,
    Resume,
    announce_checkpoint,
    corpus_files,
    one_line_errors,
    out_option,
)
from wager.cli.train_screen import deferred_interrupt, training_screen
from wager.errors import InputError
from wager.extras import require
from wager.resolve import resolve
from wager.train.settings import TargetSettings

_GROUPS = {"vocab_size": "The target", "updates": "Updates", "device": "Machine and reports"}
"""The first field of each group of the help."""


@with_flags(config_flags(TargetSettings, _GROUPS))
def train_target(
    more: MoreFiles = None,
    *,
    corpus: CorpusFiles = None,
    out: Annotated[Path | None, out_option("Write the target to this folder.")] = None,
    resume: Resume = None,
    **values: object,
) -> None:
    """Train a small target model and its tokenizer from scratch.

    Chats (`messages`) use the role markers of the demo pair, which become special tokens of the tokenizer.
    """
    settings: TargetSettings = resolve(
        flags=given_values(values, config_flags(TargetSettings)), root=TargetSettings
    ).config
    files = corpus_files(corpus, more)
    if out is None:
        raise InputError("is missing: name the folder for the target", field="out")
    require("train", "wager train-target")
    with one_line_errors(), training_screen() as listener:
        from wager.train.target_training import TargetTraining

        training = TargetTraining(files, out, settings, listener)
        training.prepare(resume)
        tokenizer = training.tokenizer()
        with deferred_interrupt() as stop, announce_checkpoint(training.out.checkpoint, listener.message):
            trained = training.learn(tokenizer, stop)
    typer.echo(
        f"{trained.num_parameters:,} parameters, loss {trained.loss:.3f}, "
        f"held out {trained.heldout_loss:.3f} nats per token"
    )
    typer.echo(f"wrote {trained.folder}")
    typer.echo(f"next: wager train --model {trained.folder} --corpus ... --out ...")
