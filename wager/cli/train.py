"""`wager train`: a DFlash drafter for a target, from a corpus to a folder that `--drafter` takes.

Flags become checked settings before anything is loaded. The stages are wager.train.course's; here they get an
engine that writes the target's own text, a screen, and an ending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wager.cli.flags import config_flags, flagged, taken
from wager.cli.train_screen import held_interrupts, training_screen
from wager.config import with_values
from wager.errors import ConfigError, InputError, ModelError
from wager.pairs import DEMO
from wager.resolve import resolve
from wager.train.settings import DrafterSettings

if TYPE_CHECKING:
    from wager.train.course import Course, Trained

MoreFiles = Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="More corpus files.")]
CorpusFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--corpus",
        metavar="FILE",
        help="Plain text, or .jsonl with `text` or `messages` in every line; also .xz. May be repeated.",
    ),
]
Resume = Annotated[
    bool | None,
    typer.Option(
        "--resume/--no-resume",
        help="Go on from the folder's checkpoint, or begin anew [default: go on where there is one].",
    ),
]


@flagged(config_flags(DrafterSettings))
def train(
    more: MoreFiles = None,
    *,
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="The target: a folder or a published name.")
    ] = DEMO,
    corpus: CorpusFiles = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the drafter goes.")] = None,
    no_own_text: Annotated[
        bool, typer.Option("--no-own-text", help="Learn from the corpus itself: the same as --own-text 0.")
    ] = False,
    resume: Resume = None,
    **values: object,
) -> None:
    """Train a DFlash drafter for a target.

    The target first writes texts of its own behind beginnings from the corpus, then the drafter learns to
    foretell them. Interrupted by Ctrl-C it leaves a checkpoint, and the same command goes on from there.
    """
    settings = read_settings(values, no_own_text)
    files = corpus_files(corpus, more)
    if out is None:
        raise InputError("is missing: name the folder the drafter goes to", field="out")
    with plain_failures(), training_screen() as watcher:
        from wager.engine.assemble import find_folder
        from wager.train.course import Course
        from wager.train.teacher import open_target

        target = open_target(find_folder(model), "" if Path(model).is_dir() else model)
        course = Course(target, files, out, settings, watcher)
        course.prepare(resume)
        trained = _run(course)
    _show(trained, model)


def read_settings(values: Mapping[str, object], no_own_text: bool) -> DrafterSettings:
    given = taken(values, config_flags(DrafterSettings))
    settings: DrafterSettings = resolve(flags=given, root=DrafterSettings).config
    if not no_own_text:
        return settings
    if given.get("own_text") not in (None, "0"):
        raise ConfigError("own_text", given["own_text"], "not given together with --no-own-text")
    return with_values(settings, own_text=0)


def corpus_files(named: Sequence[Path] | None, more: Sequence[Path] | None) -> list[Path]:
    """Every file once. Raises InputError where there is none or one is not there."""
    files = list(dict.fromkeys([*(named or ()), *(more or ())]))
    if not files:
        raise InputError("is missing: name a file of texts", field="corpus")
    for path in files:
        if not path.is_file():
            raise InputError(f"no such file: {path}", field="corpus")
    return files


def _run(course: Course) -> Trained:
    from wager.cli.train_writer import EngineWriter

    settings, spec = course.settings, course.target.spec
    context = min(settings.row_len + settings.heldout_tokens, spec.max_position)
    with EngineWriter(course.target.folder, settings, course.device, context) as write:
        rows = course.rows(write)
        heldout = course.heldout(write)
    with held_interrupts() as stop, said_where(course.out.checkpoint, course.watcher.say):
        return course.learn(rows, heldout, stop)


@contextmanager
def said_where(checkpoint: Path, say: Callable[[str], None]) -> Iterator[None]:
    """On an interrupt, say where the checkpoint is."""
    try:
        yield
    except KeyboardInterrupt:
        if checkpoint.exists():
            say(f"{checkpoint}: the same command goes on from there")
        raise


@contextmanager
def plain_failures() -> Iterator[None]:
    """Failures of disk and device memory as errors of one line."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError("out of memory: try fewer --batch-rows, --anchors or --write-rows") from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"cannot be written: {error}", field="out") from error


def _show(trained: Trained, model: str) -> None:
    for own in trained.measured:
        label = "greedy" if own.temperature == 0 else f"T = {own.temperature:g}"
        rates = " ".join(f"{rate:.2f}" for rate in own.by_depth)
        typer.echo(f"{label:>7}: {own.tokens_per_step:.2f} tokens per step; acceptance by depth {rates}")
    typer.echo(f"wrote {trained.folder}")
    typer.echo(f"next: wager generate --model {model} --drafter {trained.folder} --prompt ...")
