"""A headless Chromium for the tests of the page, and a page that remembers what went wrong on it.

A `Visit` fails its test when the page logged an error, threw, or asked any other machine for anything.
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
    """A browser; skips the test where there is none."""
    api = pytest.importorskip("playwright.sync_api", exc_type=ImportError)
    path = chromium()
    if path is None:
        pytest.skip("no Chromium on this machine")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visiting(browser: Browser, url: str, refusals: bool = False, **options: Any) -> Iterator[Page]:
    """The page at `url`, ready. `refusals`: the server will refuse things, which browsers log as errors."""
    context = browser.new_context(**{"viewport": {"width": 1360, "height": 860}, **options})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"thrown: {error}"))
    page.on(
        "console",
        lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None,
    )
    context.on("request", lambda request: _check_origin(request.url, url, wrong))
    try:
        page.goto(url)
        page.wait_for_selector("#status:not([data-state=waiting])")
        yield page
    finally:
        context.close()
    if refusals:
        wrong = [text for text in wrong if not text.startswith("Failed to load resource")]
    assert wrong == []


def _check_origin(asked: str, url: str, wrong: list[str]) -> None:
    if urlsplit(asked).netloc != urlsplit(url).netloc:
        wrong.append(f"left the machine: {asked}")


def ask(page: Page, prompt: str) -> None:
    """Type a prompt and press Enter."""
    page.fill("#prompt", prompt)
    page.press("#prompt", "Enter")


def finished(page: Page, state: str = "done") -> None:
    page.wait_for_selector(f"#conversation .answer:last-child[data-state={state}]")


def picture(page: Page, name: str) -> None:
    """A screenshot for people, where WAGER_PICTURES names a folder for them."""
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
