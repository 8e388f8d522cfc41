"""Garbage in a process whose engine stays for its life: not looked for among what is loaded, seldom in full.

Looking through a loaded engine takes as long as many steps, and every running request waits for it. Called by
whoever owns such a process, once the engine is there: the server, and benchmarks.
"""

from __future__ import annotations

import gc

_SELDOM = 1000  # collections of the middle generation before one of the oldest


def settle_garbage() -> None:
    """What there is now stays; what comes is looked through in full a hundred times less often than usual."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _SELDOM)
