"""One small model and one server around it, for all tests that change nothing in it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.harness import Served, save_speaker, served


@pytest.fixture(scope="session")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_speaker(tmp_path_factory.mktemp("speaker"))


@pytest.fixture(scope="session")
def server(speaker: Path) -> Iterator[Served]:
    with served(speaker, served_name="tiny,small") as running:
        yield running


@pytest.fixture
def http(server: Served) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
