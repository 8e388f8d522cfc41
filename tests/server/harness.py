"""A real server on a loopback port, in a thread of its own, around a small random model that speaks.

Shared by the tests of the server. The model's tokenizer knows marks for thinking and tools, and its chat
template is written like those of models that think. Nothing here has learned anything.
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
from wager.config import with_values
from wager.engine.engine import Engine
from wager.resolve import stated
from wager.server.run import bind, web_server
from wager.server.service import Service
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
    """A random target with tokenizer and chat template."""
    save_target(folder, "qwen3", 4, vocab_size=VOCAB, max_position_embeddings=1024, **changes)
    backend = train_byte_level()
    backend.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<|start|>", "eos_token": "<|end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@dataclass
class Served:
    """A server that runs."""

    url: str
    service: Service
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
    """Serve a model; yields once it is ready. Raises what loading raises; `before` is called meanwhile."""
    config = with_values(ServeConfig(), **{**SETTINGS, "model": str(model), **settings})
    sock = bind(config.server.host, 0)
    ready, outcome = threading.Event(), {}

    async def run() -> None:
        service = Service(stated(config), load)
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
    assert ready.wait(PATIENCE_S), "the server did not come up"
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


def wait_until(is_so: Callable[[], bool]) -> None:
    """Let the server get there; fails when it does not."""
    patience = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if is_so():
            return
        patience.wait(0.01)
    raise AssertionError("it never came to that")
