"""Writes answers over HTTP: the code that all generation routes share.

`respond` submits a request and answers it whole or as a stream. An `AnswerWriter` turns a generation into the
form of one API; `ChunkWriter` holds what chat completions and completions have in common. `EventStream` sends
server-sent events and stops when the client disconnects.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from typing import Any, ClassVar, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from wager.server.api_errors import ApiError, json_bytes, json_response, to_api_error
from wager.server.generation import Choice, Generation, Piece
from wager.server.generation_request import GenerationRequest
from wager.server.middleware import access_record
from wager.server.model_service import service_of
from wager.server.schemas.base import StreamOptions

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": still here\n\n"
_STREAM_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx and related proxies would buffer the events
}
_STREAM_GRACE_S = 5.0  # a slow reader may take this much longer than the answer itself


def data_event(body: Any) -> bytes:
    """A server-sent event without a name."""
    return b"data: " + json_bytes(body) + b"\n\n"


def named_event(name: str, body: Any) -> bytes:
    """A server-sent event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + json_bytes(body) + b"\n\n"


class EventStream(Response):
    """A response that sends what its source yields, and closes the source when the response ends."""

    media_type = "text/event-stream"

    def __init__(self, source: AsyncGenerator[bytes, None], limit_s: float | None = None) -> None:
        """`limit_s`: the connection is closed after this time, however slowly its client reads."""
        self._source = source
        self._limit_s = limit_s
        self.status_code = 200
        self.background = None
        self.init_headers(_STREAM_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                await unless_disconnected(receive, lambda: self._write(send))
        except (TimeoutError, ClientDisconnect):
            # The status has already been sent, so only the access log can show that the client left.
            access_record(scope).details["gone"] = True
        finally:
            await self._source.aclose()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for part in self._source:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_disconnected(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """Await the work. If the client disconnects first, cancel it and raise ClientDisconnect."""
    working = asyncio.ensure_future(work())
    watching = asyncio.ensure_future(_wait_for_disconnect(receive))
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


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class AnswerWriter(ABC):
    """Turns one generation into the form of one API."""

    keep_alive: ClassVar[bytes] = KEEP_ALIVE
    """Sent when a stream was silent for `keepalive_s`."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""

    def start_events(self) -> Iterable[bytes]:
        """The events before the first piece."""
        return ()

    @abstractmethod
    def piece_events(self, piece: Piece) -> Iterable[bytes]:
        """The events of a piece."""

    @abstractmethod
    def end_events(self) -> Iterable[bytes]:
        """The events after the last piece."""

    @abstractmethod
    def error_events(self, error: ApiError) -> Iterable[bytes]:
        """The last events of a stream that fails."""

    async def stream(self, log_details: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        """All events; adds the outcome to the details of the access log."""
        for event in self.start_events():
            yield event
        try:
            async with aclosing(self.generation.pieces()) as pieces:
                async for piece in pieces:
                    for event in (self.keep_alive,) if piece is None else self.piece_events(piece):
                        yield event
            log_details |= self.outcome()
            for event in self.end_events():
                yield event
        except Exception as error:
            log_details["error"] = True
            for event in self.error_events(to_api_error(error)):
                yield event

    def outcome(self) -> dict[str, Any]:
        """For the access log."""
        reasons = sorted({choice.finish or "" for choice in self.generation.choices})
        return {"output_tokens": self.generation.usage.output_tokens, "finish": ",".join(reasons)}


async def respond(
    http: Request,
    request: GenerationRequest,
    make_writer: Callable[[Generation], AnswerWriter],
    stream: bool | None,
) -> Response:
    """Generate the answer to a request. Raises what the engine and the bridge raise."""
    service, log_details = service_of(http), access_record(http.scope).details
    log_details |= {
        "model": request.model,
        "prompt_tokens": request.num_prompt_tokens,
        "stream": bool(stream),
    }
    generation = await service.generate(request)
    writer = make_writer(generation)
    if stream:
        limit_s = service.config.request_timeout_s + _STREAM_GRACE_S
        return EventStream(writer.stream(log_details), limit_s)
    await unless_disconnected(http.receive, generation.wait)
    log_details |= writer.outcome()
    return json_response(writer.whole())


class ChunkWriter(AnswerWriter):
    """The common part of chat completions and completions: chunks, usage and the end of a stream."""

    id_prefix: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, generation: Generation, options: StreamOptions | None) -> None:
        super().__init__(generation)
        self.head = {
            "id": f"{self.id_prefix}-{uuid.uuid4().hex}",
            "object": self.chunk_object,
            "created": int(time.time()),
            "model": generation.request.model,
        }
        self._include_usage = options.include_usage if options is not None else None
        self._num_unfinished = len(generation.choices)

    @abstractmethod
    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """The chunks of a piece; the last chunk of a choice says why it ended."""

    def piece_events(self, piece: Piece) -> Iterator[bytes]:
        chunks = self.chunks(piece)
        self._num_unfinished -= piece.finish is not None
        if not self._num_unfinished and self._include_usage is None:
            chunks[-1] |= self.totals()
        return map(data_event, chunks)

    def end_events(self) -> Iterator[bytes]:
        if self._include_usage:
            yield data_event({**self.head, "choices": [], **self.totals()})
        yield DONE

    def error_events(self, error: ApiError) -> Iterator[bytes]:
        yield data_event(error.body())
        yield DONE

    def totals(self) -> dict[str, Any]:
        usage = self.generation.usage
        counts = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        }
        return {"usage": counts, "metrics": self.generation.statistics()}

    def whole_choice(self, choice: Choice, fields: dict[str, Any]) -> dict[str, Any]:
        """A choice of an answer that is not streamed."""
        body = {"index": choice.index, **fields, "finish_reason": choice.finish, **finish_details(choice)}
        return {**body, "wager": {"tokens": choice.tokens}} if choice.tokens else body

    def chunk(self, piece: Piece, choice: dict[str, Any]) -> dict[str, Any]:
        """A chunk with one choice, and the origins of its tokens if the request asks for them."""
        body = {**self.head, "choices": [{"index": piece.index, **choice}]}
        if piece.tokens:
            body["wager"] = {"tokens": piece.tokens, "step_ms": round(piece.step_ms, 3)}
        return body


def finish_details(choice: Choice) -> dict[str, Any]:
    """How thinking ended, and which stop string or stop token ended the choice."""
    sequence = choice.last.sequence if choice.last is not None else None
    if sequence is None:
        return {}
    matched = sequence.matched_stop
    is_requested = isinstance(matched, str) or matched in sequence.params.stop_token_ids
    details: dict[str, Any] = {"stop_reason": matched if is_requested else None}
    if sequence.close is not None:
        details["finish_details"] = {
            "close_kind": sequence.close.kind.value,
            "thinking_tokens": sequence.close.thinking_tokens,
            "content_tokens": sequence.close.content_tokens,
            "repeat_stopped": sequence.repeat_stopped,
        }
    return details
