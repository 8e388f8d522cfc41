"""Serve a closed loop of requests: a new request starts as soon as one ends, at most `places` at a time.

Three drivers do it: direct calls of the engine, the same with the observer that the server attaches, and the
server's bridge with its engine thread. They record times and tokens and know no policies. Used by load.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wager.engine.engine import Engine
from wager.errors import ModelError
from wager.records import SamplingParams
from wager.server.bridge import Bridge
from wager.server.engine_monitor import EngineMonitor
from wager.server.generation_request import GenerationRequest
from wager.server.response_queue import EngineUpdate, ResponseQueue

_PATIENCE_S = 60.0


class LoadRequest(NamedTuple):
    """One request of the load."""

    kind: str
    prompt_ids: list[int]
    params: SamplingParams


@dataclass
class ServedLoad:
    """Times and tokens of one run, filled while it is served. Times are seconds since its start."""

    num_requests: int
    start: float = field(default_factory=time.perf_counter)
    began_s: dict[int, float] = field(default_factory=dict)
    ended_s: dict[int, float] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    num_tokens: int = 0
    full_s: float = 0.0
    """How long every place was taken."""
    full_tokens: int = 0
    """Tokens written in that time."""

    def begin(self, index: int) -> None:
        self.began_s[index] = time.perf_counter() - self.start
        self.tokens[index] = []

    def extend(self, index: int, token_ids: Sequence[int]) -> None:
        self.tokens[index] += token_ids
        self.num_tokens += len(token_ids)

    def end(self, index: int, error: str | None) -> None:
        """Raises ModelError where the request failed."""
        if error:
            raise ModelError(error)
        self.ended_s[index] = time.perf_counter() - self.start

    def leave_place_empty(self) -> None:
        """A request has ended and none is left to take its place."""
        if not self.full_s:
            self.full_s, self.full_tokens = time.perf_counter() - self.start, self.num_tokens

    @property
    def wall_s(self) -> float:
        return max(self.ended_s.values())

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.wall_s

    @property
    def full_tokens_per_s(self) -> float:
        """Tokens per second while every place was taken."""
        return self.full_tokens / self.full_s

    @property
    def request_speeds(self) -> list[float]:
        """Tokens per second of every request, from the moment it was added until it ended."""
        return [
            len(self.tokens[index]) / (self.ended_s[index] - self.began_s[index])
            for index in range(self.num_requests)
        ]


Serve = Callable[[Engine, Sequence[LoadRequest], int], ServedLoad]


def serve_directly(engine: Engine, requests: Sequence[LoadRequest], places: int) -> ServedLoad:
    """Serve all requests by direct calls of the engine, at most `places` at a time."""
    load, waiting = ServedLoad(len(requests)), deque(enumerate(requests))
    running: set[int] = set()
    try:
        while waiting or running:
            while waiting and len(running) < places:
                index, request = waiting.popleft()
                load.begin(index)
                engine.add(index, request.prompt_ids, request.params)
                running.add(index)
            for event in engine.step():
                assert isinstance(event.request_id, int)
                load.extend(event.request_id, event.token_ids)
                if event.finish is not None:
                    running.remove(event.request_id)
                    load.end(event.request_id, event.error)
            if len(running) < places and not waiting:
                load.leave_place_empty()
    finally:
        for index in running:
            engine.abort(index)
        if running:
            engine.step()  # nothing runs any more: this takes the events of those aborted
    return load


def _attach_monitor(engine: Engine) -> None:
    EngineMonitor(engine)


def serve_with_listener(engine: Engine, requests: Sequence[LoadRequest], places: int) -> ServedLoad:
    """The same with the server's observer attached to the engine."""
    _attach_monitor(engine)
    try:
        return serve_directly(engine, requests, places)
    finally:
        engine.telemetry.listener = engine.controller.on_step = None


def serve_through_bridge(engine: Engine, requests: Sequence[LoadRequest], places: int) -> ServedLoad:
    """The same through the server's bridge: `places` clients on an event loop, the engine in its thread."""
    try:
        return asyncio.run(_serve_clients(engine, requests, places))
    finally:
        engine.telemetry.listener = engine.controller.on_step = None


async def _serve_clients(engine: Engine, requests: Sequence[LoadRequest], places: int) -> ServedLoad:
    bridge = Bridge(lambda: engine, max_queue=places)
    bridge.on_loaded = _attach_monitor
    await bridge.start()
    load, waiting = ServedLoad(len(requests)), deque(enumerate(requests))

    async def client() -> None:
        while waiting:
            index, request = waiting.popleft()
            queue, update = ResponseQueue(), EngineUpdate()
            load.begin(index)
            await bridge.submit(GenerationRequest("load", [request.prompt_ids], request.params), queue)
            while update.finish is None:
                for update in (await queue.take(_PATIENCE_S)).values():
                    load.extend(index, update.token_ids)
            load.end(index, update.error)
        load.leave_place_empty()

    try:
        await asyncio.gather(*[client() for _ in range(places)])
    finally:
        bridge.close()
    return load


DRIVERS: dict[str, Serve] = {
    "direct": serve_directly,
    "listener": serve_with_listener,
    "bridge": serve_through_bridge,
}
