"""The page in a real browser, against a server that plays a script: chat, race, settings, trouble."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.server import stub
from tests.server.browser import PHONE, ask, finished, has_no_overflow, launched, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

browser_test = pytest.mark.browser


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


def asked(state: stub.State, path: str = "/v1/chat/completions") -> list[dict[str, object]]:
    return [body for body in state.bodies if body["path"] == path]


# -- the files


def test_files_name_no_other_machine() -> None:
    for path in stub.PAGE.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text), path.name


def test_structure_has_no_inline_code() -> None:
    html = (stub.PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", html)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", html))
    for name in re.findall(r"(?:src|href)=\"page/([^\"]+)\"", html):
        assert (stub.PAGE / name).is_file(), name


def test_scripts_never_make_markup_from_text() -> None:
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
    assert asked(state)[0]["speculation"] == {"mode": "auto", "report": "tokens"}


@browser_test
def test_a_conversation_goes_on(page: Page, state: stub.State) -> None:
    for prompt in ("First question", "Second question"):
        ask(page, prompt)
        finished(page)
    roles = [(message["role"], message["content"]) for message in asked(state)[1]["messages"]]  # type: ignore[attr-defined]
    assert roles == [("user", "First question"), ("assistant", stub.ANSWER), ("user", "Second question")]
    page.click("#new-chat")
    ask(page, "Third question")
    finished(page)
    assert len(asked(state)[2]["messages"]) == 1  # type: ignore[arg-type]


@browser_test
def test_a_token_tells_its_bet_depth_and_confidence(page: Page) -> None:
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
def test_arrow_keys_walk_through_tokens(page: Page) -> None:
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
def test_text_to_continue_goes_to_completions(page: Page, state: stub.State) -> None:
    page.click("text=Python")
    finished(page)
    body = asked(state, "/v1/completions")[0]
    assert str(body["prompt"]).startswith("# file:")
    assert "thinking" not in body
    shown = page.locator(".answer > .tokens")
    assert shown.text_content() == str(body["prompt"]) + stub.CODE
    assert shown.locator(".given").text_content() == body["prompt"]


@browser_test
def test_the_prompt_takes_lines_and_markup_as_text(page: Page, state: stub.State) -> None:
    page.focus("#prompt")
    page.keyboard.type("<b>one</b>")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    finished(page)
    assert asked(state)[0]["messages"] == [{"role": "user", "content": "<b>one</b>\ntwo"}]
    assert page.locator(".asked").inner_text() == "<b>one</b>\ntwo"
    assert page.locator(".asked b").count() == 0


# -- thinking


@browser_test
@pytest.mark.parametrize("budget", [0, 7, 64])
def test_a_thinking_budget_is_sent_and_its_close_shown(page: Page, state: stub.State, budget: int) -> None:
    page.select_option("#thinking", "on")
    page.fill("#budget", str(budget))
    ask(page, "How many pages?")
    finished(page)
    assert asked(state)[0]["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert (
        page.locator(".thinking summary").inner_text()
        == f"Thought for {budget} of {budget} tokens, closed by the budget"
    )
    assert page.locator(".thinking .tok.mark.forced").all_inner_texts() == ["↵", "</think>", "↵"]
    assert page.locator(".thinking .tok:not(.mark)").count() == budget
    assert page.locator(".answer > .tokens").text_content() == stub.ANSWER
    assert page.locator(".ribbon .forced").count() == 3


@browser_test
def test_thinking_is_left_alone_or_switched_off(page: Page, state: stub.State) -> None:
    assert page.is_hidden("#budget")
    for how in ("usual", "off"):
        page.select_option("#thinking", how)
        ask(page, "How many pages?")
        finished(page)
    usual, off = asked(state)
    assert "thinking" not in usual
    assert off["thinking"] == {"type": "disabled"}
    assert page.locator(".thinking").count() == 0


# -- settings


@browser_test
def test_settings_go_with_the_request(page: Page, state: stub.State) -> None:
    page.locator("#temperature").fill("0.8")
    page.click("#more summary")
    page.fill("#length", "9")
    page.fill("#seed", "77")
    page.select_option("#mode", "fixed")
    page.fill("#nodes", "6")
    page.keyboard.press("Escape")
    ask(page, "Which plants are easy?")
    finished(page)
    body = asked(state)[0]
    assert (body["temperature"], body["max_tokens"], body["seed"], body["model"]) == (0.8, 9, 77, "demo")
    assert body["speculation"] == {"mode": "fixed", "nodes": 6, "report": "tokens"}
    assert "longest answer reached" in page.locator(".figures").inner_text()


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
        assert "bod is not open to you" in page.locator("#notice").inner_text()
        assert page.input_value("#policy") == "auto"
    assert state.policy == "auto"


@browser_test
def test_colours_can_be_chosen_and_are_kept(browser: Browser, url: str) -> None:
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
    warm, *runs = asked(state)
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
def test_the_next_race_is_run_the_other_way_round(page: Page, state: stub.State) -> None:
    page.click("#tab-race")
    for _ in range(2):
        page.fill("#prompt", "Which plants are easy?")
        page.press("#prompt", "Enter")
        page.wait_for_selector("body:not([data-busy])")
    modes = [run["speculation"]["mode"] for run in asked(state)]  # type: ignore[index]
    assert modes == ["off", "off", "auto", "off", "auto", "off"]
    assert "Wager first, then Plain" in page.locator(".verdict").inner_text()


@browser_test
def test_a_race_can_be_run_at_once_and_says_so(page: Page, state: stub.State) -> None:
    page.click("#tab-race")
    page.click("#more summary")
    page.select_option("#race-order", "together")
    ask(page, "Which plants are easy?")
    page.wait_for_selector("text=Watch side by side")
    assert "both at once, sharing the machine" in page.locator(".verdict").inner_text()


@browser_test
def test_a_race_can_be_watched_again(page: Page, state: stub.State) -> None:
    page.click("#tab-race")
    ask(page, "Which plants are easy?")
    page.click("text=Watch side by side")
    before = len(state.bodies)
    page.wait_for_selector("body:not([data-busy])")
    assert len(state.bodies) == before
    for lane in ("plain", "wager"):
        assert page.locator(f".lane.{lane} .tokens").text_content() == stub.ANSWER


# -- trouble


@browser_test
@pytest.mark.parametrize("stop", ["Escape", "button"])
def test_stopping_keeps_what_came_and_tells_the_server(browser: Browser, stop: str) -> None:
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


@browser_test
@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("refuse-429", "The queue is full. Try again in 3 s."),
        ("refuse-400", "The queue is full."),
        ("break-off", "The answer broke off"),
        ("fail-inside", "The target failed."),
    ],
)
def test_trouble_is_told_and_can_be_retried(browser: Browser, url: str, order: str, said: str) -> None:
    with visiting(browser, url, refusals=True) as page:
        ask(page, f"Please {order}")
        finished(page, "failed")
        assert said in page.locator(".problem").inner_text()
        page.click("text=Try again")
        finished(page, "failed")
        assert page.locator(".answer").count() == 1
        assert page.locator(".asked").count() == 1
        ask(page, "Which plants are easy?")
        finished(page)


@browser_test
def test_an_api_key_opens_the_server(browser: Browser) -> None:
    with stub.serving(stub.State(api_key="sesame")) as url, visiting(browser, url, refusals=True) as page:
        assert page.locator("#status").inner_text() == "needs a key"
        assert "Give an API key under More" in page.locator("#notice").inner_text()
        page.click("#more summary")
        page.fill("#key", "sesame")
        page.keyboard.press("Tab")
        page.wait_for_selector("#status[data-state=idle]")
        assert page.locator("#model").inner_text().endswith("demo")
        ask(page, "Which plants are easy?")
        finished(page)


@browser_test
def test_a_server_that_goes_away_is_noticed_and_found_again(browser: Browser) -> None:
    with stub.serving(stub.State()) as url, visiting(browser, url, refusals=True) as page:
        page.wait_for_selector("#status[data-state=idle]")
        page.context.set_offline(True)
        ask(page, "Which plants are easy?")
        finished(page, "failed")
        assert "cannot be reached" in page.locator(".problem").inner_text()
        page.context.set_offline(False)
        page.click("text=Try again")
        finished(page)


# -- charts, keys, small screens


@browser_test
def test_charts_show_what_the_server_says(page: Page) -> None:
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


@browser_test
def test_everything_can_be_reached_by_keyboard(page: Page) -> None:
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


@browser_test
@pytest.mark.parametrize("view", ["chat", "race", "live"])
def test_a_phone_needs_no_sideways_scrolling(browser: Browser, url: str, view: str) -> None:
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


# -- the parts that can be tested alone


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


@browser_test
def test_text_finds_its_tokens(page: Page) -> None:
    script = """async ([tokens, shown]) => {
        const { Aligner } = await import("/page/align.js");
        const aligner = new Aligner();
        aligner.add(tokens.map((text, index) => ({ text, index })));
        const pieces = shown.flatMap((text) => aligner.take(text)).filter((piece) => !piece.hidden);
        return pieces.map((piece) => [piece.text, piece.token?.index ?? null]);
    }"""
    for tokens, shown, pieces in ALIGNED:
        assert page.evaluate(script, [tokens, shown]) == pieces


@browser_test
def test_steps_are_told_apart(page: Page) -> None:
    groups = list(stub.scripted_steps(stub.pieces(stub.ANSWER), "auto"))
    script = """async (tokens) => (await import("/page/ribbon.js")).stepsOf(tokens)"""
    steps = page.evaluate(script, [token for group in groups for token in group])
    assert [step["bet"] for step in steps] == [group[0]["bet"] for group in groups]
    assert [step["accepted"] for step in steps] == [
        max(token["depth"] for token in group) for group in groups
    ]


@browser_test
def test_a_race_of_different_texts_says_where_they_part(page: Page) -> None:
    script = """async () => {
        const { sameness } = await import("/page/race.js");
        const shown = (texts) => ({ tokens: texts.map((text) => ({ text })) });
        return [sameness(shown(["a", "b"]), shown(["a", "c"])), sameness(shown(["a"]), shown(["a", "b"]))];
    }"""
    assert ["after 1 tokens" in said for said in page.evaluate(script)] == [True, True]
