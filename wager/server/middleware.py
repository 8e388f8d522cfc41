"""The ASGI middleware in front of the application: host, key and body checks, and the access log.

It wraps the whole application, so that errors and streams are logged alike. It reads each request body under
the configured limits and hands it on. It knows neither the API formats nor the engine.
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
from wager.server.api_errors import ApiError, to_api_error
from wager.server_config import ServerConfig, split_list

log = logging.getLogger("wager.server")
access_log = logging.getLogger("wager.access")

PAGE_PATH = "/page/"
PUBLIC_PATHS = frozenset({"/health", "/", "/favicon.ico"})
"""Paths that need no key, besides the files of the page."""

CLIENT_CLOSED_REQUEST = 499
"""Status in the access log when the client disconnected before the answer began."""

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# An oversized body is read and discarded up to this size, so that the client receives the error.
_MAX_DISCARDED_BYTES = 64 << 20


@dataclass
class AccessRecord:
    """What the access log says about one request."""

    request_id: str
    method: str
    path: str
    client: str
    """The fingerprint of the API key, or the client's address where no keys are set."""
    started_s: float = field(default_factory=time.monotonic)
    status: int = CLIENT_CLOSED_REQUEST
    has_response: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    """Fields that the route adds, such as token counts."""

    def line(self) -> str:
        facts = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": self.request_id,
            "client": self.client,
            "method": self.method,
            "path": self.path[:200],
            "status": self.status,
            "ms": round((time.monotonic() - self.started_s) * 1e3, 1),
            **self.details,
        }
        return json.dumps(facts)


def access_record(scope: Scope) -> AccessRecord:
    record: AccessRecord = scope["state"]["access_record"]
    return record


class RequestMiddleware:
    """Checks every HTTP request; `on_end` is called after each one."""

    def __init__(
        self, app: ASGIApp, config: ServerConfig, on_end: Callable[[AccessRecord, Scope], None]
    ) -> None:
        self._app = app
        self._config = config
        self._key_digests = read_key_digests(config)
        self._hosts = allowed_hosts(config)
        self._on_end = on_end
        self._max_body_bytes = int(config.max_body_mib * (1 << 20))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        record = _new_record(scope, headers)
        scope.setdefault("state", {})["access_record"] = record
        try:
            await self._handle(scope, receive, _with_request_id(send, record), headers)
        except ClientDisconnect:
            record.details["gone"] = True
        finally:
            self._on_end(record, scope)
            if self._config.access_log:
                access_log.info(record.line())

    async def _handle(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        record = access_record(scope)
        try:
            self._check_host(headers)
            self._check_key(scope["path"], headers, record)
            if scope["method"] in ("POST", "PUT", "PATCH"):
                receive = await self._read_body(receive, headers)
            await self._app(scope, receive, send)
        except ClientDisconnect:
            raise
        except Exception as error:
            # Once a response has begun, an exception can only be logged.
            if not record.has_response:
                await to_api_error(error).response(scope["path"])(scope, receive, send)
            elif "error" not in record.details:
                log.error("%s %s failed after its response began", record.method, record.path, exc_info=error)

    def _check_host(self, headers: Headers) -> None:
        """Prevents DNS rebinding: a web page cannot reach this server through a host name of its own."""
        name = _host_name(headers.get("host", ""))
        if self._hosts is not None and name not in self._hosts:
            message = "the Host header does not name this server (see the setting allowed_host)"
            raise ApiError(403, message, code="host")

    def _check_key(self, path: str, headers: Headers, record: AccessRecord) -> None:
        if not self._key_digests or path in PUBLIC_PATHS or path.startswith(PAGE_PATH):
            return
        key = _sent_key(headers)
        digest = hashlib.sha256(key.encode()).digest()
        # Every key is compared in constant time, so that the duration reveals nothing about the keys.
        if not sum(hmac.compare_digest(digest, known) for known in self._key_digests):
            message = "this API key is not known" if key else "an API key is needed"
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        record.client = f"key-{digest.hex()[:8]}"

    async def _read_body(self, receive: Receive, headers: Headers) -> Receive:
        """Read the body under its limits. Returns a `receive` that replays it."""
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        is_too_large = _content_length(headers) > self._max_body_bytes
        try:
            async with asyncio.timeout(self._config.body_timeout_s):
                body = await _receive_body(receive, 0 if is_too_large else self._max_body_bytes)
        except TimeoutError:
            close = {"Connection": "close"}
            raise ApiError(408, "the body did not arrive in time", headers=close) from None
        if body is None:
            message = f"the body is larger than {self._config.max_body_mib:g} MiB"
            raise ApiError(413, message, code="body_too_large", headers={"Connection": "close"})
        if not body:
            raise ApiError(400, "the body is empty; JSON is expected")
        if content_type != "application/json" and not content_type.endswith("+json"):
            raise ApiError(415, "the content type must be application/json")
        return _replay(body, receive)


def _new_record(scope: Scope, headers: Headers) -> AccessRecord:
    given = headers.get("x-request-id", "")
    request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    peer = scope.get("client")
    return AccessRecord(request_id, scope["method"], scope["path"], peer[0] if peer else "")


def _with_request_id(send: Send, record: AccessRecord) -> Send:
    """Wraps `send`: notes the status in the record and adds the request id to the response headers."""

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status, record.has_response = message["status"], True
            MutableHeaders(scope=message)["x-request-id"] = record.request_id
        await send(message)

    return wrapped


async def _receive_body(receive: Receive, max_bytes: int) -> bytes | None:
    """The whole body, or None if it is too large: then it was read, within reason, and discarded."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > max_bytes:
            parts.clear()
            if size > _MAX_DISCARDED_BYTES:
                return None
        else:
            parts.append(part)
    return b"".join(parts) if size <= max_bytes else None


def _replay(body: bytes, receive: Receive) -> Receive:
    was_read = False

    async def replayed() -> Message:
        nonlocal was_read
        if not was_read:
            was_read = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replayed


def _content_length(headers: Headers) -> int:
    """The Content-Length header; 0 if it is missing or malformed."""
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


def _sent_key(headers: Headers) -> str:
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
    """The host names that requests may use; None means any name."""
    if config.allowed_host:
        return frozenset(name.lower() for name in split_list(config.allowed_host))
    return _LOOPBACK_NAMES | {config.host.lower()} if is_loopback(config.host) else None


def read_key_digests(config: ServerConfig) -> tuple[bytes, ...]:
    """SHA-256 digests of the accepted keys. Raises InputError if the key file is unreadable or empty."""
    keys = list(split_list(config.api_key))
    if config.api_key_file:
        try:
            lines = Path(config.api_key_file).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{config.api_key_file} cannot be read: {error}", "api_key_file") from error
        found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not found:
            raise InputError(f"{config.api_key_file} contains no key", "api_key_file")
        keys += found
    return tuple(hashlib.sha256(key.encode()).digest() for key in keys)
