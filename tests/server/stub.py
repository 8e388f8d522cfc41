"""A scripted server for tests of the page: it serves the page and answers without a model.

Tests use it for situations that a real server rarely produces on demand: errors, interrupted streams, a
steady speed. A word in the prompt selects one: `refuse-` and a status, `break-off` or `fail-inside`.
"""

from __future__ import annotations

import contextlib
import json
import mimetypes
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "wager" / "server" / "page"
POLICIES = ["auto", "ar", "fixed:K", "tree:B", "bod"]
ACCEPTED = (0, 3, 5, 2, 7, 4, 0, 1, 6, 3)
"""Number of accepted guesses in each step, repeated."""

THOUGHT = (
    "Monday has 35 pages. Tuesday has twice as many, so 35 * 2 = 70 pages. Wednesday has 15 fewer than "
    "Tuesday, so 70 - 15 = 55 pages. Together that is 35 + 70 + 55 = 160 pages. The book has 240 pages, so "
    "240 - 160 = 80 pages are left to read. Let me check the sums once more before I answer. "
)
ANSWER = """Start with plants that forgive mistakes: radishes, lettuce, chives and bush beans. They grow \
well in boxes, do not mind an afternoon in the shade, and are ready within a few weeks.

Buy a potting soil without peat and mix in a little compost. Water in the morning, when the upper two \
centimetres of soil feel dry; on hot days that may be every day, on cool ones twice a week.

```python
def needs_water(soil, hot):
    return soil.is_dry() or hot
```

Cafés say it best: "naïve" gardeners water too much."""
CODE = """

    queue = deque([[start]])
    seen = {start}
    while queue:
        path = queue.popleft()
        node = path[-1]
        if node == goal:
            return path
        for neighbour in graph[node]:
            if neighbour not in seen:
                seen.add(neighbour)
                queue.append([*path, neighbour])
    return []
"""


class State:
    """The state of the stub server: its policy, its API key and all request bodies it received."""

    def __init__(self, step_s: float = 0.004, api_key: str | None = None) -> None:
        self.step_s = step_s
        self.api_key = api_key
        self.policy = "auto"
        self.running = 0
        self.served = 0
        self.aborted = 0
        self.bodies: list[dict[str, Any]] = []


def pieces(text: str) -> list[str]:
    return re.findall(r"\s?\w{1,6}|\s?[^\w\s]+|\s", text)


def scripted_steps(texts: list[str], mode: str) -> Iterator[list[dict[str, Any]]]:
    """Tokens grouped into steps: accepted guesses, then the target's own token."""
    at = step = 0
    while at < len(texts):
        num_accepted = 0 if mode == "off" else ACCEPTED[step % len(ACCEPTED)]
        bet = 0 if mode == "off" else num_accepted + (step * 3) % 4
        group = [_guess(text, bet, depth) for depth, text in enumerate(texts[at : at + num_accepted], 1)]
        at += len(group)
        if at < len(texts):
            group.append({"text": texts[at], "origin": "target", "bet": bet, "depth": 0, "confidence": None})
            at += 1
        yield group
        step += 1


def _guess(text: str, bet: int, depth: int) -> dict[str, Any]:
    return {"text": text, "origin": "guess", "bet": bet, "depth": depth, "confidence": round(0.98**depth, 3)}


def _forced(text: str) -> dict[str, Any]:
    return {"text": text, "origin": "forced", "bet": 0, "depth": 0, "confidence": None}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/":
            self._file(PAGE / "index.html")
        elif not path.startswith("/page/") and self._locked():
            self._refuse(401, "an API key is needed")
        elif path.startswith("/page/") and "/" not in path[6:] and (PAGE / path[6:]).is_file():
            self._file(PAGE / path[6:])
        elif path == "/v1/models":
            self._json({"object": "list", "data": [{"id": "demo", "object": "model"}]})
        elif path == "/props":
            self._json({"policies": POLICIES, "config": {}})
        elif path == "/wager/live":
            self._live()
        else:
            self._refuse(404, f"no such path: {path}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.state.bodies.append({"path": self.path, **body})
        if self._locked():
            self._refuse(401, "an API key is needed")
        elif self.path == "/wager/policy":
            self._set_policy(body["policy"])
        elif self.path == "/v1/chat/completions":
            self._answer(body, str(body["messages"][-1]["content"]))
        elif self.path == "/v1/completions":
            self._answer(body, str(body["prompt"]))
        else:
            self._refuse(404, f"no such path: {self.path}")

    def _locked(self) -> bool:
        wanted = self.state.api_key
        return wanted is not None and self.headers.get("authorization") != f"Bearer {wanted}"

    def _set_policy(self, name: str) -> None:
        if name == "bod":
            self._refuse(400, "policy: bod is not allowed here")
            return
        self.state.policy = name
        self._json({"policy": name})

    def _file(self, path: Path) -> None:
        self._send(200, mimetypes.guess_type(path.name)[0] or "text/plain", path.read_bytes())

    def _json(self, body: object) -> None:
        self._send(200, "application/json", json.dumps(body).encode())

    def _refuse(self, status: int, message: str, **headers: str) -> None:
        body = json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode()
        self._send(status, "application/json", body, **headers)

    def _send(self, status: int, kind: str, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _begin_stream(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()

    def _event(self, body: object) -> None:
        data = body if isinstance(body, str) else json.dumps(body)
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def _live(self) -> None:
        self._begin_stream()
        with contextlib.suppress(OSError):
            for tick in range(10_000):
                self._event(self._figures(tick))
                time.sleep(0.5)

    def _figures(self, tick: int) -> dict[str, Any]:
        state, wave = self.state, (tick * 7) % 5
        busy = state.running > 0
        return {
            "t": float(tick) / 2,
            "running": state.running,
            "waiting": 0,
            "max_rows": 8,
            "pages_used": 12 + 9 * state.running,
            "pages_total": 128,
            "tokens_per_s": 61.0 + 6 * wave if busy else 0.0,
            "tokens_per_step": 2.4 + wave / 5,
            "bet_mean": 4.0 + wave,
            "bet_histogram": [12, 3, 5, 9, 14, 11, 8, 6, 9, 4, 2, 1],
            "acceptance_by_depth": [0.86, 0.79, 0.74, 0.66, 0.61, 0.55, 0.51, 0.44],
            "ledger_ms": 140.0 * state.served + 30.0 * wave,
            "speedup": 1.62,
            "policy": state.policy,
        }

    def _answer(self, body: dict[str, Any], prompt: str) -> None:
        refused = re.search(r"refuse-(\d+)", prompt)
        if refused:
            status = int(refused[1])
            self._refuse(status, "the queue is full", **({"Retry_After": "3"} if status == 429 else {}))
            return
        self._begin_stream()
        self.state.running += 1
        try:
            self._stream(body, prompt)
            self.state.served += 1
        except OSError:
            self.state.aborted += 1
        finally:
            self.state.running -= 1

    def _stream(self, body: dict[str, Any], prompt: str) -> None:
        chat = "messages" in body
        budget = _budget(body)
        mode = body.get("speculation", {}).get("mode", "auto")
        report = body.get("speculation", {}).get("report") == "tokens"
        left = int(body["max_tokens"])
        for steps, (field, group) in enumerate(_script(chat, budget, mode), 1):
            kept = group[:left]
            left -= len(kept)
            time.sleep(self.state.step_s)
            self._event(_chunk(chat, field, kept, report, self.state.step_s * 1000))
            if steps == 6 and "break-off" in prompt:
                return
            if steps == 6 and "fail-inside" in prompt:
                self._event({"error": {"message": "the target failed", "type": "server_error"}})
                return
            if not left:
                break
        self._end(chat, budget, "stop" if left else "length", mode)

    def _end(self, chat: bool, budget: int | None, reason: str, mode: str) -> None:
        last = _chunk(chat, "content", [], False, 0.0)
        last["choices"][0]["finish_reason"] = reason
        if budget is not None:
            last["choices"][0]["finish_details"] = {"close_kind": "hard", "thinking_tokens": budget}
        self._event(last)
        figures = {
            "mode": mode,
            "tokens_per_step": 3.62,
            "draft_acceptance_rate": 0.68,
            "num_draft_tokens": 90,
        }
        figures |= {"ledger_ms": 740.0, "speedup": 1.62}
        metrics = {} if mode == "off" else {"metrics": {"speculative_decoding": figures}}
        self._event({"choices": [], "usage": {"completion_tokens": 1}, **metrics})
        self._event("[DONE]")


def _budget(body: dict[str, Any]) -> int | None:
    thinking = body.get("thinking") or {}
    return thinking["budget_tokens"] if thinking.get("type") == "enabled" else None


def _script(chat: bool, budget: int | None, mode: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    if budget is not None:
        for group in scripted_steps(pieces(THOUGHT * 9)[:budget], mode):
            yield "reasoning_content", group
        yield "", [_forced(text) for text in ("\n", "</think>", "\n")]
    for group in scripted_steps(pieces(ANSWER if chat else CODE), mode):
        yield "content", group


def _chunk(
    chat: bool, field: str, group: list[dict[str, Any]], report: bool, step_ms: float
) -> dict[str, Any]:
    text = "".join(token["text"] for token in group)
    choice: dict[str, Any] = {"index": 0, "finish_reason": None}
    if chat:
        choice["delta"] = {field: text} if field else {}
    else:
        choice["text"] = text
    body: dict[str, Any] = {"object": "chat.completion.chunk", "choices": [choice]}
    return {**body, "wager": {"tokens": group, "step_ms": step_ms}} if report else body


@contextlib.contextmanager
def serving(state: State) -> Iterator[str]:
    """Runs the stub and yields its address."""
    handler = type("BoundHandler", (Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
