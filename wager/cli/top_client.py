"""Asks a running server for its state, with the standard library's HTTP client.

Every failure becomes one of two errors with a line for the user: `ServerAway`, which may end by itself, and
InputError, which does not. It knows no screen; top.py uses it.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from wager.errors import InputError, WagerError

__all__ = ["DEFAULT_URL", "ServerAway", "StateClient", "full_url"]

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 5.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ServerAway(WagerError):
    """The server does not answer now; asking again may help."""


def full_url(text: str) -> str:
    """Returns the address of a server from `8000`, `host:8000` or a URL. Raises InputError."""
    if text.isdecimal():
        text = f"http://127.0.0.1:{text}"
    elif "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or re.search(r"\s", text):
        raise InputError(f"{text!r} is no address; expected http://HOST:PORT", "url")
    return f"{parts.scheme}://{parts.netloc}"


class StateClient:
    """The state of one server."""

    def __init__(self, url: str, api_key: str = "") -> None:
        self.url = full_url(url)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A proxy of the environment does not lead to this machine.
        is_here = urlsplit(self.url).hostname in _LOOPBACK
        proxies = [urllib.request.ProxyHandler({})] if is_here else []
        self._opener = urllib.request.build_opener(*proxies)

    def state(self) -> dict[str, Any]:
        """Returns the body of /wager/state. Raises ServerAway or InputError."""
        return self._get("/wager/state")

    def model(self) -> str:
        """Returns the name of the model. Raises ServerAway or InputError."""
        return str(self._get("/props").get("model", ""))

    def _get(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(self.url + path, headers=self._headers)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                found = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise self._refused(error.code) from error
        except ValueError as error:
            raise InputError(f"{self.url} is no server of Wager", "url") from error
        except (OSError, HTTPException) as error:
            raise ServerAway(f"no answer from {self.url}: {_reason(error)}") from error
        if not isinstance(found, dict):
            raise InputError(f"{self.url} is no server of Wager", "url")
        return found

    def _refused(self, status: int) -> WagerError:
        if status in (401, 403):
            return InputError(f"{self.url} needs an API key: --api-key or WAGER_API_KEY", "api_key")
        if status == 404:
            return InputError(f"{self.url} is no server of Wager", "url")
        if status == 503:
            return ServerAway(f"{self.url} is not ready: it loads its model, or it stops")
        return ServerAway(f"{self.url} answers with status {status}")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"nothing came within {TIMEOUT_S:g} seconds"
    return str(getattr(reason, "strerror", None) or reason or type(error).__name__).lower()
