"""Headers of GGUF files: everything the gguf package writes, and a clear error for every damage."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.gguf.files import finish
from wager.errors import ModelError, WagerError, WeightsError
from wager.gguf.header import is_gguf, read_header
from wager.gguf.types import BY_NUMBER
from wager.gguf.writer import NewTensor, write_gguf


def small_file(path: Path, **keys: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("some.count", 7)
    writer.add_float32("some.number", 0.5)
    writer.add_bool("some.flag", True)
    writer.add_string("some.text", "naïve ▁")
    writer.add_array("some.texts", ["a", "", "ß"])
    writer.add_array("some.counts", [1, -2, 3])
    writer.add_uint64("some.long", 1 << 40)
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("second", np.arange(5, dtype=np.float16))
    finish(writer)
    return path


def test_everything_the_package_writes_is_read(tmp_path: Path) -> None:
    header = read_header(small_file(tmp_path / "a.gguf"))
    assert header.version == 3 and header.architecture == "llama"
    found = {name: value for name, value in header.metadata.items() if name.startswith("some.")}
    assert found == {
        "some.count": 7,
        "some.number": 0.5,
        "some.flag": True,
        "some.text": "naïve ▁",
        "some.texts": ["a", "", "ß"],
        "some.counts": [1, -2, 3],
        "some.long": 1 << 40,
    }
    first, second = header.tensors["first"], header.tensors["second"]
    assert (first.shape, first.type.name, first.num_bytes) == ((2, 3), "F32", 24)
    assert (second.shape, second.type.name, second.num_bytes) == ((5,), "F16", 10)
    reference = {one.name: one for one in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    assert {name: one.start for name, one in header.tensors.items()} == {
        name: int(one.data_offset) for name, one in reference.items()
    }


def test_the_table_of_types_is_that_of_the_package() -> None:
    for number, kind in BY_NUMBER.items():
        known = gguf.GGMLQuantizationType(number)
        assert known.name == kind.name
        assert gguf.GGML_QUANT_SIZES[known] == (kind.block_len, kind.block_bytes)


def test_what_is_written_is_read_by_the_package(tmp_path: Path) -> None:
    keys = {"general.architecture": "dflash", "a.n": 3, "a.x": 0.25, "a.f": False, "a.t": "é", "a.l": [1, 2]}
    lists = {"a.b": [True, False], "a.s": ["x", "yz"]}
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = [NewTensor(f"t{i}", (3, 4), BY_NUMBER[0], values.tobytes) for i in range(2)]
    write_gguf(tmp_path / "out.gguf", keys | lists, tensors)
    found = gguf.GGUFReader(tmp_path / "out.gguf")
    read = {name: field.contents() for name, field in found.fields.items() if not name.startswith("GGUF.")}
    assert read == keys | lists
    assert all(np.array_equal(one.data, values) for one in found.tensors) and len(found.tensors) == 2
    assert read_header(tmp_path / "out.gguf").metadata == keys | lists


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def fails() -> bytes:
        raise OSError(28, "No space left on device")

    with pytest.raises(WagerError, match=r"out\.gguf cannot be written: No space left on device"):
        write_gguf(tmp_path / "out.gguf", {}, [NewTensor("t", (1,), BY_NUMBER[0], fails)])
    assert list(tmp_path.iterdir()) == []


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def entry(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def file_of(*entries: bytes, keys: bytes = b"", num_keys: int = 0, data: bytes = bytes(256)) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(entries), num_keys) + keys + b"".join(entries)
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + data


U32 = struct.pack("<II", 4, 5)
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a GGUF file: it has only 0 bytes"),
    "another format": (b"PK\3\4" + bytes(60), "is not a GGUF file"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "cut in a key": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 99),
        "ends inside the metadata",
    ),
    "cut in a value": (
        file_of(keys=string("a.b") + struct.pack("<I", 10), num_keys=1, data=b"")[:40],
        "key a.b",
    ),
    "an unknown kind": (file_of(keys=string("a") + struct.pack("<I", 77), num_keys=1), "unknown type 77"),
    "a key twice": (file_of(keys=(string("a") + U32) * 2, num_keys=2), "key a twice"),
    "not UTF-8": (file_of(keys=struct.pack("<Q", 2) + b"\xff\xfe" + U32, num_keys=1), "not UTF-8"),
    "a long list": (
        file_of(keys=string("a") + struct.pack("<IIQ", 9, 8, 1 << 60), num_keys=1),
        "ends inside the metadata key a",
    ),
    "alignment": (
        file_of(keys=string("general.alignment") + struct.pack("<II", 4, 33), num_keys=1),
        "alignment",
    ),
    "no dimensions": (file_of(entry("t", ())), "tensor t: has 0 dimensions"),
    "an unknown type": (file_of(entry("t", (32,), 99)), "tensor t: has the unknown type number 99"),
    "a broken row": (file_of(entry("t", (33,), 8)), "Q8_0 needs multiples of 32"),
    "a tensor twice": (file_of(entry("t", (8,)), entry("t", (8,), 0, 32)), "tensor t: is in .* twice"),
    "an odd place": (file_of(entry("t", (8,), 0, 4)), "tensor t: begins at 4"),
    "a cut tensor": (file_of(entry("t", (64,)), data=bytes(255)), "the file is truncated"),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    stored, words = BROKEN[name]
    path = tmp_path / "broken.gguf"
    path.write_bytes(stored)
    with pytest.raises(ModelError, match=words):
        read_header(path)


def test_a_cut_at_any_place_is_an_error_and_never_a_crash(tmp_path: Path) -> None:
    whole = small_file(tmp_path / "a.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(0, len(whole) - 32, 7):
        path.write_bytes(whole[:length])
        with pytest.raises((ModelError, WeightsError)):
            read_header(path)


def test_files_are_recognised_by_name_or_content(tmp_path: Path) -> None:
    small_file(tmp_path / "a.gguf")
    (tmp_path / "a.gguf").rename(tmp_path / "model.bin")
    (tmp_path / "text.txt").write_text("GG", encoding="utf-8")
    assert is_gguf(tmp_path / "model.bin")
    assert not is_gguf(tmp_path) and not is_gguf(tmp_path / "text.txt") and not is_gguf(tmp_path / "none")
    with pytest.raises(ModelError, match="cannot be read"):
        read_header(tmp_path / "none")
