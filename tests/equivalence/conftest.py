"""The world of these tests, made once."""

import pytest

from tests.equivalence.world import World, make_world
from wager.nn import kernels


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes are kernels, whatever the device."""
    monkeypatch.setattr(kernels, "has_kernels", lambda device: True)
