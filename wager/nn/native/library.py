"""The Python side of the compiled library: its records, its calls and the number of its threads.

The records mirror source/passes.h field by field. One library serves the whole process. `library` returns it,
or starts its build and records why it is not ready. This module knows neither models nor batches; pack.py and
passes.py use it.
"""

from __future__ import annotations

import ctypes
import logging
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import torch

from wager.errors import CapacityError, InputError
from wager.nn.native import build

log = logging.getLogger(__name__)


class Matrix(ctypes.Structure):
    """A packed weight; the last three fields are those of codes, as source/matrix.h explains."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("num_panels", c_int64),
        ("num_inputs", c_int64),
        ("kind", c_int64),
        ("limbs", c_int64),
        ("has_offsets", c_int64),
        ("half_scales", c_int64),
    )


class Layer(ctypes.Structure):
    """The weights of a layer; a `window` of 0 means full attention."""

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
    """One pass; `rows` has six numbers per row: start, stop, context_len, pages, number of pages, mask."""

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
    """Context features that are written to a block drafter's pool."""

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


class Draws(ctypes.Structure):
    """The scores of a draft, and where its candidates go."""

    _fields_ = (
        ("scores", c_void_p),
        ("num_depths", c_int64),
        ("num_outputs", c_int64),
        ("num_ranks", c_int64),
        ("tokens", c_void_p),
        ("temperature", c_double),
        ("seed", c_uint64),
        ("position", c_int64),
        ("logprobs", c_void_p),
        ("token_ids", c_void_p),
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
            raise OSError("its records are of another version")
        self.lanes = int(handle.wager_lanes())
        self.panel = 2 * self.lanes
        self.simd = handle.wager_simd().decode()
        self.run_pass = _declared(handle.wager_pass, POINTER(Net), POINTER(Pass))
        self.run_ingest = _declared(handle.wager_ingest, POINTER(Net), POINTER(Ingest))
        self.project = _declared(handle.wager_project, POINTER(Matrix), c_void_p, c_int64, c_void_p, c_int64)
        self.top = handle.wager_top
        self.top.restype = c_int64
        self.top.argtypes = (c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int32)
        self.draft_top = handle.wager_draft_top
        self.draft_top.restype, self.draft_top.argtypes = c_int64, (POINTER(Draws), c_int32)
        self.choose = handle.wager_choose
        self.choose.restype = c_int64
        self.choose.argtypes = (c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_void_p)
        self.steps = _declared(handle.wager_steps, c_void_p)
        self.step_record_size = handle.wager_step_size
        self.step_record_size.restype, self.step_record_size.argtypes = c_int64, (c_int64,)


def _declared(function: Any, *records: Any) -> Any:
    function.restype = c_int64
    function.argtypes = (*records, c_void_p, c_int64, c_int32)
    return function


class LibraryState:
    """The library of this process, and the state of its build."""

    def __init__(self) -> None:
        self.library: Library | None = None
        self.reason = ""
        self.may_become_ready = True
        """Whether another look may find the library."""
        self.num_threads: int | None = None
        """The number of threads of a pass; None: as many as torch has."""
        self._builder: build.Builder | None = None

    def refresh(self, *, start: bool = True) -> None:
        """Loads the library if it is ready, else starts a build if `start` allows it."""
        if not self.may_become_ready:
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
        """Waits until there is a library, or a reason why there is none."""
        self.refresh()
        if self._builder is not None:
            self._builder.wait()
        self.refresh()

    def pause_build(self, seconds: float) -> None:
        """Pauses the build, if one is running."""
        if self._builder is not None and self.may_become_ready:
            self._builder.pause_build(seconds)

    def _start(self, reason: str) -> None:
        self._builder = build.start()
        if self._builder is None:
            return self._give_up(reason)
        self.reason = "being built"
        log.info("native passes: %s", self.reason)

    def _load(self, path: Path) -> None:
        try:
            self.library, self.reason, self.may_become_ready = Library(path), "", False
        except (OSError, AttributeError) as error:
            self._give_up(f"the library cannot be loaded: {error}")

    def _give_up(self, reason: str) -> None:
        self.reason, self.may_become_ready = reason, False
        log.info("native passes: %s", reason)


_state = LibraryState()


def library(*, start: bool = True) -> Library | None:
    """Returns the library if it is ready; the first call with `start` begins its build. It never waits."""
    _state.refresh(start=start)
    return _state.library


def wait_for_library() -> None:
    """Waits for the end of the build. A server does not call this."""
    _state.wait()


def pause_build(seconds: float) -> None:
    """Pauses the build for a moment, because a request has arrived."""
    _state.pause_build(seconds)


def unavailable_reason() -> str:
    """Returns why there is no library."""
    return _state.reason


def set_threads(count: int) -> None:
    """Sets the number of threads of native passes."""
    _state.num_threads = count


def num_threads() -> int:
    """Returns the number of threads of native passes."""
    return _state.num_threads or torch.get_num_threads()


def may_become_ready() -> bool:
    """Whether the library may become available later."""
    return _state.may_become_ready


def raise_refusal(code: int) -> None:
    """Raises the error for the code of a refused call; a refused pass has changed nothing."""
    if code == -1:
        raise InputError("token id outside the vocabulary", field="token_ids")
    if code == -2:
        raise InputError("position outside the table of rotations", field="positions")
    raise CapacityError("pages do not cover the tokens of a pass, or are outside the pool")
