"""`wager serve`: an HTTP server in front of one model, with the APIs that clients already speak.

Flags, environment and file become a checked configuration before anything is loaded; the work is
wager.server's. It says where to point a client once the model is ready.
"""

from __future__ import annotations

import logging
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from wager.cli.flags import config_flags, flagged, resolved, say_default_model, source_flags
from wager.errors import ConfigError, InputError
from wager.policy import check_policy, settings_from
from wager.resolve import Resolved
from wager.server_config import ServeConfig

if TYPE_CHECKING:
    from wager.server.service import Service

_NEEDED = ("fastapi", "uvicorn", "pydantic")


@flagged(source_flags(), config_flags(ServeConfig))
def serve(
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Target model: the same as --model.")
    ] = None,
    **values: object,
) -> None:
    """Serve a model over HTTP: the APIs of OpenAI and Anthropic clients, metrics, and a page to watch.

    Without a model the demo pair answers, which ships with Wager. It listens on this machine alone unless
    --host says otherwise. The first SIGTERM or Ctrl-C lets running requests finish, a second one does not.
    """
    began_s = time.monotonic()
    settings: Resolved[ServeConfig] = resolved(values, ServeConfig, name)
    _check(settings.config)
    say_default_model(settings)
    from wager.server.run import serve as run

    _speak_up()
    run(settings, lambda service, port: _banner(service, port, time.monotonic() - began_s))


def _check(config: ServeConfig) -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} not installed: pip install 'wager[server]'", "serve")
    if not config.model.model:
        raise ConfigError("model", "", "a folder or a published name (see `wager models`)")
    check_policy(config.policy.policy_name, settings_from(config.policy))


def _speak_up() -> None:
    """The access line on stderr as it is, and the web server's own warnings beside Wager's."""
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


def _banner(service: Service, port: int, took_s: float) -> None:
    """Where to point a client."""
    config = service.config
    host = f"[{config.host}]" if ":" in config.host else config.host
    shown = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    address = f"http://{shown}:{port}"
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
            "  NOTE       anyone who reaches this address can use it: set api_key (see docs/security.md)"
        )
    print("\n".join(lines), file=sys.stderr, flush=True)


def _drafter(note: object) -> str:
    return " and ".join(note["value"]) if isinstance(note, dict) else str(note)
