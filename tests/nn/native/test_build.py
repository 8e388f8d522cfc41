"""Building the library: in the background, once, and never so that a failure stops anybody."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.nn.native.nets import CASES, NATIVE, Text, decoder_parts, ids, make_decoder, poisoned, scattered
from wager.errors import ConfigError
from wager.nn.models.decoder import Decoder
from wager.nn.native import build
from wager.nn.native import library as library_module
from wager.nn.native.library import Library, LibraryState
from wager.nn.native.loader import PassOptions


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    build.compiler.cache_clear()
    yield
    build.compiler.cache_clear()


def waiting_decoder() -> Decoder:
    return Decoder(*decoder_parts(CASES["odd"]), options=NATIVE)


def run(decoder: Decoder) -> torch.Tensor:
    return Text(decoder, poisoned(decoder), scattered(0)).run(ids(9))[0]


def test_without_a_compiler_torch_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    decoder = waiting_decoder()
    assert decoder.native_loader.reason == "no C++ compiler was found" == build.build().reason
    assert torch.isfinite(run(decoder)).all() and not decoder.try_native()


def test_a_failed_build_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken-c++"
    broken.write_text("#!/bin/sh\necho 'passes.cpp:1: error: no such luck' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert "no such luck" in build.build().reason
    assert build.start() is None, "it would fail again"
    decoder = waiting_decoder()
    assert "no such luck" in decoder.native_loader.reason and torch.isfinite(run(decoder)).all()


def in_cache(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))
    path = build.find().path
    assert path is not None
    return path


def test_a_built_library_is_found(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = in_cache(cache_home, monkeypatch)
    assert path.parent == build.cache_folder() and not path.with_suffix(".failed").exists()
    decoder = waiting_decoder()
    assert not decoder.native_loader.reason and str(decoder.layout).startswith("native")


def test_a_damaged_file_is_not_loaded(
    cache_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = in_cache(cache_home, monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    copy = build.cache_folder() / whole.name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(whole.read_bytes()[:-1000])
    copy.with_suffix(".sha256").write_text(whole.with_suffix(".sha256").read_text())
    monkeypatch.setattr(build, "start", lambda: None)
    decoder = waiting_decoder()
    assert decoder.native_loader.reason == "not built yet" and torch.isfinite(run(decoder)).all()


def test_a_file_that_is_no_library_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "junk.so"
    path.write_bytes(b"junk")
    monkeypatch.setattr(build, "find", lambda: build.Built(path, "built before"))
    decoder = waiting_decoder()
    assert "cannot be loaded" in decoder.native_loader.reason and torch.isfinite(run(decoder)).all()


def test_other_sources_have_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = build.compiler()
    assert command is not None
    before = build._key(command)
    for source in build.SOURCE.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / "vectors.h").write_text("// other\n")
    monkeypatch.setattr(build, "SOURCE", tmp_path)
    build._key.cache_clear()
    assert build._key(command) != before
    build._key.cache_clear()


def test_it_is_built_in_the_background(
    own_library_state: LibraryState, cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked goes on meanwhile, and changes over when told to, once it is there."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> build.Builder:
        started.append(subprocess.Popen(["sleep", "600"]))
        return build.Builder(started[0])

    monkeypatch.setattr(build, "start", start)
    decoder = waiting_decoder()
    before = run(decoder)
    assert decoder.native_loader.reason == "not built yet" and not started, (
        "loading has the machine to itself"
    )
    assert not decoder.try_native() and not decoder.try_native() and len(started) == 1
    assert decoder.native_loader.reason == "being built"
    started[0].kill()
    started[0].wait()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))
    if not decoder.try_native():  # weights are packed in the background too
        assert (
            decoder.native_loader.reason == "weights are being packed"
            and decoder.native_loader._packing is not None
        )
        decoder.native_loader._packing.result()
        assert torch.equal(run(decoder), before)
        assert decoder.try_native()
    assert not decoder.native_loader.reason and not decoder.try_native()
    after = run(decoder)
    assert not torch.equal(before, after) and (before - after).abs().max() < 1e-4
    assert torch.equal(after, run(make_decoder(CASES["odd"]).native))


def stops(process: subprocess.Popen[bytes], *, wanted: bool) -> bool:
    """Whether the process is stopped, or runs, as wanted: the system carries a signal out a moment later."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if (state == "T") == wanted:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads a process's state")
def test_a_request_holds_the_compiler_up_for_a_moment() -> None:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    builder = build.Builder(process)
    try:
        builder.pause_build(600)
        builder.pause_build(600)
        assert stops(process, wanted=True) and not builder.has_ended
        builder._resume()
        assert stops(process, wanted=False)
        builder.pause_build(600)
        process.kill()
        builder.wait()
        assert builder.has_ended
        builder.pause_build(600)  # nobody is left to be held
    finally:
        process.kill()


def test_the_file_builds_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a script of its own, with a compiler that only says what it was asked for."""
    fake = tmp_path / "c++"
    fake.write_text(
        '#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && out="$2"; shift; done\n'
        '[ -n "$out" ] && echo made > "$out"\nexit 0\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    builder = build.start()
    assert builder is not None
    builder.wait()
    found = build.find().path
    assert found is not None and found.read_text() == "made\n"


def test_int8_without_the_library_is_the_same_weights(
    ready: Library, own_library_state: LibraryState
) -> None:
    options = PassOptions("on", "int8")
    native = Decoder(*decoder_parts(CASES["odd"]), options=options)
    own_library_state.library, own_library_state.reason = None, "away"
    own_library_state.refresh = lambda **_: None  # type: ignore[method-assign]
    plain = Decoder(*decoder_parts(CASES["odd"]), layout="out_in", options=options)
    assert plain.native_loader.reason and not native.native_loader.reason
    got, want = run(native), run(plain)
    assert float((got - want).norm() / want.norm()) < 0.02


def test_a_large_network_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "start", lambda: None)
    monkeypatch.setattr("wager.nn.native.loader.MAX_WAITING_BYTES", 1000)
    assert waiting_decoder()._unpacked is None


def test_without_memory_torch_serves(ready: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wager.nn.native.passes.room_for", lambda *_: 1 << 60)
    decoder = waiting_decoder()
    assert "no memory" in decoder.native_loader.reason and torch.isfinite(run(decoder)).all()
    assert not decoder.try_native()


def test_wishes_are_checked() -> None:
    with pytest.raises(ConfigError, match="weights = 'int3'"):
        PassOptions("on", "int3")
    with pytest.raises(ConfigError, match="native = 'yes'"):
        PassOptions("yes")
    with pytest.raises(ConfigError, match="weights = 'int4'"):
        PassOptions("on", "int4")
    assert PassOptions("on", "int4", kernels=True).quant_bits == 4
    assert PassOptions("on", "int8").quant_bits is None


def test_records_of_another_version_are_not_loaded(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = in_cache(cache_home, monkeypatch)
    monkeypatch.setattr(library_module, "_RECORDS", (library_module.Pool, *library_module._RECORDS[1:]))
    with pytest.raises(OSError, match="of another version"):
        Library(path)
