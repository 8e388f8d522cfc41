"""The compiled library as Python sees it: its records, its calls, and the threads it is handed.

The records mirror source/passes.h field by field. One library serves the whole process; `library` gives it
out, or starts its building and says why there is none yet. Knows neither models nor batches; used by pack.py
and passes.py.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch

from wager.errors import CapacityError, InputError
from wager.nn.native import build

log = logging.getLogger(__name__)


class Matrix(ctypes.Structure):
    """A packed weight."""

    _fields_ = (
        ("panels", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("num_panels", c_int64),
        ("num_inputs", c_int64),
        ("kind", c_int64),
    )


class Layer(ctypes.Structure):
    """A layer's weights; `window` 0 sees all."""

    _fields_ = (
        ("input_norm", c_void_p),
        ("qk_norm", c_void_p),
        ("post_norm", c_void_p),
        ("qkv", Matrix),
        ("out", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("window", c_int64),
    )


class Net(ctypes.Structure):
    """A network."""

    _fields_ = (
        ("hidden", c_int64),
        ("middle", c_int64),
        ("num_layers", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("eps", c_double),
        ("layers", POINTER(Layer)),
        ("norm", c_void_p),
        ("embedding", c_void_p),
        ("vocab", c_int64),
    )


class Pool(ctypes.Structure):
    """The K/V pool."""

    _fields_ = (("store", c_void_p), ("num_slots", c_int64), ("page_size", c_int64))


class Pass(ctypes.Structure):
    """One pass; `rows` are lines of six numbers: start, stop, context_len, pages, number of pages, mask."""

    _fields_ = (
        ("num_tokens", c_int64),
        ("num_rows", c_int64),
        ("token_ids", c_void_p),
        ("embeddings", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("turns", c_void_p),
        ("num_turns", c_int64),
        ("rows", c_void_p),
        ("pool", Pool),
        ("sight", c_int64),
        ("taps", c_void_p),
        ("num_taps", c_int64),
        ("features", c_void_p),
        ("out", c_void_p),
    )


class Ingest(ctypes.Structure):
    """Context features on their way into a block drafter's pool."""

    _fields_ = (
        ("num_tokens", c_int64),
        ("num_features", c_int64),
        ("features", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("turns", c_void_p),
        ("num_turns", c_int64),
        ("pool", Pool),
        ("fc", POINTER(Matrix)),
        ("norm", c_void_p),
    )


_RECORDS = (Matrix, Layer, Net, Pass, Ingest)
CAUSAL, ALL, ALL_BUT_CAUSAL_IN_WINDOWS = range(3)


class Library:
    """The loaded library. Raises OSError when the file cannot be loaded."""

    def __init__(self, path: Path) -> None:
        self._handle = handle = ctypes.CDLL(str(path))
        handle.wager_lanes.restype = c_int64
        handle.wager_simd.restype = c_char_p
        handle.wager_size.restype, handle.wager_size.argtypes = c_int64, (c_int64,)
        if [handle.wager_size(i) for i in range(len(_RECORDS))] != [ctypes.sizeof(r) for r in _RECORDS]:
            raise OSError("its records are not those of this version")
        self.lanes = int(handle.wager_lanes())
        self.panel = 2 * self.lanes
        self.simd = handle.wager_simd().decode()
        self.run_pass = _declared(handle.wager_pass, POINTER(Net), POINTER(Pass))
        self.run_ingest = _declared(handle.wager_ingest, POINTER(Net), POINTER(Ingest))
        self.project = _declared(handle.wager_project, POINTER(Matrix), c_void_p, c_int64, c_void_p, c_int64)
        self.top = handle.wager_top
        self.top.restype = c_int64
        self.top.argtypes = (c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int32)
        self.has_threads = self._hand_over_threads()

    def _hand_over_threads(self) -> bool:
        """Give it the threads torch runs its own operations with; without them it runs on one."""
        openmp = _openmp()
        if openmp is None:
            log.info("torch's OpenMP library was not found: native passes run on one thread")
            return False
        calls = [openmp.GOMP_parallel, openmp.omp_get_thread_num, openmp.omp_get_num_threads]
        hand_over = self._handle.wager_threads
        hand_over.restype, hand_over.argtypes = None, (c_void_p, c_void_p, c_void_p)
        hand_over(*[ctypes.cast(call, c_void_p) for call in calls])
        return True


def _declared(function: Any, *records: Any) -> Any:
    function.restype = c_int64
    function.argtypes = (*records, c_void_p, c_int64, c_int32)
    return function


def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that is already loaded: never a second one."""
    for path in _openmp_files():
        try:
            found = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except (OSError, AttributeError):
            continue
        if hasattr(found, "GOMP_parallel"):
            return found
    try:
        everything = ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
    return everything if hasattr(everything, "GOMP_parallel") else None


def _openmp_files() -> Iterator[Path]:
    home = Path(torch.__file__).parent
    for folder in (home / "lib", home.parent / "torch.libs"):
        for pattern in ("libgomp*", "libiomp5*", "libomp*"):
            yield from sorted(folder.glob(pattern))


class Shelf:
    """The process's library, and how far its building is."""

    def __init__(self) -> None:
        self.library: Library | None = None
        self.reason = ""
        self.may_come = True
        """Whether it is worth looking again."""
        self._builder: build.Builder | None = None

    def look(self, *, start: bool = True) -> None:
        """Load what is ready; else see that somebody builds it, where that may `start` now."""
        if not self.may_come:
            return
        ended = self._builder is not None and self._builder.has_ended
        found = build.find()
        if found.path is not None:
            self._load(found.path)
        elif ended:
            self._give_up(found.reason)
        elif self._builder is None and start:
            self._start(found.reason)
        elif self._builder is None:
            self.reason = found.reason

    def wait(self) -> None:
        """Until there is a library, or a reason why there is none."""
        self.look()
        if self._builder is not None:
            self._builder.wait()
        self.look()

    def hold(self, seconds: float) -> None:
        """Let the builder stand still, where there is one."""
        if self._builder is not None and self.may_come:
            self._builder.hold(seconds)

    def _start(self, reason: str) -> None:
        self._builder = build.start()
        if self._builder is None:
            return self._give_up(reason)
        self.reason = "being built"
        log.info("native passes: %s", self.reason)

    def _load(self, path: Path) -> None:
        try:
            self.library, self.reason, self.may_come = Library(path), "", False
        except (OSError, AttributeError) as error:
            self._give_up(f"the library cannot be loaded: {error}")

    def _give_up(self, reason: str) -> None:
        self.reason, self.may_come = reason, False
        log.info("native passes: %s", reason)


_shelf = Shelf()


def library(*, start: bool = True) -> Library | None:
    """The library where it is ready. The first call that may `start` its building does; nobody waits."""
    _shelf.look(start=start)
    return _shelf.library


def wait_for_library() -> None:
    """Let the building come to its end. Whoever serves does not call this."""
    _shelf.wait()


def hold(seconds: float) -> None:
    """A request has come: whoever builds stands still for a moment."""
    _shelf.hold(seconds)


def absence() -> str:
    """Why there is none."""
    return _shelf.reason


def may_come() -> bool:
    """Whether there may be one later."""
    return _shelf.may_come


def raise_refusal(code: int) -> None:
    """What a call that was refused means; the pass has changed nothing."""
    if code == -1:
        raise InputError("token id outside the vocabulary", field="token_ids")
    if code == -2:
        raise InputError("position outside the table of rotations", field="positions")
    raise CapacityError("pages do not cover the tokens of a pass, or lie outside the pool")
