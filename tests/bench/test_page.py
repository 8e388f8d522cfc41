"""The page and the picture: well-formed, complete, and nothing comes from elsewhere."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.bench.made_up import measured, report
from wager.bench.html import page
from wager.bench.plot import draw
from wager.bench.records import Difference, Measured
from wager.bench.svg import Bar, Group, Line, bars, lines, stacks

EMPTY_TAGS = {"meta", "br", "hr", "img", "link", "input"}


class Checker(HTMLParser):
    """Every tag is closed in order; attributes that would fetch something are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.fetching: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.fetching += [
            name for name, _ in attrs if name in ("src", "href", "xlink:href", "srcset", "data")
        ]
        assert len({name for name, _ in attrs}) == len(attrs), f"<{tag}> has an attribute twice"
        if tag not in EMPTY_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert "svg" in self.open, f"<{tag}/> outside a drawing"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


def test_the_page_is_well_formed_and_complete() -> None:
    text = page(report())
    found = checked(text)
    assert text.startswith("<!DOCTYPE html>\n") and "</html>\n" in text
    assert {"title", "style", "svg", "table", "details", "main"} <= found.seen
    words = " ".join(found.words)
    for expected in (
        "Speed-up by kind",
        "How auto bet",
        "Time per token by stage",
        "ar X X ar",
        "2.00x",
        "control",
    ):
        assert expected in words
    assert "How fixed:2 bet" not in words


def test_nothing_is_fetched() -> None:
    text = page(report())
    found = checked(text)
    assert found.fetching == []
    assert not {"script", "link", "iframe", "img", "object"} & found.seen
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)


def test_light_and_dark() -> None:
    text = page(report())
    assert "prefers-color-scheme: dark" in text and 'name="color-scheme" content="light dark"' in text
    used = set(re.findall(r'class="([sr]\d)', text))
    assert used and all(f".{name} " in text and f"--{name}:" in text for name in used)


def test_names_cannot_break_out() -> None:
    nasty = '<script>alert("x")</script>&'
    found = measured(num=1)
    found.prompts = [(nasty if kind == "code" else kind, id) for kind, id in found.prompts]
    for name in found.contenders:
        if (name, "code") in found.counts:
            found.counts[name, nasty] = found.counts.pop((name, "code"))
    text = page(report(found, model=nasty))
    assert "script" not in checked(text).seen and "&lt;script&gt;" in text


def test_texts_and_tiles() -> None:
    found = measured()
    assert "in every answer compared" in page(report(found))
    found.differences = [Difference("auto", 0, 3, 1, 2, 1e-6, True)]
    assert "but for near-ties: 1" in page(report(found))
    found.differences = [Difference("auto", 0, 3, 1, 2, 0.5, False)]
    assert "beyond a near-tie" in page(report(found))


def test_other_runs_have_pages_too() -> None:
    checked(page(report(measured(("ar", "transformers")))))
    checked(page(report(measured(("ar", "fixed:2")))))
    checked(page(report(Measured(["ar", "auto"], [("code", "code/0")]))))


def test_charts_hold_their_values() -> None:
    drawing = bars([Group("code", [Bar(2.0, 1.5, 2.5, 0, "two")]), Group("<b>", [])], 1.0)
    checked(drawing)
    assert "2.00" in drawing and "<title>two</title>" in drawing and "&lt;b&gt;" in drawing
    heights = [
        float(value)
        for value in re.findall(
            r'<rect[^>]*height="([\d.]+)"', bars([Group("a", [Bar(v, v, v, 0, "") for v in (1.0, 2.0)])], 1.0)
        )
    ]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.01)
    widths = [
        float(w) for w in re.findall(r'<rect[^>]*width="([\d.]+)"', stacks({"a": (0.25, 0.75)}, ("x", "y")))
    ]
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.01)
    assert lines([Line("a", (0.5, 0.25), 0), Line("b", (), 1)]).count("<circle") == 2


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_picture(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"run.{ending}"
    draw(report(), path)
    start = path.read_bytes()[:200]
    assert {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending] in start


def test_a_picture_of_peers_alone(tmp_path: Path) -> None:
    draw(report(measured(("ar", "transformers"))), tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 1000
