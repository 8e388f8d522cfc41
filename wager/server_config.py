"""The settings of `wager serve` that only the server has; the engine's settings are in config.py.

It needs only the standard library, like config.py: flags, environment variables, the file and the
documentation are generated from these fields without loading a server. resolve.py reads it too, so that the
other commands accept a file or an environment with server settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from wager.config import (
    Allowed,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    PolicyConfig,
    SchedulerConfig,
    settings_of,
)

__all__ = ["SECRETS", "ServeConfig", "ServerConfig", "split_list"]

SECRETS = frozenset({"api_key"})
"""Fields whose values are never shown."""

_COMMAS = ", separated by commas."


def _setting(default: Any, allowed: Allowed, help: str) -> Any:
    return field(default=default, metadata={"allowed": allowed, "help": help})


def _whole(low: int, high: float = math.inf) -> Allowed:
    return Allowed(int, low, high)


def _number(low: float, high: float) -> Allowed:
    return Allowed(float, low, high)


@dataclass(frozen=True)
class ServerConfig:
    """The address, the access control and the limits of the server."""

    host: str = _setting(
        "127.0.0.1", Allowed(str, pattern=r"\S+", says="an address"), "Address to listen on."
    )
    port: int = _setting(8000, _whole(0, 65535), "Port to listen on; 0 selects a free one.")
    api_key: str = _setting(
        "",
        Allowed(
            str, pattern=r"[\s\S]*", says="texts"
        ),  # every text is allowed: an error message would show it
        "API keys that clients must send"
        + _COMMAS
        + " Use the environment variable: a flag is visible to others.",
    )
    api_key_file: str = _setting(
        "", Allowed(str, says="a file with one key per line"), "File with API keys, one per line."
    )
    served_name: str = _setting(
        "", Allowed(str, says="names"), "Model names for clients" + _COMMAS + " Empty: the name of the model."
    )
    allowed_host: str = _setting(
        "",
        Allowed(str, says="host names"),
        "Host names that requests may use"
        + _COMMAS
        + " Empty: loopback names if the server listens on loopback, else any name.",
    )
    cors_origin: str = _setting(
        "",
        Allowed(str, says="origins, or *"),
        "Origins whose web pages may send requests" + _COMMAS + " Empty: none.",
    )
    max_queue: int = _setting(
        256,
        _whole(0, 1_000_000),
        "Requests that may wait besides the running ones; further requests get status 429.",
    )
    max_choices: int = _setting(16, _whole(1, 128), "Largest number of choices of one request (n).")
    max_output_tokens: int = _setting(
        0, _whole(0), "Largest number of tokens that a request may generate; 0: limited by the context only."
    )
    max_thinking_tokens: int = _setting(
        0,
        _whole(0),
        "Largest thinking budget of a request; 0: limited by the request and the model card only.",
    )
    thinking_close: str = _setting(
        "",
        Allowed(str, pattern=r"[\s\S]*", says="a text"),
        "Text that closes thinking when its budget is spent; empty: the text of the model card.",
    )
    reply_tokens: int | str = _setting(
        "card",
        Allowed(int, 0, words=("card",)),
        "Tokens of the output that are reserved for the answer after thinking.",
    )
    max_body_mib: float = _setting(4.0, _number(0.001, 1024.0), "Largest request body in MiB.")
    body_timeout_s: float = _setting(
        30.0, _number(0.1, 86400.0), "Time limit in seconds for receiving a request body."
    )
    request_timeout_s: float = _setting(
        600.0, _number(0.1, 86400.0), "Time limit in seconds for a whole answer."
    )
    keepalive_s: float = _setting(
        10.0,
        _number(0.1, 3600.0),
        "A stream sends a keep-alive comment after this many seconds without an event.",
    )
    drain_s: float = _setting(
        30.0,
        _number(0.0, 86400.0),
        "Time in seconds that running requests have to finish when the server stops.",
    )
    access_log: bool = _setting(True, Allowed(bool), "Write one line of JSON per request to stderr.")

    def __post_init__(self) -> None:
        for setting in settings_of(ServerConfig):
            setting.check(getattr(self, setting.name))


@dataclass(frozen=True)
class ServeConfig:
    """All settings of `wager serve`: those of the engine and those of the server."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    threads: int = field(default=0, metadata=EngineConfig.__dataclass_fields__["threads"].metadata)

    def __post_init__(self) -> None:
        self.engine()

    def engine(self) -> EngineConfig:
        """The settings of the engine, checked as a whole."""
        return EngineConfig(**{each.name: getattr(self, each.name) for each in fields(EngineConfig)})


def split_list(text: str) -> tuple[str, ...]:
    """The entries of a setting whose values are separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
