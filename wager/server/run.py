"""Runs the application with uvicorn: the socket, the signals and the drain.

The socket is bound before the model is loaded, so that a port in use is reported at once. The first SIGTERM
or interrupt begins a drain; a second one aborts the running requests. `wager serve` calls it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from wager.errors import InputError
from wager.garbage import settle_garbage
from wager.resolve import Resolved
from wager.server.app import make_app
from wager.server.model_service import ModelService, loading_error
from wager.server_config import ServeConfig

log = logging.getLogger("wager.server")

_BACKLOG = 2048


class Server(uvicorn.Server):
    """A uvicorn server that drains before it stops."""

    def __init__(self, config: uvicorn.Config, service: ModelService) -> None:
        super().__init__(config)
        self._service = service

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing: `serve` installs its own signal handlers, which call `stop`."""
        yield

    def stop(self) -> None:
        """The first call lets running requests finish; the second call aborts them."""
        service = self._service
        if self.should_exit:
            self.force_exit = True
            service.bridge.abort_all()
            return
        log.info("stopping: running requests have %g s to finish", service.config.drain_s)
        service.drain()
        asyncio.get_running_loop().call_later(service.config.drain_s, service.bridge.abort_all)
        self.should_exit = True


def web_server(service: ModelService) -> Server:
    """A uvicorn server with the application."""
    config = uvicorn.Config(
        make_app(service),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=round(service.config.drain_s) + 5,
        ws="none",
    )
    return Server(config, service)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises InputError if the address cannot be used."""
    sock = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror or error}", "port") from error
    return sock


def serve(settings: Resolved[ServeConfig], on_ready: Callable[[ModelService, int], None]) -> None:
    """Run until stopped. `on_ready` is called with the port when requests can be answered."""
    config = settings.config.server
    sock = bind(config.host, config.port)
    port = sock.getsockname()[1]

    def ready(service: ModelService) -> None:
        settle_garbage()
        on_ready(service, port)

    try:
        asyncio.run(_serve(settings, sock, ready))
    finally:
        sock.close()


async def _serve(
    settings: Resolved[ServeConfig], sock: socket.socket, on_ready: Callable[[ModelService], None]
) -> None:
    service = ModelService(settings)
    server = web_server(service)
    errors: list[BaseException] = []

    def fail(error: BaseException) -> None:
        errors.append(error)
        server.should_exit = True

    service.on_failed = fail
    service.on_ready = lambda: on_ready(service)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    await server.serve([sock])
    if errors:
        raise loading_error(errors[0])
