"""`wager top`: one look at a server, the screen of a terminal, and servers that are not there."""

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from tests.cli.terminal import on_terminal
from tests.server.harness import Served, save_speaker, served
from wager.cli import main, top
from wager.cli.top import Monitor
from wager.cli.top_client import ServerAway, StateClient, full_url
from wager.cli.top_view import Heading, draw, summary_line
from wager.errors import InputError

STATE: dict[str, Any] = {
    "running": 2,
    "waiting": 1,
    "max_rows": 8,
    "pages_used": 30,
    "pages_total": 120,
    "policy": "auto",
    "ledger_ms": 1500.0,
    "speedup": 1.5,
    "tokens_per_s": 120.0,
    "tokens_per_step": 2.4,
    "bet_mean": 3.25,
    "bet_histogram": [2, 0, 1, 0, 1],
    "acceptance_by_depth": [0.8, 0.5],
    "acceptance_ema": 0.62,
    "requests": [
        {
            "id": 7,
            "state": "running",
            "prompt_tokens": 12,
            "tokens": 34,
            "max_tokens": 56,
            "tokens_per_step": 2.5,
            "acceptance": 0.6,
            "speedup": 1.7,
        },
        {"id": 8, "state": "waiting", "prompt_tokens": 3, "tokens": 0, "max_tokens": 9, "acceptance": None},
    ],
}


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_speaker(tmp_path_factory.mktemp("speaker"))


@pytest.fixture(scope="module")
def server(speaker: Path) -> Iterator[Served]:
    with served(speaker) as running:
        yield running


def shown(state: dict[str, Any] | None, heading: Heading, width: int = 80, height: int = 40) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, force_terminal=True, no_color=True, _environ={})
    console.print(draw(state, heading, console))
    return Text.from_ansi(file.getvalue()).plain


def test_once_prints_the_tables(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    with server.client() as http:
        http.post("/v1/completions", json={"model": "speaker", "prompt": "a b a b", "max_tokens": 30})
    assert main.exit_status(["top", server.url, "--once"]) == 0
    out = capsys.readouterr().out
    assert server.url in out and "policy auto" in out and "0 running, 0 waiting (room for 8)" in out
    assert "of 400" in out and "bets, mean" in out and "no requests" in out and "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_prints_the_state(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    port = server.url.rpartition(":")[2]
    assert main.exit_status(["top", port, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pages_total"] == 400 and found["requests"] == []


def test_a_server_with_a_key(speaker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(speaker, api_key="k1,k2") as running:
        assert main.exit_status(["top", running.url, "--once"]) == 2
        assert "needs an API key" in capsys.readouterr().err
        assert main.exit_status(["top", running.url, "--once", "--api-key", "k2"]) == 0


def test_the_key_comes_from_the_environment(
    speaker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(speaker, api_key="k1,k2") as running:
        monkeypatch.setenv("WAGER_API_KEY", "k1,k2")
        assert main.exit_status(["top", running.url, "--json"]) == 0


@pytest.mark.parametrize("flag", ["--once", "--json"])
def test_a_server_that_is_not_there(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status(["top", "1", flag]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == "wager: error: no answer from http://127.0.0.1:1: connection refused"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("8000", "http://127.0.0.1:8000"),
        ("host:8000", "http://host:8000"),
        ("http://host:8000/v1", "http://host:8000"),
        ("https://[::1]:9/", "https://[::1]:9"),
    ],
)
def test_addresses(text: str, url: str) -> None:
    assert full_url(text) == url


@pytest.mark.parametrize("text", ["", "a b", "ftp://host", "http://", "http://host:99999", "http://host:x"])
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected http"):
        full_url(text)


@pytest.mark.parametrize("interval", ["0", "nan", "99999"])
def test_a_wrong_interval_is_refused(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status(["top", "--interval", interval]) == 2
    assert "interval = " in capsys.readouterr().err


@pytest.mark.parametrize("answer", [b"<html>", b"[1]", b"\xff"])
def test_a_server_of_something_else(answer: bytes) -> None:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    other = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=other.serve_forever, args=(0.02,), daemon=True).start()
    try:
        with pytest.raises(InputError, match="is no server of Wager"):
            StateClient(f"127.0.0.1:{other.server_address[1]}").state()
    finally:
        other.shutdown()
        other.server_close()


class FakeClient:
    """Answers with the given states; an exception among them is raised."""

    url = "http://there"

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.num_models = 0

    def model(self) -> str:
        self.num_models += 1
        if isinstance(self.answers[0], Exception):
            raise self.answers.pop(0)
        return f"model-{self.num_models}"

    def state(self) -> dict[str, Any]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_server_that_goes_away_is_asked_until_it_is_back(capsys: pytest.CaptureFixture[str]) -> None:
    away = ServerAway("no answer from there")
    client = FakeClient(away, STATE, away, away, STATE)
    monitor = Monitor(client)  # type: ignore[arg-type]
    console = Console(force_terminal=True, no_color=True, width=80, height=40)
    keys = iter(["", "", "", "x", "q"])
    seen = []

    def wait_for_key(_seconds: float) -> str:
        seen.append((monitor.heading.trouble, monitor.heading.model, monitor.state is not None))
        return next(keys)

    top._watch(monitor, console, 1.0, wait_for_key)
    troubles = ["no answer from there", "", "no answer from there", "no answer from there", ""]
    assert [trouble for trouble, _, _ in seen] == troubles
    assert [has_state for _, _, has_state in seen] == [False, True, True, True, True]
    assert seen[1][1] != seen[4][1]  # another model may have been started
    assert "no answer from there (trying again)" in capsys.readouterr().out
    assert monitor.heading.speeds == (120.0, 120.0)


def test_without_a_terminal_every_look_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    away = ServerAway("no answer from there")
    monitor = Monitor(FakeClient(STATE, away, away, STATE))  # type: ignore[arg-type]
    looks = iter([None, None, None, KeyboardInterrupt])

    def sleep(_seconds: float) -> None:
        if (error := next(looks)) is not None:
            raise error

    monkeypatch.setattr("wager.cli.top.time.sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        top._print_lines(monitor, 1.0)
    out, err = capsys.readouterr()
    assert out.splitlines() == [summary_line(STATE)] * 2
    assert err.splitlines() == ["wager: no answer from there (trying again)"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_shows_every_figure(width: int) -> None:
    text = shown(STATE, Heading("http://there", "a-model", speeds=(10.0, 120.0)), width)
    wanted = (
        "a-model",
        "policy auto",
        "120.0",
        "2.40",
        "0.62 (EMA)",
        "2 running, 1 waiting",
        "30 of 120 (25%)",
    )
    assert all(one in text for one in (*wanted, "+1.50 s (1.50x plain decoding)", "mean 3.25", "1.70x"))
    lines = {line.split()[0]: line for line in text.splitlines() if line.split()}
    assert "50%" in lines["0"] and "25%" in lines["2"] and "25%" in lines["3-4"]
    assert "…" not in text and max(map(len, text.splitlines())) <= width


def test_the_screen_shows_what_an_older_server_sends() -> None:
    old = {key: value for key, value in STATE.items() if key not in ("requests", "acceptance_ema")}
    text = shown(old, Heading("http://there"))
    assert "does not list its requests" in text and "- (EMA)" in text


def test_many_requests_are_cut_to_the_screen() -> None:
    many = {**STATE, "requests": STATE["requests"][:1] * 50}
    text = shown(many, Heading("http://there"), height=30)
    assert "and 42 more" in text and len(text.splitlines()) <= 30


def test_before_the_first_state_there_is_only_the_heading() -> None:
    assert shown(None, Heading("http://there", trouble="no answer")).split("\n")[1:2] == [
        "no answer (trying again)"
    ]


def test_on_a_terminal_q_leaves(server: Served, tmp_path: Path) -> None:
    with on_terminal("top", server.url, "--interval", "0.1", home=tmp_path) as terminal:
        terminal.wait_for(lambda seen: "tokens per step" in seen and "no requests" in seen)
        terminal.type("q")
    assert terminal.process.returncode == 0
