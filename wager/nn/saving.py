"""Writes files of tensors: whole or not at all, readable as the umask says, with one-line errors.

safetensors gives its files the mode 0600 and reports a full disk with an error of its own; torch.save reports
it as a RuntimeError about positions. It knows no model; convert, grow and the training use it.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from wager.errors import InputError, one_line

_FULL_BYTES = 1 << 20
"""A disk with less free space than this is called full."""


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes a safetensors file. Raises InputError if that fails."""
    _place(path, lambda part: save_file(dict(tensors), part, metadata={"format": "pt"}))


def save_state(state: Mapping[str, object], path: Path) -> None:
    """Writes a checkpoint with torch.save. Raises InputError if that fails."""
    _place(path, lambda part: torch.save(dict(state), part))


@contextmanager
def writing_errors(path: Path) -> Iterator[None]:
    """Turns every error of a writer into an InputError of one line that names the path."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}", "out") from error
    except (SafetensorError, RuntimeError) as error:
        raise InputError(f"{path} cannot be written: {_reason(path, error)}", "out") from error


def share(folder: Path) -> None:
    """Gives the files of a folder the mode that new files have, for writers that use another."""
    mode = _mode_of_new_files(folder)
    for path in folder.iterdir():
        if path.is_file():
            path.chmod(mode)


def _place(path: Path, write: Callable[[Path], object]) -> None:
    """Writes beside the place and renames, so that nobody reads half a file."""
    with writing_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = _mode_of_new_files(path.parent)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            part = Path(folder) / path.name
            write(part)
            part.chmod(mode)
            part.replace(path)


def _mode_of_new_files(folder: Path) -> int:
    """Returns the mode that the umask gives to new files. It cannot be asked for without changing it."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".mode.") as scratch:
        probe = Path(scratch) / "probe"
        probe.touch()
        return os.stat(probe).st_mode & 0o777


def _reason(path: Path, error: Exception) -> str:
    free = shutil.disk_usage(path.parent).free
    if "os error 28" in str(error) or free < _FULL_BYTES:
        return f"no space left on the disk ({free / 1e6:.1f} MB are free)"
    return one_line(error)
