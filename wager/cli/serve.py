"""`wager serve`: serves one model over HTTP with the APIs of OpenAI's and Anthropic's clients.

Flags, environment and file become a checked configuration before anything is loaded; wager.server does the
rest. When the model is ready, the command prints the addresses for clients.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Annotated

from wager.cli.flags import (
    announce_default_model,
    config_flags,
    model_argument,
    resolve_config,
    source_flags,
    with_flags,
)
from wager.cli.notices import announce_native
from wager.errors import ConfigError
from wager.extras import require
from wager.policy import check_policy, settings_from
from wager.resolve import Resolved
from wager.server_config import ServeConfig

if TYPE_CHECKING:
    from wager.server.model_service import ModelService


@with_flags(source_flags(), config_flags(ServeConfig))
def serve(
    name: Annotated[str | None, model_argument()] = None,
    **values: object,
) -> None:
    """Serve a model over HTTP: the APIs of OpenAI and Anthropic clients, metrics, and a web page.

    Without a model it serves the demo pair, which ships with Wager. It listens on loopback only unless --host
    is given. The first SIGTERM or Ctrl-C lets running requests finish, a second one aborts them.
    """
    started_s = time.monotonic()
    settings: Resolved[ServeConfig] = resolve_config(values, ServeConfig, name)
    _check(settings.config)
    announce_default_model(settings)
    from wager.server.run import serve as run

    _set_up_logging()

    def ready(service: ModelService, port: int) -> None:
        _print_banner(service, port, time.monotonic() - started_s)
        announce_native(settings.config.model.native, service.engine)

    run(settings, ready)


def _check(config: ServeConfig) -> None:
    require("server", "wager serve")
    if not config.model.model:
        raise ConfigError("model", "", "a folder or a published name (see `wager models`)")
    check_policy(config.policy.policy, settings_from(config.policy))


def _set_up_logging() -> None:
    """Write access log lines to stderr without a prefix, and uvicorn's warnings to Wager's log."""
    access = logging.getLogger("wager.access")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.handlers[:] = [handler]
    access.propagate = False
    access.setLevel(logging.INFO)
    web = logging.getLogger("uvicorn")
    web.handlers[:] = logging.getLogger("wager").handlers
    web.propagate = False
    web.setLevel(logging.WARNING)


def _print_banner(service: ModelService, port: int, took_s: float) -> None:
    """Print the addresses for clients."""
    config = service.config
    host = f"[{config.host}]" if ":" in config.host else config.host
    reachable = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    address = f"http://{reachable}:{port}"
    notes = service.engine.parts.notes
    lines = [
        f"wager: {service.names[0]} is ready after {took_s:.1f} s",
        f"  page       {address}/",
        f"  OpenAI     {address}/v1   (model {service.names[0]!r})",
        f"  Anthropic  {address}",
        f"  metrics    {address}/metrics",
        f"  policy     {notes.get('policy')}, drafter {_drafter(notes.get('drafter'))}",
    ]
    if service.is_open:
        lines.append(
            "  NOTE       anyone who can reach this address can use it; set api_key (see docs/security.md)"
        )
    print("\n".join(lines), file=sys.stderr, flush=True)


def _drafter(note: object) -> str:
    return " and ".join(note["value"]) if isinstance(note, dict) else str(note)
