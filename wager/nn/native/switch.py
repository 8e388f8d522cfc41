"""Which way a network's passes take: the native one where it can be had, else plain torch, and why.

A network asks once at load and, where the library is still being built, again whenever its engine is idle:
a change in mid-text could part it from what it would have been, since the two ways round differently. Weights
are packed in a thread meanwhile, so that no request waits for that either. Knows no model; used by `models/`,
whose notes show `Switch.reason`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor

from wager.errors import ConfigError
from wager.nn.layers.decoder_layer import LayerWeights, Linear
from wager.nn.native import library
from wager.nn.native.library import Library
from wager.nn.native.pack import HALVES, Packer, dequantised
from wager.nn.native.passes import Storage

log = logging.getLogger(__name__)

WAYS = ("auto", "on", "off")
WEIGHTS = ("auto", "full", "int8", "int4")
_NARROW_BITS = {"int8": 8, "int4": 4}
# Below this a whole pass takes about as long as deciding on a bet: native passes have to be asked for.
SMALL_WEIGHTS = 50_000_000
# Above this a network does not keep its weights twice while it waits for the library.
WAITING_BYTES = 2 << 30
HOLD_S = 1.0
"""Seconds behind the arrival of a request in which nothing is compiled or packed."""
Made = TypeVar("Made")


@dataclass(frozen=True)
class Wish:
    """What is asked for. `native`: "on", "off", or "auto", which is on but for small networks. `weights`:
    "auto" keeps published bfloat16 weights as such, "full" widens them, "int8" rounds them to 8 bits with a
    scale per group, "int4" to 4, which only kernels multiply by. `guesses`: the network only guesses, so that
    "auto" is int8 where passes are native: nothing is lost but a guess. `kernels`: passes are those of a CUDA
    device's kernels.
    """

    native: str = "off"
    weights: str = "auto"
    guesses: bool = False
    kernels: bool = False

    def __post_init__(self) -> None:
        for name, words in (("native", WAYS), ("weights", WEIGHTS)):
            if getattr(self, name) not in words:
                raise ConfigError(name, getattr(self, name), "one of " + ", ".join(words))
        if self.weights == "int4" and not self.kernels:
            allowed = "auto, full or int8: int4 needs a CUDA device and kernels that are not off"
            raise ConfigError("weights", self.weights, allowed)

    @property
    def narrow_bits(self) -> int | None:
        """Bits of the weights that kernels multiply by; None: they are kept in full width."""
        return _NARROW_BITS.get(self.weights) if self.kernels else None

    @property
    def storage(self) -> Storage:
        automatic = self.weights == "auto"
        return Storage(self.weights == "int8" or (self.guesses and automatic), automatic)


class Switch:
    """One network's wish, and what has come of it."""

    def __init__(self, wish: Wish, layout: str, example: Tensor, num_bytes: int) -> None:
        """`layout` as asked for, any of the network's weights, and the size of all of them."""
        self.wish = wish
        self._num_bytes = num_bytes
        self._objection = _objection(wish, layout, example) or _smallness(wish, num_bytes)
        self._packing: Future[object] | None = None
        self.reason = self._objection
        """Why passes are plain torch's; empty once they are native."""

    @property
    def is_refused(self) -> bool:
        """Whether passes will stay plain torch's."""
        return bool(self._objection)

    @property
    def may_come(self) -> bool:
        """Whether it is worth asking again."""
        if self._objection or not self.reason or self.is_large:
            return False
        return self._packing is not None or library.may_come()

    @property
    def is_large(self) -> bool:
        """Whether it does not wait for the library with its weights at hand, but for the next start."""
        return self._num_bytes > WAITING_BYTES

    def order(self) -> None:
        """See that somebody builds the library, where this network lacks it: a later start will find it."""
        if self.reason and not self._objection and library.library() is not None and self.is_large:
            self.reason = "built by now, and used from the next start on"

    def pack(self, make: Callable[[Library], Made], *, wait: bool) -> Made | None:
        """What `make` packs for the library; None while one of them is not ready.

        wait: for the packing, as at load; else it goes on in a thread. The library's building is waited for
        by nobody, and begun by those who do not wait.
        """
        ready = None if self._objection else library.library(start=not wait)
        if ready is None:
            self.reason = self._objection or library.absence()
            return None
        if self._packing is None:
            self._packing = _packing(lambda: make(ready), 0.0 if wait else HOLD_S)
        if not (wait or self._packing.done()):
            self.reason = "weights are being packed"
            return None
        return self._packed(self._packing)

    def _packed(self, packing: Future[object]) -> Made | None:
        self._packing, self.reason = None, ""
        try:
            return cast(Made, packing.result())
        except OSError as error:
            self.reason = self._objection = f"no memory for packed weights: {error}"
            log.warning("native passes: %s", self.reason)
            return None

    def plain(self, weight: Tensor) -> Tensor:
        """A weight as plain torch uses it."""
        return dequantised(weight) if self.wish.weights == "int8" else weight

    def plain_layer(self, layer: LayerWeights) -> LayerWeights:
        if self.wish.weights != "int8":
            return layer
        return layer._replace(
            qkv=_rounded(layer.qkv),
            out=_rounded(layer.out),
            gate_up=_rounded(layer.gate_up),
            down=_rounded(layer.down),
        )


def _packing(make: Callable[[], object], delay_s: float) -> Future[object]:
    """The packing, at once or in a thread after a while."""
    if not delay_s:
        done: Future[object] = Future()
        try:
            done.set_result(make())
        except OSError as error:
            done.set_exception(error)
        return done

    def late() -> object:
        time.sleep(delay_s)
        return make()

    thread = ThreadPoolExecutor(1, "packing")
    packing = thread.submit(late)
    thread.shutdown(wait=False)
    return packing


def _rounded(linear: Linear) -> Linear:
    return Linear(dequantised(linear.weight), linear.bias)


def _objection(wish: Wish, layout: str, example: Tensor) -> str:
    """Why native passes cannot be had, whatever is built."""
    if wish.narrow_bits is not None:
        return f"{wish.weights} weights are for kernels"
    if wish.native == "off":
        return "not asked for"
    if example.device.type != "cpu":
        return f"on {example.device.type}"
    if example.dtype != torch.float32:
        return f"only float32, not {str(example.dtype).removeprefix('torch.')}"
    if layout != "auto":
        return f"layout {layout} is asked for"
    return ""


def _smallness(wish: Wish, num_bytes: int) -> str:
    """Why a network whose float32 weights are so many bytes has to ask for native passes.

    Who asks for int8 does so: elsewhere on a CPU that only rounds.
    """
    num_weights = num_bytes // 4
    if wish.native != "auto" or wish.weights == "int8" or num_weights >= SMALL_WEIGHTS:
        return ""
    return f"{num_weights / 1e6:.0f} million weights are few: `native` on asks for it"


def describe(library: Library, packer: Packer) -> str:
    """A native network's layout in words."""
    kept = "int8" if 2 in packer.kinds else "bfloat16" if HALVES in packer.kinds else "float32"
    return f"native {library.simd}: {kept} weights"
