"""How anything is refused: every error is one JSON body, `{"error": {"message", "type", "param", "code"}}`.

Bad requests are 400, never 422. The Messages dialect wants `"type": "error"` beside it and names of its own.
It does not know what was asked; doors.py, app.py and the streams call it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from wager.errors import CapacityError, ConfigError, InputError, RequestError, WagerError, one_line
from wager.server.bridge import Busy, NotReady

log = logging.getLogger("wager.server")

MESSAGES_PATH = "/v1/messages"
_LONGEST = 600  # characters of a message: what a client sent may be part of it

# The Messages dialect's names by status; what is not here is an invalid request below 500 and a fault above.
_MESSAGES_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable",
}


class Problem(WagerError):
    """A refusal as the client sees it."""

    def __init__(
        self,
        status: int,
        message: object,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self, path: str = "") -> dict[str, Any]:
        """The JSON that is sent, in the dialect of the path."""
        message = str(self)[:_LONGEST]
        if path.startswith(MESSAGES_PATH):
            kind = _MESSAGES_TYPES.get(self.status, _fallback(self.status, "api_error"))
            return {"type": "error", "error": {"type": kind, "message": message}}
        kind = _TYPES.get(self.status, _fallback(self.status, "server_error"))
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, path: str) -> Response:
        return json_response(self.body(path), self.status, self.headers)


def _fallback(status: int, fault: str) -> str:
    return fault if status >= 500 else "invalid_request_error"


def problem_of(error: BaseException) -> Problem:
    """The refusal that an exception stands for; a fault of our own where it is none of those on purpose."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error.errors())
    if isinstance(error, HTTPException):
        return _plain_http(error)
    if isinstance(error, Busy):
        return Problem(429, error, code="queue_full", headers={"Retry-After": str(error.retry_after_s)})
    if isinstance(error, NotReady):
        return Problem(503, error, code="not_ready", headers={"Retry-After": "2"})
    if isinstance(error, RequestError | InputError | ConfigError):
        return Problem(400, error, param=error.field)
    if isinstance(error, CapacityError):
        return Problem(400, error, code="capacity")
    log.error("a request met a fault of the server", exc_info=error)
    return Problem(500, "the server has a fault; its log says more", code="internal")


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(body), status, headers, media_type="application/json")


def json_bytes(body: object) -> bytes:
    """JSON in UTF-8; escaped throughout where it holds half a surrogate pair, which UTF-8 cannot."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), default=str)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(body, separators=(",", ":"), default=str).encode()


def _plain_http(error: HTTPException) -> Problem:
    """What the framework itself refuses: an unknown path, a wrong method, a body that is no JSON."""
    words = {
        404: "there is no such address here",
        405: "this address does not take that method",
        400: "the body cannot be read as JSON",
    }
    try:
        usual = HTTPStatus(error.status_code).phrase
    except ValueError:
        usual = "refused"
    return Problem(error.status_code, words.get(error.status_code, usual), headers=error.headers)


def _invalid(errors: Sequence[Any]) -> Problem:
    """The first thing wrong with a body, said in one line with its place."""
    first = max(errors, key=lambda one: _weight(one, errors))
    kind = str(first.get("type", ""))
    param = place(first.get("loc", ()))
    if kind == "json_invalid":
        return Problem(400, f"the body is not JSON: {first.get('ctx', {}).get('error', 'malformed')}")
    if kind == "extra_forbidden":
        return Problem(400, f"{param}: unknown field", param=param, code="unknown_field")
    said = str(first.get("msg", "is not what was expected")).removeprefix("Value error, ")
    return Problem(400, f"{param}: {one_line(said)}" if param else said, param=param or None)


def _weight(one: Any, errors: Sequence[Any]) -> tuple[int, int]:
    """Of the complaints about several readings of one field, the deepest knows best what was meant."""
    first = errors[0].get("loc", ())
    same = tuple(one.get("loc", ()))[:2] == tuple(first)[:2]
    return (1 if same else 0, len(one.get("loc", ())) if same else 0)


def place(loc: Sequence[object]) -> str:
    """A place in a body as people write it: `messages[0].content`."""
    parts = [part for part in loc if part != "body"]
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif isinstance(part, str) and not _is_reading(part):
            text += f".{part}" if text else part
    return text


def _is_reading(part: str) -> bool:
    """Where a field may be of several types, pydantic puts the type it tried into the place."""
    return part in ("str", "int", "float", "bool") or "[" in part or part[:1].isupper()


def unknown_model(name: str, known: Sequence[str]) -> Problem:
    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; this server has {', '.join(map(repr, known))}"
    return Problem(404, f"there is no model {name[:100]!r} here{hint}", param="model", code="model_not_found")
