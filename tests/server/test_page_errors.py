"""The page in a real browser: errors, keyboard, phone, and single modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server import stub
from tests.server.browser import PHONE, ask, finished, has_no_overflow, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser


# -- errors


@pytest.mark.parametrize("stop", ["Escape", "button"])
def test_stopping_keeps_the_text_and_aborts_the_request(browser: Browser, stop: str) -> None:
    state = stub.State(step_s=0.15)
    with stub.serving(state) as url, visiting(browser, url) as page:
        ask(page, "Which plants are easy?")
        page.wait_for_selector(".tok.guess")
        if stop == "button":
            assert page.locator("#send").inner_text() == "Stop"
            page.click("#send")
        else:
            page.keyboard.press("Escape")
        finished(page, "stopped")
        shown = page.locator(".answer > .tokens").text_content() or ""
        assert shown and stub.ANSWER.startswith(shown) and shown != stub.ANSWER
        assert "stopped by you" in page.locator(".figures").inner_text()
        page.wait_for_selector("#status[data-state=idle]")
        assert state.aborted == 1


def test_a_new_chat_drops_an_answer_that_still_runs(browser: Browser) -> None:
    state = stub.State(step_s=0.15)
    with stub.serving(state) as url, visiting(browser, url) as page:
        ask(page, "An old question")
        page.wait_for_selector(".tok.guess")
        page.click("#new-chat")
        page.wait_for_selector("body:not([data-busy]) .welcome")
        ask(page, "A new question")
        page.wait_for_selector(".tok.guess")
        assert state.bodies[-1]["messages"] == [{"role": "user", "content": "A new question"}]
        assert page.locator(".answer").count() == 1


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("refuse-429", "The queue is full. Try again in 3 s."),
        ("refuse-400", "The queue is full."),
        ("break-off", "The answer was interrupted"),
        ("fail-inside", "The target failed."),
    ],
)
def test_an_error_is_shown_and_can_be_retried(browser: Browser, url: str, order: str, message: str) -> None:
    with visiting(browser, url, refusals=True) as page:
        ask(page, f"Please {order}")
        finished(page, "failed")
        assert message in page.locator(".problem").inner_text()
        page.click("text=Try again")
        finished(page, "failed")
        assert page.locator(".answer").count() == 1
        assert page.locator(".user-message").count() == 1
        ask(page, "Which plants are easy?")
        finished(page)


def test_an_api_key_gives_access(browser: Browser) -> None:
    with stub.serving(stub.State(api_key="sesame")) as url, visiting(browser, url, refusals=True) as page:
        assert page.locator("#status").inner_text() == "needs a key"
        assert "Enter an API key under More" in page.locator("#notice").inner_text()
        page.click("#more summary")
        page.fill("#key", "sesame")
        page.keyboard.press("Tab")
        page.wait_for_selector("#status[data-state=idle]")
        page.wait_for_selector("#model:has-text('demo')")  # it is requested separately from the state
        ask(page, "Which plants are easy?")
        finished(page)


def test_a_lost_connection_is_shown_and_restored(browser: Browser) -> None:
    with stub.serving(stub.State()) as url, visiting(browser, url, refusals=True) as page:
        page.wait_for_selector("#status[data-state=idle]")
        page.context.set_offline(True)
        ask(page, "Which plants are easy?")
        finished(page, "failed")
        assert "cannot be reached" in page.locator(".problem").inner_text()
        page.context.set_offline(False)
        page.click("text=Try again")
        finished(page)


# -- charts, keyboard, small screens


def test_charts_show_the_state_of_the_server(page: Page) -> None:
    page.wait_for_selector("#live .line >> nth=3", state="attached")
    assert page.locator("#live .chart h3").all_inner_texts() == [
        "Bet size",
        "Bets by size",
        "Tokens per step",
        "Acceptance by depth",
        "Ledger",
        "Batch",
    ]
    assert page.locator(".chart:has-text('Acceptance by depth') .bar").count() == 8
    assert "86 % at depth 1" in page.locator(".chart:has-text('Acceptance by depth')").inner_text()
    assert page.locator(".chart:has-text('Bets by size') .bar").count() == 12
    assert "of 128 pages" in page.locator(".chart:has-text('Batch')").inner_text()
    assert "1.62×" in page.locator(".tiles").inner_text()


def test_the_keyboard_reaches_every_control(page: Page) -> None:
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.focus("#tab-chat")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#view-race") and page.is_hidden("#view-chat")
    page.keyboard.press("Home")
    assert page.is_visible("#view-chat")
    reached = set()
    page.focus("#prompt")
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.parentElement.id"))
    assert {"kind", "policy", "temperature", "thinking", "more", "send"} <= reached
    unnamed = (
        "[...document.querySelectorAll('input, select, textarea')].filter((field) => !field.labels.length)"
    )
    assert page.evaluate(f"{unnamed}.map((field) => field.id)") == []


@pytest.mark.parametrize("view", ["chat", "race", "live"])
def test_a_phone_needs_no_horizontal_scrolling(browser: Browser, url: str, view: str) -> None:
    with visiting(browser, url, **PHONE) as page:
        page.tap("#settings-toggle")
        assert page.is_visible("#policy")
        page.select_option("#thinking", "on")
        page.tap(f"#tab-{view}")
        if view != "live":
            page.fill("#prompt", "Which plants are easy?")
            page.tap("#send")
            page.wait_for_selector("body:not([data-busy]) .answer[data-state=done]")
        assert page.is_visible(f"#view-{view}")
        assert has_no_overflow(page)


# -- single modules


ALIGNED: list[tuple[list[str], list[str], list[list[object]]]] = [
    (["Hel", "lo", " you"], ["Hello you"], [["Hel", 0], ["lo", 1], [" you", 2]]),
    (["Hello"], ["He", "llo"], [["He", 0], ["llo", 0]]),
    (["<think>", "\n", "so"], ["so"], [["so", 2]]),
    (["a", "\n", "</think>", "\n\n", "b"], ["a", "b"], [["a", 0], ["b", 4]]),
    (["\n\n", " The", " end"], ["The end"], [["The", 1], [" end", 2]]),
    (["", "", " na", "ïve"], [" naïve"], [[" na", 2], ["ïve", 3]]),
    (["caf", "\ufffd", "\ufffd", " au lait"], ["café au lait"], [["caf", 0], ["é", 2], [" au lait", 3]]),
    (["x", "y"], ["", "xyz"], [["x", 0], ["y", 1], ["z", None]]),
]


def test_text_is_aligned_with_its_tokens(page: Page) -> None:
    script = """async ([tokens, shown]) => {
        const { Aligner } = await import("/page/align.js");
        const aligner = new Aligner();
        aligner.add(tokens.map((text, index) => ({ text, index })));
        const pieces = shown.flatMap((text) => aligner.take(text)).filter((piece) => !piece.hidden);
        return pieces.map((piece) => [piece.text, piece.token?.index ?? null]);
    }"""
    for tokens, shown, pieces in ALIGNED:
        assert page.evaluate(script, [tokens, shown]) == pieces


def test_tokens_are_grouped_into_steps(page: Page) -> None:
    groups = list(stub.scripted_steps(stub.pieces(stub.ANSWER), "auto"))
    script = """async (tokens) => (await import("/page/ribbon.js")).stepsOf(tokens)"""
    steps = page.evaluate(script, [token for group in groups for token in group])
    assert [step["bet"] for step in steps] == [group[0]["bet"] for group in groups]
    assert [step["accepted"] for step in steps] == [
        max(token["depth"] for token in group) for group in groups
    ]


def test_a_race_says_where_different_texts_begin_to_differ(page: Page) -> None:
    script = """async () => {
        const { sameness } = await import("/page/race.js");
        const shown = (texts) => ({ tokens: texts.map((text) => ({ text })) });
        return [sameness(shown(["a", "b"]), shown(["a", "c"])), sameness(shown(["a"]), shown(["a", "b"]))];
    }"""
    assert ["after 1 tokens" in message for message in page.evaluate(script)] == [True, True]
