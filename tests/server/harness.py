"""A real server on a loopback port in its own thread, with a small random model.

The model's tokenizer has marks for thinking and tools, and its chat template is like that of a model that
thinks. The weights are random.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tokenizers import AddedToken

from tests.nn.tiny import save_target
from tests.text.conftest import train_byte_level
from wager.engine.engine import Engine
from wager.resolve import resolve
from wager.server.model_service import ModelService
from wager.server.run import bind, web_server
from wager.server_config import ServeConfig

VOCAB = 400
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
TEMPLATE = (
    "{% if tools %}tools {{ tools | tojson }}{{ '\\n' }}{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: "
    "{% if enable_thinking is defined and enable_thinking %}<think>"
    "{% elif enable_thinking is defined %}<think></think>{% endif %}{% endif %}"
)
SETTINGS = {
    "drafter": "lookup",
    "layout": "out_in",
    "device": "cpu",
    "threads": 1,
    "num_pages": 400,
    "page_size": 8,
    "max_rows": 8,
    "port": 0,
    "access_log": False,
    "thinking_close": "</think>",
}
PATIENCE_S = 60.0


def save_speaker(folder: Path, **changes: Any) -> Path:
    """Saves a random target with tokenizer and chat template."""
    save_target(folder, "qwen3", 4, vocab_size=VOCAB, max_position_embeddings=1024, **changes)
    backend = train_byte_level()
    backend.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<|start|>", "eos_token": "<|end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@dataclass
class Served:
    """A running server."""

    url: str
    service: ModelService
    stop: Callable[[], None]

    @property
    def engine(self) -> Engine:
        return self.service.engine

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, **options)


@contextmanager
def served(
    model: Path | str,
    load: Callable[[], Engine] | None = None,
    before: Callable[[str], None] = lambda _url: None,
    **settings: Any,
) -> Iterator[Served]:
    """Serves a model; yields when it is ready. Raises what loading raises; calls `before` while it loads."""
    resolved = resolve(flags={**SETTINGS, "model": str(model), **settings}, root=ServeConfig)
    config = resolved.config
    sock = bind(config.server.host, 0)
    ready, outcome = threading.Event(), {}

    async def run() -> None:
        service = ModelService(resolved, load)
        server = web_server(service)
        loop = asyncio.get_running_loop()
        outcome.update(service=service, stop=lambda: loop.call_soon_threadsafe(server.stop))
        service.on_ready = ready.set
        service.on_failed = lambda error: (outcome.update(error=error), ready.set())
        await server.serve([sock])

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    before(url)
    assert ready.wait(PATIENCE_S), "the server did not start"
    try:
        if "error" in outcome:
            raise outcome["error"]
        yield Served(url, outcome["service"], outcome["stop"])
    finally:
        if thread.is_alive():
            outcome["stop"]()
        thread.join(PATIENCE_S)
        sock.close()
    assert not thread.is_alive(), "the server did not stop"


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds; fails after a time limit."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("the condition never held")
