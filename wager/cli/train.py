"""`wager train`: trains a DFlash drafter for a target, and writes a folder for `--drafter`.

The settings are checked before anything is loaded. The stages are in wager.train; this file connects them
with a writer of the target's text, with the progress display and with interrupts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wager.cli.flags import config_flags, given_values, names_of, with_flags
from wager.cli.help import complete_models
from wager.cli.train_assessment import Assessment, assess, time_steps
from wager.cli.train_screen import deferred_interrupt, training_screen
from wager.config import with_values
from wager.errors import ConfigError, InputError, ModelError, WagerError, one_line
from wager.extras import require
from wager.pairs import DEMO
from wager.resolve import resolve
from wager.train.settings import DrafterSettings

if TYPE_CHECKING:
    from wager.train.drafter_training import DrafterTraining, Trained

TRAINED = "What is trained"
_GROUPS = {
    "layers": "The drafter",
    "own_text": "Texts",
    "updates": "Updates",
    "device": "Machine and reports",
}
"""The first field of each group of the help."""


def out_option(help: str) -> Any:
    return typer.Option(*names_of("out"), metavar="FOLDER", help=help, rich_help_panel=TRAINED)


MoreFiles = Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="More corpus files.")]
CorpusFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--corpus",
        metavar="FILE",
        rich_help_panel=TRAINED,
        help="Corpus: plain text, or .jsonl with `text` or `messages` in every line; both also as .xz. "
        "May be repeated.",
    ),
]
Resume = Annotated[
    bool | None,
    typer.Option(
        "--resume/--no-resume",
        rich_help_panel=TRAINED,
        help="Continue from the folder's checkpoint, or start again [default: continue if there is one].",
    ),
]


@with_flags(config_flags(DrafterSettings, _GROUPS))
def train(
    more: MoreFiles = None,
    *,
    model: Annotated[
        str,
        typer.Option(
            *names_of("model"),
            metavar="MODEL",
            help="The target: a folder or a published name.",
            rich_help_panel=TRAINED,
            autocompletion=complete_models,
        ),
    ] = DEMO,
    corpus: CorpusFiles = None,
    out: Annotated[Path | None, out_option("Write the drafter to this folder.")] = None,
    no_own_text: Annotated[
        bool,
        typer.Option(
            "--no-own-text",
            rich_help_panel=TRAINED,
            help="Train on the corpus instead of the target's text, the same as --own-text 0.",
        ),
    ] = False,
    resume: Resume = None,
    **values: object,
) -> None:
    """Train a DFlash drafter for a target.

    The target first continues prompts from the corpus, then the drafter learns to predict these texts. After
    Ctrl-C there is a checkpoint, and the same command continues from it.
    """
    settings = read_settings(values, no_own_text)
    files = corpus_files(corpus, more)
    if out is None:
        raise InputError("is missing: name the folder for the drafter", field="out")
    require("train", "wager train")
    with one_line_errors(), training_screen() as listener:
        from wager.engine.assemble import find_folder
        from wager.train.drafter_training import DrafterTraining
        from wager.train.teacher import open_target

        target = open_target(find_folder(model), "" if Path(model).is_dir() else model)
        training = DrafterTraining(target, files, out, settings, listener)
        training.prepare(resume)
        trained = _run(training)
        folder = target.folder
        del training, target  # the target is loaded again, as it runs when it answers
        judged = _assessed(folder, trained, settings.device, listener.message)
    _show(trained, model, judged)


def read_settings(values: Mapping[str, object], no_own_text: bool) -> DrafterSettings:
    given = given_values(values, config_flags(DrafterSettings))
    settings: DrafterSettings = resolve(flags=given, root=DrafterSettings).config
    if not no_own_text:
        return settings
    if given.get("own_text") not in (None, "0"):
        raise ConfigError("own_text", given["own_text"], "not given together with --no-own-text")
    return with_values(settings, own_text=0)


def corpus_files(named: Sequence[Path] | None, more: Sequence[Path] | None) -> list[Path]:
    """Returns every file once. Raises InputError if there is none or if one does not exist."""
    files = list(dict.fromkeys([*(named or ()), *(more or ())]))
    if not files:
        raise InputError("is missing: name a file of texts", field="corpus")
    for path in files:
        if not path.is_file():
            raise InputError(f"no such file: {path}", field="corpus")
    return files


def _run(training: DrafterTraining) -> Trained:
    from wager.cli.train_writer import target_writer

    with target_writer(training) as write:
        rows = training.rows(write)
        heldout = training.heldout(write)
    with (
        deferred_interrupt() as stop,
        announce_checkpoint(training.out.checkpoint, training.listener.message),
    ):
        return training.learn(rows, heldout, stop)


@contextmanager
def announce_checkpoint(checkpoint: Path, say: Callable[[str], None]) -> Iterator[None]:
    """On an interrupt, says where the checkpoint is."""
    try:
        yield
    except KeyboardInterrupt:
        if checkpoint.exists():
            say(f"{checkpoint} was written: the same command continues from it")
        raise


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns failures of disk and device memory into errors of one line."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError("out of memory: reduce --batch-rows, --anchors or --write-rows") from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"cannot be written: {error}", field="out") from error


def _assessed(target: Path, trained: Trained, device: str, say: Callable[[str], None]) -> Assessment:
    """Returns what is said about the use of the drafter; a failure to measure does not fail the training."""
    say("timing the drafter and its target on this machine")
    try:
        return assess(trained.measured, time_steps(target, trained.folder, device, say))
    except WagerError as error:
        return Assessment(f"Its use on this machine could not be estimated: {one_line(error)}.")


def _show(trained: Trained, model: str, judged: Assessment) -> None:
    for measured in trained.measured:
        label = "greedy" if measured.temperature == 0 else f"T = {measured.temperature:g}"
        rates = " ".join(f"{rate:.2f}" for rate in measured.by_depth)
        typer.echo(f"{label:>7}: {measured.tokens_per_step:.2f} tokens per step; acceptance by depth {rates}")
    typer.echo(f"wrote {trained.folder}")
    typer.echo(f"\n{fill(judged.text, 100)}")
    if judged.advice:
        typer.echo(f"to improve it: {judged.advice}")
    typer.echo(f"next: wager generate --model {model} --drafter {trained.folder} --prompt ...")
