"""Lines on stderr about choices that a command made for its user. It knows no verb."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wager.engine.engine import Engine

__all__ = ["announce_native"]


def announce_native(asked: str, engine: Engine) -> None:
    """Says why passes are not native, if they were asked for or cannot be had on this machine.

    `asked` is the setting `native`.
    """
    loader = engine.runner.decoder.native_loader
    if not loader.reason or asked == "off":
        return
    if loader.is_refused:
        if asked == "on":
            print(f"wager: no native passes: {loader.reason}", file=sys.stderr)
    elif not loader.may_become_ready and not loader.is_large:
        print(f"wager: no native passes, which are faster: {loader.reason}", file=sys.stderr)
    elif asked == "on":
        print(f"wager: plain torch passes until the native ones are ready: {loader.reason}", file=sys.stderr)
