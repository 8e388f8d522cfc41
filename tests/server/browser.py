"""A headless Chromium for tests of the page.

A test fails if the page logs an error, throws an exception or sends a request to another server.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
WAIT_MS = 60_000
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


def chromium() -> str | None:
    named = os.environ.get("WAGER_CHROMIUM")
    return (
        named or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    )


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser; the test is skipped if none is installed."""
    api = pytest.importorskip("playwright.sync_api", exc_type=ImportError)
    path = chromium()
    if path is None:
        pytest.skip("Chromium is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visiting(browser: Browser, url: str, refusals: bool = False, **options: Any) -> Iterator[Page]:
    """The page at `url` when it is ready. `refusals`: error answers, which browsers log, are expected."""
    context = browser.new_context(**{"viewport": {"width": 1360, "height": 860}, **options})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(f"exception: {error}"))
    page.on(
        "console",
        lambda message: problems.append(message.text) if message.type in ("error", "warning") else None,
    )
    context.on("request", lambda request: _check_origin(request.url, url, problems))
    try:
        page.goto(url)
        page.wait_for_selector("#status:not([data-state=waiting])")
        yield page
    finally:
        context.close()
    if refusals:
        problems = [text for text in problems if not text.startswith("Failed to load resource")]
    assert problems == []


def _check_origin(requested: str, url: str, problems: list[str]) -> None:
    if urlsplit(requested).netloc != urlsplit(url).netloc:
        problems.append(f"request to another server: {requested}")


def ask(page: Page, prompt: str) -> None:
    """Type a prompt and press Enter."""
    page.fill("#prompt", prompt)
    page.press("#prompt", "Enter")


def finished(page: Page, state: str = "done") -> None:
    page.wait_for_selector(f"#conversation .answer:last-child[data-state={state}]")


def picture(page: Page, name: str) -> None:
    """Saves a screenshot if WAGER_PICTURES names a folder."""
    folder = os.environ.get("WAGER_PICTURES")
    if folder:
        page.screenshot(path=os.path.join(folder, f"{name}.png"))


def has_no_overflow(page: Page) -> bool:
    script = """() => {
        const nodes = [...document.querySelectorAll("body *")];
        const reach = nodes.map((node) => node.getBoundingClientRect().right);
        return Math.max(document.documentElement.scrollWidth, ...reach) <= innerWidth + 1;
    }"""
    return bool(page.evaluate(script))
