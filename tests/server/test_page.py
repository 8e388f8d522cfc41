"""The page in a real browser against a scripted server: chat, thinking, settings and race."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.server import stub
from tests.server.browser import ask, finished, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

browser_test = pytest.mark.browser


def sent(state: stub.State, path: str = "/v1/chat/completions") -> list[dict[str, object]]:
    return [body for body in state.bodies if body["path"] == path]


# -- the files


def test_files_reference_no_other_server() -> None:
    for path in stub.PAGE.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text), path.name


def test_the_html_has_no_inline_code() -> None:
    html = (stub.PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", html)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", html))
    for name in re.findall(r"(?:src|href)=\"page/([^\"]+)\"", html):
        assert (stub.PAGE / name).is_file(), name


def test_scripts_never_parse_text_as_markup() -> None:
    for path in stub.PAGE.glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", path.read_text()
        )


# -- chat


@browser_test
def test_an_answer_is_shown_token_by_token(page: Page, state: stub.State) -> None:
    ask(page, "Which plants are easy?")
    finished(page)
    answer = page.locator("#conversation .answer > .tokens")
    assert answer.text_content() == stub.ANSWER
    tokens = [token for group in stub.scripted_steps(stub.pieces(stub.ANSWER), "auto") for token in group]
    for origin in ("target", "guess"):
        shown = answer.locator(f".tok.{origin}").all_text_contents()
        assert shown == [token["text"] for token in tokens if token["origin"] == origin]
    assert f"{len(tokens)} tokens" in page.locator(".figures").inner_text()
    assert sent(state)[0]["speculation"] == {"mode": "auto", "report": "tokens"}


@browser_test
def test_a_conversation_continues(page: Page, state: stub.State) -> None:
    for prompt in ("First question", "Second question"):
        ask(page, prompt)
        finished(page)
    roles = [(message["role"], message["content"]) for message in sent(state)[1]["messages"]]  # type: ignore[attr-defined]
    assert roles == [("user", "First question"), ("assistant", stub.ANSWER), ("user", "Second question")]
    page.click("#new-chat")
    ask(page, "Third question")
    finished(page)
    assert len(sent(state)[2]["messages"]) == 1  # type: ignore[arg-type]


@browser_test
def test_the_tooltip_shows_bet_depth_and_confidence(page: Page) -> None:
    ask(page, "Which plants are easy?")
    finished(page)
    guess = next(
        t for g in stub.scripted_steps(stub.pieces(stub.ANSWER), "auto") for t in g if t["depth"] == 2
    )
    page.hover(".tok.guess >> nth=1")
    tip = page.locator("#tip").inner_text()
    assert "Accepted guess" in tip
    assert re.search(rf"bet\s+{guess['bet']} guess", tip)
    assert re.search(r"depth\s+2", tip)
    assert f"{round(guess['confidence'] * 100)} %" in tip
    page.hover(".tok.target >> nth=0")
    assert "own" in page.locator("#tip b").inner_text()


@browser_test
def test_arrow_keys_move_through_tokens(page: Page) -> None:
    ask(page, "Which plants are easy?")
    finished(page)
    page.focus(".answer .tokens")
    seen = []
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        seen.append(page.evaluate("document.activeElement.textContent"))
        assert page.is_visible("#tip")
    assert seen == stub.pieces(stub.ANSWER)[:3]
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.textContent") == seen[1]
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")


@browser_test
def test_text_to_continue_is_sent_to_completions(page: Page, state: stub.State) -> None:
    page.click("text=Python")
    finished(page)
    body = sent(state, "/v1/completions")[0]
    assert str(body["prompt"]).startswith("# file:")
    assert "thinking" not in body
    shown = page.locator(".answer > .tokens")
    assert shown.text_content() == str(body["prompt"]) + stub.CODE
    assert shown.locator(".prompt-text").text_content() == body["prompt"]


@browser_test
def test_the_prompt_keeps_lines_and_markup_as_text(page: Page, state: stub.State) -> None:
    page.focus("#prompt")
    page.keyboard.type("<b>one</b>")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    finished(page)
    assert sent(state)[0]["messages"] == [{"role": "user", "content": "<b>one</b>\ntwo"}]
    assert page.locator(".user-message").inner_text() == "<b>one</b>\ntwo"
    assert page.locator(".user-message b").count() == 0


# -- thinking


@browser_test
@pytest.mark.parametrize("budget", [0, 7, 64])
def test_a_thinking_budget_is_sent_and_its_close_shown(page: Page, state: stub.State, budget: int) -> None:
    page.select_option("#thinking", "on")
    page.fill("#budget", str(budget))
    ask(page, "How many pages?")
    finished(page)
    assert sent(state)[0]["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert (
        page.locator(".thinking summary").inner_text()
        == f"Thought for {budget} of {budget} tokens, closed by the budget"
    )
    assert page.locator(".thinking .tok.mark.forced").all_inner_texts() == ["↵", "</think>", "↵"]
    assert page.locator(".thinking .tok:not(.mark)").count() == budget
    assert page.locator(".answer > .tokens").text_content() == stub.ANSWER
    assert page.locator(".ribbon .forced").count() == 3


@browser_test
def test_thinking_can_be_left_to_the_model_or_switched_off(page: Page, state: stub.State) -> None:
    assert page.is_hidden("#budget")
    for how in ("usual", "off"):
        page.select_option("#thinking", how)
        ask(page, "How many pages?")
        finished(page)
    usual, off = sent(state)
    assert "thinking" not in usual
    assert off["thinking"] == {"type": "disabled"}
    assert page.locator(".thinking").count() == 0


# -- settings


@browser_test
def test_settings_are_part_of_the_request(page: Page, state: stub.State) -> None:
    page.locator("#temperature").fill("0.8")
    page.click("#more summary")
    page.fill("#length", "9")
    page.fill("#seed", "77")
    page.select_option("#mode", "fixed")
    page.fill("#nodes", "6")
    page.keyboard.press("Escape")
    ask(page, "Which plants are easy?")
    finished(page)
    body = sent(state)[0]
    assert (body["temperature"], body["max_tokens"], body["seed"], body["model"]) == (0.8, 9, 77, "demo")
    assert body["speculation"] == {"mode": "fixed", "nodes": 6, "report": "tokens"}
    assert "token limit reached" in page.locator(".figures").inner_text()


@browser_test
def test_the_policy_is_changed_on_the_server(page: Page, state: stub.State) -> None:
    page.wait_for_selector("#policy option[value='tree:32']", state="attached")
    page.select_option("#policy", "fixed:4")
    page.wait_for_selector(".live-head .policy:text-is('fixed:4')")
    assert state.policy == "fixed:4"
    state.policy = "tree:32"
    page.wait_for_selector("#policy option[value='tree:32']:checked", state="attached")


@browser_test
def test_a_policy_that_is_refused_is_not_shown(browser: Browser, url: str, state: stub.State) -> None:
    with visiting(browser, url, refusals=True) as page:
        page.wait_for_selector(".live-head .policy:text-is('auto')")
        page.select_option("#policy", "bod")
        page.wait_for_selector("#notice:not([hidden])")
        assert "bod is not allowed here" in page.locator("#notice").inner_text()
        assert page.input_value("#policy") == "auto"
    assert state.policy == "auto"


@browser_test
def test_chosen_colours_are_kept(browser: Browser, url: str) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    with visiting(browser, url, color_scheme="dark") as page:
        dark = page.evaluate(paper)
        page.click("#theme")
        light = page.evaluate(paper)
        assert light != dark
        page.reload()
        assert page.evaluate(paper) == light
        page.click("#theme")
        assert page.evaluate(paper) == dark


# -- race


@browser_test
def test_a_race_runs_the_same_request_both_ways(page: Page, state: stub.State) -> None:
    page.click("#tab-race")
    page.fill("#prompt", "Which plants are easy?")
    page.press("#prompt", "Enter")
    page.wait_for_selector("text=Watch side by side")
    warm, *runs = sent(state)
    assert warm["max_tokens"] == 1
    assert [run["speculation"]["mode"] for run in runs] == ["off", "auto"]  # type: ignore[index]
    plain, wager = ({name: run[name] for name in run if name != "speculation"} for run in runs)
    assert plain == wager
    count = len(stub.pieces(stub.ANSWER))
    verdict = page.locator(".verdict").inner_text()
    assert f"The same {count} tokens, token for token" in verdict
    assert "Plain first, then Wager, each alone" in verdict
    for lane in ("plain", "wager"):
        assert page.locator(f".lane.{lane} .tokens").text_content() == stub.ANSWER
    assert page.locator(".lane.plain .tok.guess").count() == 0
    assert page.locator(".lane.wager .tok.guess").count() > 50


@browser_test
def test_the_next_race_runs_in_the_opposite_order(page: Page, state: stub.State) -> None:
    page.click("#tab-race")
    for _ in range(2):
        page.fill("#prompt", "Which plants are easy?")
        page.press("#prompt", "Enter")
        page.wait_for_selector("body:not([data-busy])")
    modes = [run["speculation"]["mode"] for run in sent(state)]  # type: ignore[index]
    assert modes == ["off", "off", "auto", "off", "auto", "off"]
    assert "Wager first, then Plain" in page.locator(".verdict").inner_text()


@browser_test
def test_a_race_can_run_at_the_same_time_and_says_so(page: Page, state: stub.State) -> None:
    page.click("#tab-race")
    page.click("#more summary")
    page.select_option("#race-order", "together")
    ask(page, "Which plants are easy?")
    page.wait_for_selector("text=Watch side by side")
    assert "both at the same time, sharing the machine" in page.locator(".verdict").inner_text()


@browser_test
def test_a_race_can_be_replayed(page: Page, state: stub.State) -> None:
    page.click("#tab-race")
    ask(page, "Which plants are easy?")
    page.click("text=Watch side by side")
    before = len(state.bodies)
    page.wait_for_selector("body:not([data-busy])")
    assert len(state.bodies) == before
    for lane in ("plain", "wager"):
        assert page.locator(f".lane.{lane} .tokens").text_content() == stub.ANSWER
