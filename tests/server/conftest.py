"""A small model with a server for tests that do not change its state, and the page with a scripted server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server import stub
from tests.server.browser import launched, visiting
from tests.server.harness import Served, save_speaker, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as one:
        yield one


@pytest.fixture
def state() -> stub.State:
    return stub.State()


@pytest.fixture
def url(state: stub.State) -> Iterator[str]:
    with stub.serving(state) as address:
        yield address


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    with visiting(browser, url) as one:
        yield one
