"""The library's threads: any number of them, callers at the same time, and children of a fork."""

import os
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from wager.nn.native import library as library_module
from wager.nn.native.library import Library
from wager.nn.native.top import NativeTop

PATIENCE_S = 120
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.fixture
def work(library: Library) -> Callable[[], tuple[Tensor, Tensor]]:
    """A call that is divided among up to five threads."""
    scores, top = torch.randn(40, 8192, generator=torch.Generator().manual_seed(3)), NativeTop(library)
    return lambda: top(scores, 8)


def same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    return torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_the_number_of_threads_is_the_engines_or_torchs() -> None:
    torch.set_num_threads(3)
    assert library_module.num_threads() == 3
    library_module.set_threads(2)
    assert library_module.num_threads() == 2


def test_many_threads(work: Callable[[], tuple[Tensor, Tensor]]) -> None:
    """The team grows and shrinks from call to call."""
    library_module.set_threads(1)
    wanted = work()
    for count in (2, 64, 3, 300, 1, 5):
        library_module.set_threads(count)
        assert all(same(work(), wanted) for _ in range(20)), count


def test_callers_at_the_same_time(work: Callable[[], tuple[Tensor, Tensor]]) -> None:
    library_module.set_threads(4)
    wanted, start = work(), threading.Barrier(8)

    def call(_: int) -> bool:
        start.wait(PATIENCE_S)
        with torch.inference_mode():
            return all(same(work(), wanted) for _ in range(50))

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(call, range(8)))


def child_ends_well(work: Callable[[], tuple[Tensor, Tensor]], wanted: tuple[Tensor, Tensor]) -> bool:
    """Whether a forked child gets the same results; one that hangs is ended by its own alarm."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks beside threads
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE_S)
        try:
            os._exit(0 if all(same(work(), wanted) for _ in range(5)) else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@needs_fork
def test_a_child_has_threads_of_its_own(work: Callable[[], tuple[Tensor, Tensor]]) -> None:
    library_module.set_threads(4)
    wanted = work()
    assert child_ends_well(work, wanted)
    assert same(work(), wanted), "the parent keeps its own"


@needs_fork
def test_a_fork_during_a_call(work: Callable[[], tuple[Tensor, Tensor]]) -> None:
    library_module.set_threads(3)
    wanted, ended = work(), threading.Event()

    def keep_busy() -> None:
        with torch.inference_mode():
            while not ended.is_set():
                work()

    caller = threading.Thread(target=keep_busy)
    caller.start()
    try:
        assert all(child_ends_well(work, wanted) for _ in range(5))
    finally:
        ended.set()
        caller.join()
