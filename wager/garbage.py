"""Python's garbage collection in a process that keeps one engine until it ends.

A full collection that visits a loaded engine takes as long as many steps, and every running request waits for
it. So loaded objects are excluded from collection, and full collections run while the engine is idle. The
server and the benchmarks call this.
"""

from __future__ import annotations

import gc

# Collections of the middle generation before a full one, while requests run.
_COLLECTIONS_BEFORE_FULL = 10_000
# Collections of the middle generation before a full one, while the engine is idle.
_COLLECTIONS_BEFORE_FULL_IDLE = 100


def settle_garbage() -> None:
    """Excludes all present objects from collection, and makes full collections of later ones rare."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _COLLECTIONS_BEFORE_FULL)


def use_idle_moment() -> None:
    """Runs a full collection if one is due. Call it while no request runs."""
    if gc.get_count()[2] >= _COLLECTIONS_BEFORE_FULL_IDLE:
        gc.collect()
