"""What the routes share: the settings, the bridge to the engine, prompts, the meter and the metrics.

One per application, made before the model is loaded and filled in when it is. It owns beginning and end: the
engine's thread, the ticking meter, and the drain. Knows no dialect.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from wager.cards import ModelCard
from wager.engine.engine import Engine
from wager.errors import WagerError
from wager.resolve import Resolved
from wager.server.answers import Answer, Ask
from wager.server.bridge import Bridge
from wager.server.doors import is_loopback
from wager.server.meter import Meter
from wager.server.metrics import Metrics
from wager.server.problems import Problem, unknown_model
from wager.server.prompts import Prompts
from wager.server.thinking import Thinker, make_thinker, read_card
from wager.server_config import ServeConfig, ServerConfig, listed

log = logging.getLogger("wager.server")

TICK_S = 0.5


class Service:
    """The running server, behind its routes."""

    def __init__(self, settings: Resolved[ServeConfig], load: Callable[[], Engine] | None = None) -> None:
        """`load` makes the engine, in its own thread; without one it is made from the settings."""
        self.settings = settings
        self.config: ServerConfig = settings.config.server
        self.metrics = Metrics()
        self.bridge = Bridge(
            load or (lambda: Engine.from_config(settings.config.engine())), self.config.max_queue
        )
        self.bridge.on_loaded = self._loaded
        self.bridge.on_end = self.metrics.count_end
        self.began_s = time.time()
        self.ready: asyncio.Future[None] | None = None
        self.stopping = asyncio.Event()
        """Set when a drain begins: endless streams end."""
        self._ticking: asyncio.Task[None] | None = None
        self._meter: Meter | None = None
        self._prompts: Prompts | None = None
        self.thinker: Thinker | None = None
        """How the model thinks; None where it does not."""
        self.card: ModelCard | None = None
        self.on_ready: Callable[[], None] = lambda: None
        self.on_failed: Callable[[BaseException], None] = lambda _error: None

    # -- its life

    def start(self) -> None:
        """Begin to load the model."""
        self.ready = self.bridge.start()
        self.ready.add_done_callback(self._loaded_or_not)
        self._ticking = asyncio.create_task(self._tick())

    def drain(self) -> None:
        """Take no new requests; those that run go on."""
        self.bridge.draining = True
        self.stopping.set()

    async def stop(self) -> None:
        """End what still runs and let the engine go."""
        self.drain()
        if self._ticking is not None:
            self._ticking.cancel()
        await asyncio.to_thread(self.bridge.close)
        if self._prompts is not None:
            self._prompts.close()

    def _loaded(self, engine: Engine) -> None:
        """In the engine's thread, before its first step."""
        self._meter = Meter(engine)
        self._prompts = Prompts(engine)
        self.card = read_card(engine, self.settings.config)
        self.thinker = make_thinker(engine, self.settings.config, self.card)
        self.metrics.watch(engine, self._meter)

    def _loaded_or_not(self, ready: asyncio.Future[None]) -> None:
        if ready.cancelled():
            return
        error = ready.exception()
        if error is None:
            self.on_ready()
        else:
            log.debug("loading failed", exc_info=error)
            self.on_failed(error)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._meter is not None:
                self._meter.tick()

    # -- for routes

    @property
    def engine(self) -> Engine:
        """Raises NotReady."""
        return self.bridge.ready_engine()

    @property
    def prompts(self) -> Prompts:
        """Raises NotReady."""
        self.bridge.ready_engine()
        assert self._prompts is not None
        return self._prompts

    @property
    def meter(self) -> Meter:
        """Raises NotReady."""
        self.bridge.ready_engine()
        assert self._meter is not None
        return self._meter

    @property
    def model_card(self) -> ModelCard:
        """Raises NotReady."""
        self.bridge.ready_engine()
        assert self.card is not None
        return self.card

    @property
    def names(self) -> tuple[str, ...]:
        """What the model answers to; the first is its name in answers."""
        model = self.settings.config.model.model
        return listed(self.config.served_name) or (Path(model).name if Path(model).is_dir() else model,)

    @property
    def is_open(self) -> bool:
        """Whether anyone who can reach it may change how it runs: no key is asked for, from outside."""
        return not (self.config.api_key or self.config.api_key_file or is_loopback(self.config.host))

    def model_name(self, asked: str | None) -> str:
        """The name to answer with. Raises Problem where another model is asked for."""
        if asked is not None and asked not in self.names:
            raise unknown_model(asked, self.names)
        return asked or self.names[0]

    async def answer(self, ask: Ask) -> Answer:
        """Hand a request to the engine. Raises what the engine and the bridge refuse."""
        if ask.n > self.config.max_choices:
            raise Problem(400, f"n: at most {self.config.max_choices} here", param="n")
        patience_s, keepalive_s = self.config.request_timeout_s, self.config.keepalive_s
        return await Answer(self.bridge, ask, patience_s, keepalive_s).begin()

    async def set_policy(self, name: str) -> str:
        """Change the policy. Raises ConfigError on a bad name."""
        engine = self.engine

        def change() -> str:
            engine.set_policy(name)
            return engine.controller.policy.name

        return await self.bridge.call(change)

    async def states(self) -> AsyncGenerator[dict[str, Any], None]:
        """What the meter shows, twice a second, until the server stops."""
        while not self.stopping.is_set():
            yield self.meter.state()
            try:
                await asyncio.wait_for(self.stopping.wait(), TICK_S)
            except TimeoutError:
                continue


def loud(error: BaseException) -> BaseException:
    """What ends the process when loading fails: our own errors as they are, others with their kind."""
    return error if isinstance(error, WagerError) else WagerError(f"{type(error).__name__}: {error}")
