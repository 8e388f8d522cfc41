"""Server-sent events: how a stream is written, how it ends, and how a client that has gone is noticed.

A source yields bytes, ready made by its dialect. The response ends with the source; the source is closed
whenever the response is, for whatever reason, so that whoever feeds it can let go of what it holds. Knows no
dialect and no engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from wager.server.doors import visit_of
from wager.server.problems import json_bytes

__all__ = ["DONE", "KEEP_ALIVE", "EventStream", "data", "event", "unless_gone"]

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": still here\n\n"
_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # proxies of that family would hold events back
}


def data(body: Any) -> bytes:
    """One event without a name."""
    return b"data: " + json_bytes(body) + b"\n\n"


def event(name: str, body: Any) -> bytes:
    """One event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + json_bytes(body) + b"\n\n"


class EventStream(Response):
    """A response that is written as its source yields."""

    media_type = "text/event-stream"

    def __init__(self, source: AsyncGenerator[bytes, None], limit_s: float | None = None) -> None:
        """`limit_s`: after so long the connection is given up, however slowly its client reads."""
        self._source = source
        self._limit_s = limit_s
        self.status_code = 200
        self.background = None
        self.init_headers(_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                await unless_gone(receive, lambda: self._write(send))
        except (TimeoutError, ClientDisconnect):
            # The status has been sent: that the stream was left shows in the access line alone.
            visit_of(scope).notes["gone"] = True
        finally:
            await self._source.aclose()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for part in self._source:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_gone(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """Do the work, unless the client goes away first: then it is cancelled, and ClientDisconnect raised."""
    working = asyncio.ensure_future(work())
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
