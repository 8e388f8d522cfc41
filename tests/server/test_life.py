"""Start, disconnects, slow readers, failures and stop: nothing hangs and nothing leaks."""

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
from wager.engine.assemble import build_engine
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
    """While the model loads, health and requests are answered with 503."""
    may_load = threading.Event()
    config = with_values(ServeConfig(), **{**SETTINGS, "model": str(speaker)})

    def load() -> Engine:
        may_load.wait(PATIENCE_S)
        return build_engine(config.engine())

    responses: list[httpx.Response] = []

    def probe(url: str) -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            responses.append(client.get("/health"))
            responses.append(client.post("/v1/completions", json={"prompt": "a"}))
            responses.append(client.get("/v1/models"))
        may_load.set()

    with served(speaker, load, before=probe) as running, running.client() as client:
        assert client.get("/health").status_code == 200
    assert [response.status_code for response in responses] == [503, 503, 503]
    assert responses[0].json()["status"] == "loading" and "retry-after" in responses[1].headers


def test_a_loading_error_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no-such"), served(tmp_path / "no-such"):
        pass


def test_a_disconnected_client_frees_its_pages(server: Served) -> None:
    """In every API, streaming or not."""
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 900}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", LONG),
        ("/v1/completions", {**LONG, "stream": True, "n": 2}),
        ("/v1/chat/completions", {**chat, "stream": True, "ignore_eos": True}),
        ("/v1/messages", {**chat, "stream": True}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 900}),
    ]
    for path, body in requests:
        disconnect_early(server, path, body)
        wait_until(lambda: is_clean(server))


def disconnect_early(server: Served, path: str, body: dict[str, Any]) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        wait_until(lambda: bool(server.engine.scheduler.running))


def test_a_slow_reader_delays_nobody(server: Served) -> None:
    """A client that does not read: its request ends in the engine, and others are answered."""
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


def test_a_silent_stream_sends_keep_alive_events(speaker: Path) -> None:
    """With one row, a second request waits behind a long one and receives keep-alive events."""
    short = {"max_tokens": 2, "stream": True}
    waiting: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/completions", {**short, "prompt": "a"}, ": "),
        ("/v1/messages", {**short, "messages": [{"role": "user", "content": "a"}]}, "event: ping"),
    ]
    with served(speaker, max_rows=1, keepalive_s=0.1) as running, running.client() as client:
        slow_down(running)
        for path, body, marker in waiting:
            with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as first:
                held = first.iter_lines()  # the stream would close without this reference
                next(held)
                with client.stream("POST", path, json=body) as second:
                    assert any(line.startswith(marker) for line in second.iter_lines())


def test_an_answer_that_takes_too_long_is_aborted(speaker: Path) -> None:
    with served(speaker, request_timeout_s=0.3) as running, running.client() as client:
        slow_down(running)
        response = client.post("/v1/completions", json=LONG)
        assert response.status_code == 504 and response.json()["error"]["code"] == "timeout"
        streamed = client.post("/v1/completions", json={**LONG, "stream": True})
        *_, error, done = [line for line in streamed.text.split("\n\n") if line.startswith("data: ")]
        assert json.loads(error[6:])["error"]["code"] == "timeout" and done == "data: [DONE]"
        wait_until(lambda: is_clean(running))


def slow_down(server: Served) -> None:
    """Adds 20 ms to every step of the engine."""
    step, pause = server.engine.step, threading.Event()

    def slow_step() -> Any:
        pause.wait(0.02)
        return step()

    server.engine.step = slow_step  # type: ignore[method-assign]


def test_a_drain_lets_running_requests_finish(speaker: Path) -> None:
    lines: list[str] = []
    with served(speaker) as running:
        slow_down(running)
        with running.client() as client, running.client() as other:
            assert other.get("/health").status_code == 200
            with client.stream(
                "POST", "/v1/completions", json={**LONG, "max_tokens": 40, "stream": True}
            ) as run:
                source = run.iter_lines()
                lines.append(next(source))
                running.stop()
                wait_until(lambda: running.service.bridge.draining)
                with pytest.raises(httpx.TransportError):
                    # Until the listening socket closes, a few requests are still answered with 503.
                    for _ in range(100):
                        assert other.post("/v1/completions", json=LONG).status_code == 503
                        time.sleep(0.01)
                lines += source
    assert any('"finish_reason":"length"' in line for line in lines) and lines[-2] == "data: [DONE]"


def test_a_drain_has_a_time_limit(speaker: Path) -> None:
    with served(speaker, drain_s=0.2) as running:
        slow_down(running)
        body = {**LONG, "stream": True}
        with running.client() as client, client.stream("POST", "/v1/completions", json=body) as run:
            source = run.iter_lines()
            next(source)
            running.stop()
            remaining = list(source)
    assert any("being stopped" in line for line in remaining)


def test_live_streams_do_not_prevent_a_stop(speaker: Path) -> None:
    with served(speaker) as running, running.client() as client, client.stream("GET", "/wager/live") as live:
        lines = live.iter_lines()
        next(lines)
        running.stop()
        assert list(lines) is not None


def test_a_failing_step_fails_its_requests_and_not_the_server(speaker: Path) -> None:
    with served(speaker) as running, running.client() as client:
        run = running.engine.runner.run
        running.engine.runner.run = lambda *args: 1 / 0  # type: ignore[method-assign]
        response = client.post("/v1/completions", json={"prompt": "a"})
        assert response.status_code == 500 and "the step failed" in response.json()["error"]["message"]
        streamed = client.post("/v1/completions", json={"prompt": "a", "stream": True})
        assert streamed.status_code == 200 and '"code":"engine"' in streamed.text
        running.engine.runner.run = run  # type: ignore[method-assign]
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_a_failed_engine_thread_is_reported(speaker: Path) -> None:
    """If the engine's thread fails, waiting clients get an error and health answers 503."""
    with served(speaker) as running, running.client() as client:

        def die() -> Any:
            raise MemoryError("gone")

        running.engine.step = die  # type: ignore[method-assign]
        response = client.post("/v1/completions", json={"prompt": "a"})
        assert response.status_code == 500 and "gone" in response.json()["error"]["message"]
        assert client.get("/health").status_code == 503
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 503
