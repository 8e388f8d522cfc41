"""`wager train-target`: a small Qwen3 target and its tokenizer from a corpus, as an ordinary model folder.

A thin face over wager.train.target_course; flags, corpus files and endings are those of `wager train`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wager.cli.flags import config_flags, flagged, taken
from wager.cli.train import CorpusFiles, MoreFiles, Resume, corpus_files, plain_failures, said_where
from wager.cli.train_screen import held_interrupts, training_screen
from wager.errors import InputError
from wager.resolve import resolve
from wager.train.settings import TargetSettings


@flagged(config_flags(TargetSettings))
def train_target(
    more: MoreFiles = None,
    *,
    corpus: CorpusFiles = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the target goes.")] = None,
    resume: Resume = None,
    **values: object,
) -> None:
    """Train a small target and its tokenizer from scratch.

    Chats (`messages`) are written with the demo pair's marks, which are special tokens of the tokenizer.
    """
    settings: TargetSettings = resolve(
        flags=taken(values, config_flags(TargetSettings)), root=TargetSettings
    ).config
    files = corpus_files(corpus, more)
    if out is None:
        raise InputError("is missing: name the folder the target goes to", field="out")
    with plain_failures(), training_screen() as watcher:
        from wager.train.target_course import TargetCourse

        course = TargetCourse(files, out, settings, watcher)
        course.prepare(resume)
        tokenizer = course.tokenizer()
        with held_interrupts() as stop, said_where(course.out.checkpoint, watcher.say):
            trained = course.learn(tokenizer, stop)
    typer.echo(
        f"{trained.num_parameters:,} parameters, loss {trained.loss:.3f}, "
        f"held out {trained.heldout_loss:.3f} nats per token"
    )
    typer.echo(f"wrote {trained.folder}")
    typer.echo(f"next: wager train --model {trained.folder} --corpus ... --out ...")
