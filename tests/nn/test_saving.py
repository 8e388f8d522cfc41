"""Files of tensors: their modes under the umask, and errors of one line."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from wager.errors import InputError
from wager.gguf.writer import atomic_file
from wager.nn import saving
from wager.nn.saving import save_state, save_tensors, share, writing_errors

TENSORS = {"a": torch.arange(6.0)}


@pytest.fixture(params=[0o022, 0o027])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_have_the_mode_of_the_umask(umask: int, tmp_path: Path) -> None:
    save_tensors(TENSORS, tmp_path / "new" / "a.safetensors")
    save_state(TENSORS, tmp_path / "b.pt")
    with atomic_file(tmp_path / "c.gguf") as file:
        file.write(b"c")
    save_file(TENSORS, tmp_path / "d.safetensors")
    (tmp_path / "d.safetensors").chmod(0o600)
    share(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4 and {mode(path) for path in files} == {0o666 & ~umask}
    assert mode(tmp_path / "new") == 0o777 & ~umask
    assert torch.equal(load_file(tmp_path / "new" / "a.safetensors")["a"], TENSORS["a"])
    assert torch.equal(torch.load(tmp_path / "b.pt")["a"], TENSORS["a"])


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_the_old_file(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(TENSORS, path)
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(saving, "save_file", fail)
    with pytest.raises(InputError, match=r"(?i)a\.safetensors cannot be written: no space left"):
        save_tensors({"a": torch.zeros(1)}, path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]


def test_torch_save_on_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534")

    monkeypatch.setattr(torch, "save", fail)
    monkeypatch.setattr(saving, "_FULL_BYTES", 1 << 62)
    with pytest.raises(InputError, match=r"a\.pt cannot be written: no space left on the disk"):
        save_state(TENSORS, tmp_path / "a.pt")


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        save_tensors(TENSORS, tmp_path / "file" / "a.safetensors")
    with pytest.raises(ValueError), writing_errors(tmp_path):
        raise ValueError("a fault of ours is not hidden")
