"""`wager convert`: a drafter's folder to a GGUF file, and a GGUF file to a folder.

wager.nn.gguf_convert converts the weights and wager.text.gguf_words the tokenizer; this file chooses the
direction and prints what was written.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from wager.errors import InputError
from wager.gguf.header import is_gguf

_FORMS = "bf16, f16 or q8_0"


def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A drafter's folder, or a GGUF file.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The new GGUF file, or the new folder of a GGUF file.")
    ],
    form: Annotated[
        str | None, typer.Option(metavar="TYPE", help=f"Type of the matrices of a GGUF file: {_FORMS}.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Add the vocabulary of this target, which llama.cpp needs."),
    ] = None,
) -> None:
    """Convert a drafter's folder to a GGUF file, or a GGUF file to a folder.

    A GGUF file gets the names of llama.cpp, and its matrices bf16 unless --form says otherwise. Every value
    comes from the config.json and is checked against the tensors; nothing is guessed. A folder gets the exact
    weights of the GGUF file; if that is a target, its tokenizer and chat template, too.
    """
    from wager.engine.assemble import find_folder

    place = find_folder(source)
    if is_gguf(place):
        _refuse_options(form=form, target=target)
        _to_folder(place, _new_folder(out))
    else:
        _to_gguf(place, _new_file(out), form or "bf16", None if target is None else _vocabulary(target))


def _to_gguf(folder: Path, out: Path, form: str, vocabulary: dict[str, Any] | None) -> None:
    from wager.nn.gguf_convert import drafter_to_gguf

    done = drafter_to_gguf(folder, out, form, vocabulary)
    typer.echo(f"Wrote {done.path}: {done.num_tensors} tensors, {done.path.stat().st_size / 1e6:.1f} MB")
    _tell_unused(done.unused)
    if vocabulary is None:
        print("wager: the file has no vocabulary; llama.cpp needs one: --target MODEL", file=sys.stderr)


def _to_folder(path: Path, out: Path) -> None:
    from wager.nn.gguf_convert import gguf_to_folder
    from wager.text.gguf_words import save_words

    with _whole_folder(out) as part:
        done = gguf_to_folder(path, part)
        has_words = save_words(path, part)
    typer.echo(f"Wrote {out}: {done.num_tensors} tensors{', and the tokenizer' if has_words else ''}")
    _tell_unused(done.unused)


@contextmanager
def _whole_folder(out: Path) -> Iterator[Path]:
    """Yields a folder that gets its name only if everything was written."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
            part = Path(folder) / out.name
            part.mkdir()
            yield part
            part.rename(out)
    except InputError as error:
        raise InputError(error.message.replace(str(part), str(out)), error.field) from error
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}", "out") from error


def _tell_unused(names: list[str]) -> None:
    if names:
        print(f"wager: left out, because the model does not use them: {', '.join(names)}", file=sys.stderr)


def _refuse_options(**options: str | None) -> None:
    for name, value in options.items():
        if value is not None:
            raise InputError("applies to GGUF files that are written, not to folders", name)


def _vocabulary(target: str) -> dict[str, Any]:
    from wager.engine.assemble import find_folder
    from wager.text.gguf_words import vocabulary_keys

    return vocabulary_keys(find_folder(target))


def _new_file(out: Path) -> Path:
    if out.exists():
        raise InputError(f"{out} exists already", "out")
    if out.suffix != ".gguf":
        raise InputError(f"{out} must end in .gguf", "out")
    return out


def _new_folder(out: Path) -> Path:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists already and is not an empty folder", "out")
    return out
