"""Lines on stderr about choices that a command made for its user. It knows no verb."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wager.engine.engine import Engine

__all__ = ["announce_native"]


def announce_native(asked: str, engine: Engine) -> None:
    """Says why passes are not native where the user may expect them; `asked` is the setting `native`.

    If `on` is impossible, the engine itself warns, because a program asks for it, too.
    """
    loader = engine.runner.decoder.native_loader
    if not loader.reason or loader.is_refused or asked == "off":
        return
    if loader.may_become_ready or loader.is_large:
        if asked == "on":
            print(f"wager: plain torch until the native passes are ready: {loader.reason}", file=sys.stderr)
    elif asked == "auto":
        print(f"wager: no native passes, which are faster: {loader.reason}", file=sys.stderr)
