"""Coming up, going away, slow readers, broken models: nothing hangs, nothing leaks, nobody waits for ever."""

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.harness import PATIENCE_S, SETTINGS, Served, served, wait_until
from wager.config import with_values
from wager.engine.engine import Engine
from wager.errors import ModelError
from wager.server_config import ServeConfig

LONG = {"prompt": "The quick brown fox", "max_tokens": 900, "temperature": 1, "ignore_eos": True}


def is_clean(server: Served) -> bool:
    memory = server.engine.scheduler.memory
    kept = len(memory.index) if memory.index is not None else 0
    return (
        not server.engine.scheduler.has_work
        and server.service.bridge.num_open == 0
        and memory.allocator.num_used == kept
    )


def test_not_ready_until_loaded(speaker: Path) -> None:
    """While the model loads, health is 503 and requests are told to come back."""
    may_load = threading.Event()
    config = with_values(ServeConfig(), **{**SETTINGS, "model": str(speaker)})

    def load() -> Engine:
        may_load.wait(PATIENCE_S)
        return Engine.from_config(config.engine())

    seen: list[httpx.Response] = []

    def look(url: str) -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            seen.append(client.get("/health"))
            seen.append(client.post("/v1/completions", json={"prompt": "a"}))
            seen.append(client.get("/v1/models"))
        may_load.set()

    with served(speaker, load, before=look) as own, own.client() as client:
        assert client.get("/health").status_code == 200
    assert [response.status_code for response in seen] == [503, 503, 503]
    assert seen[0].json()["status"] == "loading" and "retry-after" in seen[1].headers


def test_a_model_that_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no-such"), served(tmp_path / "no-such"):
        pass


def test_a_client_that_goes_frees_its_pages(server: Served) -> None:
    """In every dialect, streaming or not."""
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 900}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", LONG),
        ("/v1/completions", {**LONG, "stream": True, "n": 2}),
        ("/v1/chat/completions", {**chat, "stream": True, "ignore_eos": True}),
        ("/v1/messages", {**chat, "stream": True}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 900}),
    ]
    for path, body in asked:
        leave_early(server, path, body)
        wait_until(lambda: is_clean(server))


def leave_early(server: Served, path: str, body: dict[str, Any]) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        wait_until(lambda: bool(server.engine.scheduler.running))


def test_a_slow_reader_holds_nobody_up(server: Served) -> None:
    """It does not read at all; its request ends in the engine, and others are answered meanwhile."""
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({**LONG, "max_tokens": 300, "stream": True, "logprobs": 5, "n": 2}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((host, int(port)))
        sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: bool(server.engine.scheduler.running))
        with server.client() as client:
            assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 4}).status_code == 200
        wait_until(lambda: is_clean(server))
        received = b""
        while b"[DONE]" not in received:
            part = sock.recv(1 << 16)
            assert part
            received += part
    assert received.count(b'"finish_reason":"length"') == 2


def test_a_silent_stream_shows_a_sign(speaker: Path) -> None:
    """With one row and a long request in front, the second one waits and hears keep-alive comments."""
    short = {"max_tokens": 2, "stream": True}
    waiting: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/completions", {**short, "prompt": "a"}, ": "),
        ("/v1/messages", {**short, "messages": [{"role": "user", "content": "a"}]}, "event: ping"),
    ]
    with served(speaker, max_rows=1, keepalive_s=0.1) as own, own.client() as client:
        slow_down(own)
        for path, body, sign in waiting:
            with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as first:
                held = first.iter_lines()  # letting it go would close the stream
                next(held)
                with client.stream("POST", path, json=body) as second:
                    assert any(line.startswith(sign) for line in second.iter_lines())


def test_an_answer_that_takes_too_long_is_cut(speaker: Path) -> None:
    with served(speaker, request_timeout_s=0.3) as own, own.client() as client:
        slow_down(own)
        response = client.post("/v1/completions", json=LONG)
        assert response.status_code == 504 and response.json()["error"]["code"] == "timeout"
        streamed = client.post("/v1/completions", json={**LONG, "stream": True})
        *_, error, done = [line for line in streamed.text.split("\n\n") if line.startswith("data: ")]
        assert json.loads(error[6:])["error"]["code"] == "timeout" and done == "data: [DONE]"
        wait_until(lambda: is_clean(own))


def slow_down(server: Served) -> None:
    """Every step of its engine takes 20 ms more."""
    step, patience = server.engine.step, threading.Event()

    def slow_step() -> Any:
        patience.wait(0.02)
        return step()

    server.engine.step = slow_step  # type: ignore[method-assign]


def test_a_drain_lets_running_requests_finish(speaker: Path) -> None:
    lines: list[str] = []
    with served(speaker) as own:
        slow_down(own)
        with own.client() as client, own.client() as other:
            assert other.get("/health").status_code == 200
            with client.stream(
                "POST", "/v1/completions", json={**LONG, "max_tokens": 40, "stream": True}
            ) as run:
                source = run.iter_lines()
                lines.append(next(source))
                own.stop()
                wait_until(lambda: own.service.bridge.draining)
                with pytest.raises(httpx.TransportError):
                    # The listening socket closes; at most a few are still told that it stops.
                    for _ in range(100):
                        assert other.post("/v1/completions", json=LONG).status_code == 503
                        time.sleep(0.01)
                lines += source
    assert any('"finish_reason":"length"' in line for line in lines) and lines[-2] == "data: [DONE]"


def test_a_drain_has_an_end(speaker: Path) -> None:
    with served(speaker, drain_s=0.2) as own:
        slow_down(own)
        asked = {**LONG, "stream": True}
        with own.client() as client, client.stream("POST", "/v1/completions", json=asked) as run:
            source = run.iter_lines()
            next(source)
            own.stop()
            rest = list(source)
    assert any("being stopped" in line for line in rest)


def test_live_streams_do_not_keep_it_from_stopping(speaker: Path) -> None:
    with served(speaker) as own, own.client() as client, client.stream("GET", "/wager/live") as live:
        lines = live.iter_lines()
        next(lines)
        own.stop()
        assert list(lines) is not None


def test_a_failing_step_fails_its_requests_and_not_the_server(speaker: Path) -> None:
    with served(speaker) as own, own.client() as client:
        run = own.engine.runner.run
        own.engine.runner.run = lambda *args: 1 / 0  # type: ignore[method-assign]
        response = client.post("/v1/completions", json={"prompt": "a"})
        assert response.status_code == 500 and "the step failed" in response.json()["error"]["message"]
        streamed = client.post("/v1/completions", json={"prompt": "a", "stream": True})
        assert streamed.status_code == 200 and '"code":"engine"' in streamed.text
        own.engine.runner.run = run  # type: ignore[method-assign]
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_a_lost_engine_is_seen(speaker: Path) -> None:
    """If its thread dies, waiting clients hear of it and health says so."""
    with served(speaker) as own, own.client() as client:

        def die() -> Any:
            raise MemoryError("gone")

        own.engine.step = die  # type: ignore[method-assign]
        response = client.post("/v1/completions", json={"prompt": "a"})
        assert response.status_code == 500 and "gone" in response.json()["error"]["message"]
        assert client.get("/health").status_code == 503
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 503
