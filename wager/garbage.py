"""Garbage in a process whose engine stays for its life: not looked for among what is loaded, best when idle.

Looking through a loaded engine takes as long as many steps, and every running request waits for it. Called by
whoever owns such a process, once the engine is there and whenever it has nothing to do: the server, and
benchmarks.
"""

from __future__ import annotations

import gc

_SELDOM = 10_000  # collections of the middle generation before one of the oldest, in mid-traffic,
_DUE = 100  # and in an idle moment


def settle_garbage() -> None:
    """What there is now stays; what comes is looked through in full a thousand times less often."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _SELDOM)


def use_idle_moment() -> None:
    """Nothing runs: look through what came, if that has become much."""
    if gc.get_count()[2] >= _DUE:
        gc.collect()
