"""What every request passes on its way in: host, key, size and time of its body; and the line it leaves.

A plain ASGI layer in front of the application, so that it sees refusals and streams alike. Bodies are read
here whole, under their limits, and handed on. It knows neither dialects nor the engine.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wager.errors import InputError
from wager.server.problems import Problem, problem_of
from wager.server_config import ServerConfig, listed

log = logging.getLogger("wager.server")
access = logging.getLogger("wager.access")

PAGE_PATH = "/page/"
OPEN_PATHS = frozenset({"/health", "/", "/favicon.ico"})
"""What is shown without a key: whether it lives, and the page with its parts, which asks for one itself."""

GONE = 499
"""The status in the access line of a client that went away."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MOST_DISCARDED = 64 << 20  # bytes of a body too large that are still read, so that its sender hears why


@dataclass
class Visit:
    """One request as the access line tells it. Routes add what they know."""

    request_id: str
    method: str
    path: str
    client: str
    """The key's fingerprint, or the address where no key is needed."""
    began_s: float = field(default_factory=time.monotonic)
    status: int = GONE
    started: bool = False
    notes: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        facts = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": self.request_id,
            "client": self.client,
            "method": self.method,
            "path": self.path[:200],
            "status": self.status,
            "ms": round((time.monotonic() - self.began_s) * 1e3, 1),
            **self.notes,
        }
        return json.dumps(facts)


def visit_of(scope: Scope) -> Visit:
    visit: Visit = scope["state"]["visit"]
    return visit


class Doors:
    """The layer. `on_leave` hears of every request that is done."""

    def __init__(self, app: ASGIApp, config: ServerConfig, on_leave: Callable[[Visit, Scope], None]) -> None:
        self._app = app
        self._config = config
        self._keys = read_keys(config)
        self._hosts = allowed_hosts(config)
        self._on_leave = on_leave
        self._max_body = int(config.max_body_mib * (1 << 20))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        visit = _visit(scope, headers)
        scope.setdefault("state", {})["visit"] = visit
        try:
            await self._pass(scope, receive, _watched(send, visit), headers)
        except ClientDisconnect:
            visit.notes["gone"] = True
        finally:
            self._on_leave(visit, scope)
            if self._config.access_log:
                access.info(visit.line())

    async def _pass(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        visit = visit_of(scope)
        try:
            self._check_host(headers)
            self._check_key(scope["path"], headers, visit)
            if scope["method"] in ("POST", "PUT", "PATCH"):
                receive = await self._read(receive, headers)
            await self._app(scope, receive, send)
        except ClientDisconnect:
            raise
        except Exception as error:
            # The application answers its own faults; one of a stream that has begun can only be logged.
            if not visit.started:
                await problem_of(error).response(scope["path"])(scope, receive, send)
            elif "error" not in visit.notes:
                log.error("%s %s met a fault", visit.method, visit.path, exc_info=error)

    def _check_host(self, headers: Headers) -> None:
        """Against pages that have their own name point to this address."""
        name = _host_name(headers.get("host", ""))
        if self._hosts is not None and name not in self._hosts:
            raise Problem(403, "this server is not addressed by that name (see allowed_host)", code="host")

    def _check_key(self, path: str, headers: Headers, visit: Visit) -> None:
        if not self._keys or path in OPEN_PATHS or path.startswith(PAGE_PATH):
            return
        shown = _shown_key(headers)
        digest = hashlib.sha256(shown.encode()).digest()
        # Every key is compared, each in constant time: how long it takes says nothing.
        if not sum(hmac.compare_digest(digest, key) for key in self._keys):
            why = "an API key is needed" if not shown else "this API key is not known"
            raise Problem(401, why, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        visit.client = f"key-{digest.hex()[:8]}"

    async def _read(self, receive: Receive, headers: Headers) -> Receive:
        """Read the body under its limits; what comes back replays it and then goes on listening."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        too_large = int(length) > self._max_body if (length := _length(headers)) else False
        try:
            async with asyncio.timeout(self._config.body_timeout_s):
                body = await _whole(receive, 0 if too_large else self._max_body)
        except TimeoutError:
            raise Problem(408, "the body took too long to arrive", headers={"Connection": "close"}) from None
        if not body and body is not None:
            raise Problem(400, "the body is empty: JSON is expected")
        if body is None:
            limit = f"the body is larger than {self._config.max_body_mib:g} MiB"
            raise Problem(413, limit, code="body_too_large", headers={"Connection": "close"})
        if kind != "application/json" and not kind.endswith("+json"):
            raise Problem(415, "send the body as application/json")
        return _replayed(body, receive)


def _visit(scope: Scope, headers: Headers) -> Visit:
    given = headers.get("x-request-id", "")
    request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    peer = scope.get("client")
    return Visit(request_id, scope["method"], scope["path"], peer[0] if peer else "")


def _watched(send: Send, visit: Visit) -> Send:
    """Sees the status, and names the request in the answer."""

    async def watched(message: Message) -> None:
        if message["type"] == "http.response.start":
            visit.status, visit.started = message["status"], True
            MutableHeaders(scope=message)["x-request-id"] = visit.request_id
        await send(message)

    return watched


async def _whole(receive: Receive, limit: int) -> bytes | None:
    """The whole body; None where it is over the limit: then it was read on, within reason, and dropped."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limit:
            parts.clear()
            if size > _MOST_DISCARDED:
                return None
        else:
            parts.append(part)
    return b"".join(parts) if size <= limit else None


def _replayed(body: bytes, receive: Receive) -> Receive:
    unread = True

    async def replayed() -> Message:
        nonlocal unread
        if unread:
            unread = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replayed


def _length(headers: Headers) -> str | None:
    text = headers.get("content-length", "")
    return text if text.isascii() and text.isdecimal() and len(text) < 19 else None


def _shown_key(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token else headers.get("x-api-key", "")


def _host_name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_hosts(config: ServerConfig) -> frozenset[str] | None:
    """The names requests may be addressed to; None: any."""
    if config.allowed_host:
        return frozenset(name.lower() for name in listed(config.allowed_host))
    return _LOOPBACK | {config.host.lower()} if is_loopback(config.host) else None


def read_keys(config: ServerConfig) -> tuple[bytes, ...]:
    """Digests of the keys that are let in. Raises InputError where the file cannot be read or is empty."""
    keys = list(listed(config.api_key))
    if config.api_key_file:
        try:
            lines = Path(config.api_key_file).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{config.api_key_file} cannot be read: {error}", "api_key_file") from error
        found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not found:
            raise InputError(f"{config.api_key_file} holds no key", "api_key_file")
        keys += found
    return tuple(hashlib.sha256(key.encode()).digest() for key in keys)
