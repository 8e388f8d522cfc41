"""The page in a real browser against the real server with the demo pair.

The pair runs in float64, so that near-ties of its weights cannot change a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.browser import PHONE, ask, finished, has_no_overflow, picture, visiting
from tests.server.harness import Served, served, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

DEMO: dict[str, Any] = {
    "drafter": "auto",
    "dtype": "float64",
    "page_size": 32,
    "num_pages": 256,
    "max_rows": 4,
    "policy": "auto",
}
SUM = "Mira reads 35 pages on Monday and twice as many on Tuesday. How many pages has she read?"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("demo", **DEMO) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: Served) -> Iterator[Page]:
    with visiting(browser, server.url) as one:
        yield one


def configure(page: Page, length: int, guesses: int | None = None) -> None:
    """Greedy decoding with a token limit, and a fixed chain if the test needs guesses."""
    page.locator("#temperature").fill("0")
    page.click("#more summary")
    page.fill("#length", str(length))
    if guesses is not None:
        page.select_option("#mode", "fixed")
        page.fill("#nodes", str(guesses))
    page.keyboard.press("Escape")


def test_the_page_shows_the_answer_of_the_server(page: Page, server: Served) -> None:
    configure(page, 40, guesses=4)
    ask(page, SUM)
    finished(page)
    with server.client() as http:
        body = {"messages": [{"role": "user", "content": SUM}], "temperature": 0, "max_tokens": 40}
        answer = http.post("/v1/chat/completions", json=body).json()
    assert page.locator(".answer > .tokens").text_content() == answer["choices"][0]["message"]["content"]
    assert page.locator(".answer .tok.unknown").count() == 0
    assert f"{answer['usage']['completion_tokens']} tokens" in page.locator(".figures").inner_text()
    picture(page, "chat")


def test_accepted_guesses_show_their_bet(page: Page) -> None:
    configure(page, 96, guesses=4)
    page.click("text=Python")
    finished(page)
    page.hover(".tok.guess >> nth=0")
    tip = page.locator("#tip").inner_text()
    assert re.search(r"bet\s+[1-4] guess", tip)
    assert re.search(r"depth\s+1", tip)
    assert re.search(r"confidence\s+\d+ %", tip)
    assert "of guesses accepted" in page.locator(".figures").inner_text()
    picture(page, "code")


@pytest.mark.parametrize("budget", [0, 12])
def test_a_thinking_budget_is_applied_and_shown(page: Page, budget: int) -> None:
    configure(page, 60)
    page.select_option("#thinking", "on")
    page.fill("#budget", str(budget))
    ask(page, SUM)
    finished(page)
    summary = page.locator(".thinking summary").inner_text()
    assert summary == f"Thought for {budget} of {budget} tokens, closed by the budget"
    assert "</think>" in page.locator(".thinking .tok.mark.forced").all_inner_texts()
    assert "</think>" not in (page.locator(".answer > .tokens").text_content() or "")
    picture(page, f"thinking-{budget}")


def test_the_policy_is_changed_in_the_engine(page: Page, server: Served) -> None:
    for name in ("fixed:4", "auto"):
        page.select_option("#policy", name)
        page.wait_for_selector(f".live-head .policy:text-is('{name}')")
        assert server.engine.controller.policy.name == name


@pytest.mark.parametrize("order", ["turns", "together"])
def test_a_race_ends_with_the_same_text(page: Page, order: str) -> None:
    configure(page, 48, guesses=4)
    page.click("#tab-race")
    page.click("#more summary")
    page.select_option("#race-order", order)
    page.keyboard.press("Escape")
    ask(page, "Tell me about the sea.")
    page.wait_for_selector("text=Watch side by side")
    assert "token for token" in page.locator(".verdict").inner_text()
    plain, wager = (page.locator(f".lane.{name} .tokens") for name in ("plain", "wager"))
    assert plain.text_content() == wager.text_content() != ""
    assert plain.locator(".tok.guess").count() == 0
    picture(page, f"race-{order}")


def test_charts_change_while_a_request_runs(page: Page) -> None:
    configure(page, 96, guesses=4)
    page.click("text=A novel")
    finished(page)
    page.wait_for_selector(".chart:has-text('Bet size') .line", state="attached")
    page.wait_for_selector(".chart:has-text('Acceptance by depth') .bar >> nth=0")
    assert "most often" in page.locator(".chart:has-text('Bets by size')").inner_text()
    assert re.search(r"\d+ of 256 pages", page.locator(".chart:has-text('Batch')").inner_text())
    assert re.search(r"\d\.\d\d×", page.locator(".tiles").inner_text())


def test_stopping_frees_the_row(page: Page, server: Served) -> None:
    configure(page, 1500)
    page.click("text=A novel")
    page.wait_for_selector(".answer .tok >> nth=2")
    page.keyboard.press("Escape")
    finished(page, "stopped")
    page.wait_for_selector("#status[data-state=idle]")
    with server.client() as http:
        wait_until(lambda: http.get("/wager/state").json()["running"] == 0)


def test_an_error_is_shown(browser: Browser, server: Served) -> None:
    with visiting(browser, server.url, refusals=True) as page:
        ask(page, "word " * 4000)
        finished(page, "failed")
        assert len(page.locator(".problem p").inner_text()) > 20
        picture(page, "refusal")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_works_on_a_phone(browser: Browser, server: Served, scheme: str) -> None:
    with visiting(browser, server.url, color_scheme=scheme, **PHONE) as page:
        page.tap("text=A sum")
        finished(page)
        for view in ("chat", "race", "live"):
            page.tap(f"#tab-{view}")
            assert page.is_visible(f"#view-{view}")
            assert has_no_overflow(page)
            picture(page, f"phone-{view}-{scheme}")


def test_the_files_of_the_page_have_security_headers(server: Served) -> None:
    with server.client() as http:
        home = http.get("/")
        assert "default-src" in home.headers["content-security-policy"]
        assert home.headers["x-content-type-options"] == "nosniff"
        kinds = {"app.js": "javascript", "style.css": "text/css", "icon.svg": "image/svg+xml"}
        for name, kind in kinds.items():
            assert kind in http.get(f"/page/{name}").headers["content-type"]
        assert http.get("/page/../bridge.py").status_code == 404
        assert json.loads(http.get("/props").text)["policies"]
