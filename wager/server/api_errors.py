"""Error answers: every error is one JSON body, `{"error": {"message", "type", "param", "code"}}`.

A bad request is always 400, never 422. Paths under /v1/messages use Anthropic's form of the body and its type
names. The middleware, the application's exception handlers and the answer writers call `to_api_error`.
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
from wager.server.bridge import NotReady, QueueFull

log = logging.getLogger("wager.server")

MESSAGES_PATH = "/v1/messages"
_MAX_MESSAGE = 600  # characters; a message may quote text that a client sent
_RETRY = {"Retry-After": "2"}

# A status that is missing here is an invalid request below 500 and a server error from 500.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable",
}
_MESSAGES_TYPES = {**_TYPES, 413: "request_too_large", 503: "overloaded_error", 504: "timeout_error"}
_FRAMEWORK_MESSAGES = {
    400: "the body cannot be read as JSON",
    404: "there is no such path",
    405: "this path does not accept that method",
}


class ApiError(WagerError):
    """An error as the client sees it."""

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
        """The JSON body in the form that clients of this path expect."""
        message, is_fault = str(self)[:_MAX_MESSAGE], self.status >= 500
        if path.startswith(MESSAGES_PATH):
            fallback = "api_error" if is_fault else "invalid_request_error"
            kind = _MESSAGES_TYPES.get(self.status, fallback)
            return {"type": "error", "error": {"type": kind, "message": message}}
        kind = _TYPES.get(self.status, "server_error" if is_fault else "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, path: str) -> Response:
        return json_response(self.body(path), self.status, self.headers)


def not_ready(message: object) -> ApiError:
    return ApiError(503, message, code="not_ready", headers=_RETRY)


def unknown_model(name: str, names: Sequence[str]) -> ApiError:
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"this server has {', '.join(map(repr, names))}"
    message = f"there is no model {name[:100]!r} here; {hint}"
    return ApiError(404, message, param="model", code="model_not_found")


def to_api_error(error: BaseException) -> ApiError:
    """The answer for an exception. An exception that is not expected here is logged and answered with 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        return _validation_error(error.errors())
    if isinstance(error, HTTPException):
        return _framework_error(error)
    if isinstance(error, QueueFull):
        return ApiError(429, error, code="queue_full", headers={"Retry-After": str(error.retry_after_s)})
    if isinstance(error, NotReady):
        return not_ready(error)
    if isinstance(error, RequestError | InputError | ConfigError):
        return ApiError(400, error, param=error.field)
    if isinstance(error, CapacityError):
        return ApiError(400, error, code="capacity")
    log.error("a request failed with an unexpected exception", exc_info=error)
    return ApiError(500, "internal server error; the server's log has the details", code="internal")


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(body), status, headers, media_type="application/json")


def json_bytes(body: object) -> bytes:
    """JSON in UTF-8. Text with half a surrogate pair is not valid UTF-8 and is escaped as ASCII instead."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), default=str)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(body, separators=(",", ":"), default=str).encode()


def _framework_error(error: HTTPException) -> ApiError:
    """An error of the web framework: an unknown path, a wrong method, a body that is not JSON."""
    try:
        usual = HTTPStatus(error.status_code).phrase
    except ValueError:
        usual = "refused"
    message = _FRAMEWORK_MESSAGES.get(error.status_code, usual)
    return ApiError(error.status_code, message, headers=error.headers)


def _validation_error(errors: Sequence[Any]) -> ApiError:
    """The most specific of the validation errors, in one line that names the field."""
    first = max(errors, key=lambda error: _specificity(error, errors[0]))
    kind, context = str(first.get("type", "")), first.get("ctx") or {}
    param = field_path((*first.get("loc", ()), *filter(None, [context.get("field")])))
    if kind == "json_invalid":
        return ApiError(400, f"the body is not JSON: {context.get('error', 'malformed')}")
    if kind == "extra_forbidden":
        return ApiError(400, f"{param}: unknown field", param=param, code="unknown_field")
    message = str(first.get("msg", "is not valid")).removeprefix("Value error, ")
    code = "unsupported_field" if kind == "unsupported_field" else None
    return ApiError(
        400, f"{param}: {one_line(message)}" if param else message, param=param or None, code=code
    )


def _specificity(error: Any, first: Any) -> tuple[int, int]:
    """A field of several types has one error per type; the one with the deepest path is the most specific."""
    path, first_path = tuple(error.get("loc", ())), tuple(first.get("loc", ()))
    is_same_field = path[:2] == first_path[:2]
    return (1, len(path)) if is_same_field else (0, 0)


def field_path(loc: Sequence[object]) -> str:
    """A pydantic location as a path such as `messages[0].content`."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif isinstance(part, str) and part != "body" and not _is_type_name(part):
            text += f".{part}" if text else part
    return text


def _is_type_name(part: str) -> bool:
    """Where a field has several types, pydantic adds the name of the type it tried to the location."""
    return part in ("str", "int", "float", "bool") or "[" in part or part[:1].isupper()
