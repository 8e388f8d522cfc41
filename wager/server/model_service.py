"""One model served over HTTP: its start and end, and the objects that all routes share.

There is one `ModelService` per application. It is made before the model is loaded and completed when the
model is ready. It owns the bridge to the engine's thread, the request builder, the monitor and the metrics,
and it drains the server. It does not know the API formats.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import Request

from wager.engine.assemble import build_engine
from wager.engine.engine import Engine
from wager.errors import WagerError
from wager.resolve import Resolved
from wager.server.api_errors import ApiError, unknown_model
from wager.server.bridge import Bridge
from wager.server.engine_monitor import EngineMonitor
from wager.server.generation import Generation
from wager.server.generation_request import GenerationRequest
from wager.server.metrics import Metrics
from wager.server.middleware import is_loopback
from wager.server.request_builder import RequestBuilder
from wager.server_config import ServeConfig, ServerConfig, split_list

log = logging.getLogger("wager.server")

TICK_S = 0.5


class _LoadedParts(NamedTuple):
    """What exists once the model is loaded."""

    monitor: EngineMonitor
    builder: RequestBuilder


class ModelService:
    """The running server behind its routes."""

    def __init__(self, settings: Resolved[ServeConfig], load: Callable[[], Engine] | None = None) -> None:
        """`load` makes the engine in its own thread; without it the engine is made from the settings."""
        self.settings = settings
        self.config: ServerConfig = settings.config.server
        self.metrics = Metrics()
        self.bridge = Bridge(load or (lambda: build_engine(settings.config.engine())), self.config.max_queue)
        self.bridge.on_loaded = self._complete
        self.bridge.on_end = self.metrics.count_end
        self.started_s = time.time()
        self.stopping = asyncio.Event()
        """Set when a drain begins, so that endless streams end."""
        self.on_ready: Callable[[], None] = lambda: None
        self.on_failed: Callable[[BaseException], None] = lambda _error: None
        self._ticking: asyncio.Task[None] | None = None
        self._parts: _LoadedParts | None = None

    # -- start and end

    def start(self) -> None:
        """Start to load the model."""
        self.bridge.start().add_done_callback(self._report_loading)
        self._ticking = asyncio.create_task(self._tick())

    def drain(self) -> None:
        """Accept no new requests; running requests continue."""
        self.bridge.draining = True
        self.stopping.set()

    async def stop(self) -> None:
        """Abort the requests that still run and end the engine's thread."""
        self.drain()
        if self._ticking is not None:
            self._ticking.cancel()
        await asyncio.to_thread(self.bridge.close)
        if self._parts is not None:
            self._parts.builder.prompts.close()

    def _complete(self, engine: Engine) -> None:
        """Called in the engine's thread before its first step."""
        self._parts = _LoadedParts(EngineMonitor(engine), RequestBuilder(engine, self.settings.config))
        self.metrics.watch(engine, self._parts.monitor)

    def _report_loading(self, ready: asyncio.Future[Engine]) -> None:
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
            if self._parts is not None:
                self._parts.monitor.tick()

    # -- used by routes

    @property
    def engine(self) -> Engine:
        """Raises NotReady."""
        return self.bridge.ready_engine()

    @property
    def builder(self) -> RequestBuilder:
        """Raises NotReady."""
        return self._loaded().builder

    @property
    def monitor(self) -> EngineMonitor:
        """Raises NotReady."""
        return self._loaded().monitor

    def _loaded(self) -> _LoadedParts:
        self.bridge.ready_engine()
        assert self._parts is not None
        return self._parts

    @property
    def names(self) -> tuple[str, ...]:
        """The names that clients may use for the model; the first one is the default."""
        model = self.settings.config.model.model
        return split_list(self.config.served_name) or (Path(model).name if Path(model).exists() else model,)

    @property
    def is_open(self) -> bool:
        """Whether clients on other machines can use the server without a key."""
        return not (self.config.api_key or self.config.api_key_file or is_loopback(self.config.host))

    def model_name(self, requested: str | None) -> str:
        """The model name for the answer. Raises ApiError if the request names another model."""
        if requested is not None and requested not in self.names:
            raise unknown_model(requested, self.names)
        return requested or self.names[0]

    async def generate(self, request: GenerationRequest) -> Generation:
        """Submit a request to the engine. Raises ApiError and what the engine and the bridge raise."""
        if request.n > self.config.max_choices:
            raise ApiError(400, f"n: at most {self.config.max_choices} on this server", param="n")
        timeout_s, keepalive_s = self.config.request_timeout_s, self.config.keepalive_s
        return await Generation(self.bridge, request, timeout_s, keepalive_s).start()

    async def set_policy(self, name: str) -> str:
        """Change the policy. Raises ConfigError on a bad name."""
        engine = self.engine

        def change() -> str:
            engine.set_policy(name)
            return engine.controller.policy.name

        return await self.bridge.call(change)

    async def states(self) -> AsyncGenerator[dict[str, Any], None]:
        """The state of the engine, twice a second, until the server stops."""
        while not self.stopping.is_set():
            yield self.monitor.state()
            try:
                await asyncio.wait_for(self.stopping.wait(), TICK_S)
            except TimeoutError:
                continue


def service_of(request: Request) -> ModelService:
    service: ModelService = request.app.state.service
    return service


def loading_error(error: BaseException) -> BaseException:
    """The error that ends the process if loading fails; errors of other packages show their type."""
    return error if isinstance(error, WagerError) else WagerError(f"{type(error).__name__}: {error}")
