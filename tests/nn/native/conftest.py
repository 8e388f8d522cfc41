"""The library of these tests: compiled once, into a cache of their own, and the only one they meet."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from wager.nn.native import build
from wager.nn.native import library as library_module
from wager.nn.native.library import Library

FIND, START = build.find, build.start  # before the fixture for all other tests takes them away


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What XDG_CACHE_HOME names, with the library in it."""
    if build.compiler() is None:
        pytest.skip("no C++ compiler here")
    home = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        made = build.build()
    assert made.path is not None, made.reason
    return home


@pytest.fixture(scope="session")
def library(cache_home: Path) -> Library:
    (path,) = (cache_home / "wager" / "native").glob("*.so")
    return Library(path)


@pytest.fixture(autouse=True)
def own_library_state(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[library_module.LibraryState]:
    """No test finds or builds anything in the user's own cache, and none keeps threads it asked for.

    Only tests of the building start one: each takes a core for seconds.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "find", FIND)
    if "build" in request.node.nodeid.rpartition("/")[2]:
        monkeypatch.setattr(build, "start", START)
    state = library_module.LibraryState()
    monkeypatch.setattr(library_module, "_state", state)
    threads = torch.get_num_threads()
    with torch.inference_mode():
        yield state
    torch.set_num_threads(threads)


@pytest.fixture
def ready(own_library_state: library_module.LibraryState, library: Library) -> Library:
    """The library is at hand for whoever asks."""
    own_library_state.library = library
    return library
