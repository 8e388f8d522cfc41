"""Changes an idle engine's networks to native passes as soon as those are ready.

Native passes are built in the background and round differently from plain torch, so a network may only change
while no text is in progress. assemble.py puts these functions into `Parts`, and the engine calls them while
it is idle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from wager.engine.engine import Engine, Parts
from wager.nn.native.library import pause_build, set_threads, wait_for_library
from wager.nn.native.loader import BUILD_PAUSE_S, NativeNetwork
from wager.nn.native.pack import return_freed_memory

log = logging.getLogger("wager.engine")


def use_idle_moment(engine: Engine) -> None:
    """Makes the changes that are only allowed while nothing runs."""
    try_native_passes(engine)
    use_own_threads(engine)
    pause_build(BUILD_PAUSE_S)
    engine.runner.when_idle()


def try_native_passes(engine: Engine, *, wait: bool = False) -> None:
    """Lets every network change to native passes if they are ready.

    What came from the old passes is dropped: their measured times, and the cached prefixes, whose values they
    rounded differently.
    """
    parts, changed = engine.parts, False
    for network in networks(parts):  # all of them, whether or not an earlier one has changed
        changed |= network.try_native(wait=wait)
        network.native_loader.request_build()
    _make_native_drafting(parts)
    if not changed:
        return
    return_freed_memory()
    engine.controller.experience.costs = parts.make_costs()
    if engine.scheduler.memory.index is not None:
        engine.scheduler.memory.index.clear()
    parts.notes |= pass_notes(parts)
    use_own_threads(engine)
    log.info("passes are native from here on: %s", parts.runner.decoder.layout)


def _make_native_drafting(parts: Parts) -> None:
    """Makes what drafters need for native steps now, because a request would wait for it."""
    for drafter in parts.drafters.values():
        _ = drafter.native


def use_own_threads(engine: Engine) -> None:
    """Sets this engine's threads for the process.

    Beside native passes torch has one thread: what is left to it takes microseconds, and threads of two pools
    would wait for each other's cores.
    """
    count, decoder = engine.parts.num_threads, engine.runner.decoder
    if not count:
        return
    set_threads(count)
    wanted = count if decoder.native_loader.reason else 1
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)


def wait_for_native_passes(engine: Engine, tell: Callable[[str], None]) -> None:
    """Waits for native passes that are still being built, and changes to them; `tell` is given the reason.

    For benchmarks, whose figures must not change halfway. Precondition: nothing runs.
    """
    if not any(network.native_loader.may_become_ready for network in networks(engine.parts)):
        return
    tell("native passes are being built for this machine, once")
    wait_for_library()
    try_native_passes(engine, wait=True)


def warn_without_native_passes(engine: Engine) -> None:
    """Warns if the passes of the target will not become native, because the user has asked for that."""
    loader = engine.runner.decoder.native_loader
    if loader.reason and not loader.may_become_ready and not loader.is_large:
        log.warning("native passes cannot be used: %s", loader.reason)


def networks(parts: Parts) -> list[NativeNetwork]:
    """Returns every network of an engine: the target and those that the drafters name."""
    found: list[NativeNetwork] = [parts.runner.decoder]
    for drafter in parts.drafters.values():
        found += drafter.networks()
    return found


def pass_notes(parts: Parts) -> dict[str, object]:
    """Returns how the passes of target and drafters run, and the reason if the target's are not native."""
    decoder = parts.runner.decoder
    reason = decoder.kernel_refusal or decoder.native_loader.reason
    passes = {"value": "torch" if reason else "native", "source": reason or "auto"}
    if parts.runner.has_kernels:
        passes = {"value": "kernels", "source": "auto"}
    drafters = {name: drafter.describe() for name, drafter in parts.drafters.items()}
    return {"passes": passes, "layout": str(decoder.layout), "drafters": drafters}
