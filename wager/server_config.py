"""Settings of `wager serve` that are the server's own; the engine's are in config.py and hold there too.

Standard library only, like config.py, so that flags, variables, the file and the documentation are made from
these fields without loading a server. It knows neither HTTP nor what the values do. resolve.py reads it too,
so that a file or an environment meant for the server does not trip the other verbs.
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

__all__ = ["SECRETS", "ServeConfig", "ServerConfig", "listed"]

SECRETS = frozenset({"api_key"})
"""Fields whose values are never shown."""

_LISTED = "; several with commas between."


def _setting(default: Any, allowed: Allowed, help: str) -> Any:
    return field(default=default, metadata={"allowed": allowed, "help": help})


def _whole(low: int, high: float = math.inf) -> Allowed:
    return Allowed(int, low, high)


def _number(low: float, high: float) -> Allowed:
    return Allowed(float, low, high)


@dataclass(frozen=True)
class ServerConfig:
    """Where it listens, whom it answers, and how much it takes on."""

    host: str = _setting(
        "127.0.0.1", Allowed(str, pattern=r"\S+", says="an address"), "Address to listen on."
    )
    port: int = _setting(8000, _whole(0, 65535), "Port to listen on; 0: any that is free.")
    api_key: str = _setting(
        "",
        Allowed(str, pattern=r"[\s\S]*", says="texts"),  # refuses nothing: a refusal would show it
        "Keys that clients must show" + _LISTED + " Better in the variable than in a flag.",
    )
    api_key_file: str = _setting(
        "", Allowed(str, says="a file with one key a line"), "Read keys from this file, one a line."
    )
    served_name: str = _setting(
        "", Allowed(str, says="names"), "Names the model answers to" + _LISTED + " Empty: its own."
    )
    allowed_host: str = _setting(
        "",
        Allowed(str, says="host names"),
        "Host names requests may be addressed to"
        + _LISTED
        + " Empty: on loopback, loopback names; else any.",
    )
    cors_origin: str = _setting(
        "", Allowed(str, says="origins, or *"), "Origins whose pages may call" + _LISTED + " Empty: none."
    )
    max_queue: int = _setting(
        256, _whole(0, 1_000_000), "Requests that may wait behind those that run; more are told to come back."
    )
    max_choices: int = _setting(16, _whole(1, 128), "Most answers to one request (n).")
    max_output_tokens: int = _setting(
        0, _whole(0), "Most tokens a request may write; 0: as many as the context holds."
    )
    max_thinking_tokens: int = _setting(
        0, _whole(0), "Most tokens a request may think; 0: no limit but its own and the model card's."
    )
    thinking_close: str = _setting(
        "",
        Allowed(str, pattern=r"[\s\S]*", says="a text"),
        "What is written to close thinking whose budget is spent; empty: as the model card says.",
    )
    reply_tokens: int | str = _setting(
        "card", Allowed(int, 0, words=("card",)), "Tokens of an output that thinking leaves to the answer."
    )
    max_body_mib: float = _setting(4.0, _number(0.001, 1024.0), "Largest request body, in MiB.")
    body_timeout_s: float = _setting(30.0, _number(0.1, 86400.0), "Time for a request's body to arrive.")
    request_timeout_s: float = _setting(600.0, _number(0.1, 86400.0), "Time for a request's whole answer.")
    keepalive_s: float = _setting(
        10.0, _number(0.1, 3600.0), "A stream that is silent this long shows a sign."
    )
    drain_s: float = _setting(30.0, _number(0.0, 86400.0), "Time for running requests to end when it stops.")
    access_log: bool = _setting(True, Allowed(bool), "One line of JSON on stderr per request.")

    def __post_init__(self) -> None:
        for one in settings_of(ServerConfig):
            one.check(getattr(self, one.name))


@dataclass(frozen=True)
class ServeConfig:
    """All settings of a server: the engine's and its own."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    threads: int = field(default=0, metadata=EngineConfig.__dataclass_fields__["threads"].metadata)

    def __post_init__(self) -> None:
        self.engine()

    def engine(self) -> EngineConfig:
        """The engine's part, checked once more as a whole."""
        return EngineConfig(**{one.name: getattr(self, one.name) for one in fields(EngineConfig)})


def listed(text: str) -> tuple[str, ...]:
    """The entries of a setting that may hold several."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
