"""Decides whether a network's passes are native or plain torch, and records why.

A network tries at load and, while the library is being built, again whenever its engine is idle. It does not
change while a request runs, because native and plain passes round differently. Weights are packed in a
thread, so no request waits for that either. This module knows no model; `models/` uses it and reports
`reason`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor

from wager.errors import ConfigError
from wager.nn.layers.decoder_layer import LayerWeights, Linear
from wager.nn.native import library
from wager.nn.native.library import Library
from wager.nn.native.pack import FLOATS, HALVES, INT8, NAMES, Packer, Storage, dequantised

log = logging.getLogger(__name__)

NATIVE_MODES = ("auto", "on", "off")
WEIGHT_KINDS = ("auto", "full", "int8", "int4")
ACTIVATION_KINDS = ("auto", "full", "int16", "int8")
_LIMBS = {"full": 0, "int16": 2, "int8": 1}
_NARROW_BITS = {"int8": 8, "int4": 4}
# A larger network does not keep a second copy of its weights while the library is being built.
MAX_WAITING_BYTES = 2 << 30
BUILD_PAUSE_S = 1.0
"""Seconds after the arrival of a request in which nothing is compiled or packed."""
Packed = TypeVar("Packed")


class NativeNetwork(Protocol):
    """A network that can change to native passes while its engine is idle."""

    native_loader: NativeLoader

    def try_native(self, *, wait: bool = False) -> bool:
        """Changes to native passes if they are ready; returns whether that happened in this call."""
        ...


@dataclass(frozen=True)
class PassOptions:
    """How the passes of a network run.

    `native` is "auto", "on" or "off"; the engine warns if "on" is impossible, otherwise it is "auto".
    `weights` "auto" keeps published bfloat16 weights, "full" widens them, "int8" rounds them to 8 bits with a
    scale per group, and "int4", which only kernels support, to 4 bits. `activations` says how native passes
    round the inputs of products with quantised weights: "full" keeps float32, and "auto" is int16 for
    published weights and int8 for those that are rounded here. `is_drafter` makes "auto" int8 in native
    passes, because a rounded drafter can only cost a guess. `kernels` says that the passes use the kernels
    of a CUDA device.
    """

    native: str = "off"
    weights: str = "auto"
    is_drafter: bool = False
    kernels: bool = False
    activations: str = "auto"

    def __post_init__(self) -> None:
        allowed_words = (NATIVE_MODES, WEIGHT_KINDS, ACTIVATION_KINDS)
        for name, words in zip(("native", "weights", "activations"), allowed_words, strict=True):
            if getattr(self, name) not in words:
                raise ConfigError(name, getattr(self, name), "one of " + ", ".join(words))
        if self.weights == "int4" and not self.kernels:
            allowed = "auto, full or int8: int4 needs a CUDA device and kernels that are not off"
            raise ConfigError("weights", self.weights, allowed)
        if self.rounds_activations and (self.kernels or self.native == "off"):
            raise ConfigError("activations", self.activations, "auto or full: native passes are not in use")
        if self.activations == "full" and self.weights == "int8" and not self.kernels:
            raise ConfigError("activations", self.activations, "auto, int16 or int8 with int8 weights")

    @property
    def rounds_activations(self) -> bool:
        """Whether rounded activations are asked for by name."""
        return self.activations in ("int16", "int8")

    def for_drafter(self, native: str) -> PassOptions:
        """Returns the options of a drafter beside a network with these."""
        return replace(self, native=native, activations="auto", is_drafter=True)

    def check_activations(self, is_quantised: bool) -> None:
        """Raises ConfigError if rounded activations are asked for, and no weights are kept quantised."""
        if self.rounds_activations and self.weights != "int8" and not is_quantised:
            allowed = "auto or full: only quantised weights are multiplied by rounded activations"
            raise ConfigError("activations", self.activations, allowed)

    @property
    def quant_bits(self) -> int | None:
        """Number of bits of the weights that kernels use; None: full width."""
        return _NARROW_BITS.get(self.weights) if self.kernels else None

    def keeps_narrow(self, dtype: torch.dtype, device: torch.device | str, layout: str) -> bool:
        """Whether weights that a file has quantised are kept so: native passes may multiply them."""
        wanted = self.native != "off" and self.weights == "auto"
        return wanted and layout == "auto" and dtype == torch.float32 and torch.device(device).type == "cpu"

    @property
    def storage(self) -> Storage:
        automatic = self.weights == "auto"
        quantised = self.weights == "int8" or (self.is_drafter and automatic)
        return Storage(quantised, automatic, self._limbs(quantised))

    def _limbs(self, quantised: bool) -> int:
        if self.is_drafter or (self.activations == "auto" and quantised):
            return 1
        return _LIMBS.get(self.activations, 2)


class NativeLoader:
    """The options of one network, and the state of its native passes."""

    def __init__(self, options: PassOptions, layout: str, example: Tensor, num_bytes: int) -> None:
        """`layout` is the requested layout, `example` any weight of the network, `num_bytes` the size of all
        of them.
        """
        self.options = options
        self._num_bytes = num_bytes
        self._refusal = _refusal(options, layout, example)
        self._packing: Future[object] | None = None
        self.reason = self._refusal
        """Why passes are plain torch; empty once they are native."""

    @property
    def is_refused(self) -> bool:
        """Whether passes will stay plain torch."""
        return bool(self._refusal)

    @property
    def may_become_ready(self) -> bool:
        """Whether another try may succeed."""
        if self._refusal or not self.reason or self.is_large:
            return False
        return self._packing is not None or library.may_become_ready()

    @property
    def is_large(self) -> bool:
        """Whether the network is too large to wait for the library; it uses the library from the next start
        on.
        """
        return self._num_bytes > MAX_WAITING_BYTES

    def request_build(self) -> None:
        """Starts a build for a large network, which a later start will find."""
        if self.reason and not self._refusal and library.library() is not None and self.is_large:
            self.reason = "built; it is used from the next start on"

    def pack(self, make: Callable[[Library], Packed], *, wait: bool) -> Packed | None:
        """Returns the result of `make` for the library, or None while the library or the result is not ready.

        `wait` waits for the packing, as at load; otherwise a thread packs. No call waits for the build of the
        library; calls without `wait` start it.
        """
        ready = None if self._refusal else library.library(start=not wait)
        if ready is None:
            self.reason = self._refusal or library.unavailable_reason()
            return None
        if self._packing is None:
            self._packing = _packing(lambda: make(ready), 0.0 if wait else BUILD_PAUSE_S)
        if not (wait or self._packing.done()):
            self.reason = "weights are being packed"
            return None
        return self._packed(self._packing)

    def _packed(self, packing: Future[object]) -> Packed | None:
        self._packing, self.reason = None, ""
        try:
            return cast(Packed, packing.result())
        except OSError as error:
            self.reason = self._refusal = f"no memory for packed weights: {error}"
            log.warning("native passes: %s", self.reason)
            return None

    def plain(self, weight: Tensor) -> Tensor:
        """Returns a weight as plain torch uses it."""
        return dequantised(weight) if self.options.weights == "int8" else weight

    def plain_layer(self, layer: LayerWeights) -> LayerWeights:
        if self.options.weights != "int8":
            return layer
        return layer._replace(
            qkv=_rounded(layer.qkv),
            out=_rounded(layer.out),
            gate_up=_rounded(layer.gate_up),
            down=_rounded(layer.down),
        )


def _packing(make: Callable[[], object], delay_s: float) -> Future[object]:
    """Starts the packing, at once or in a thread after a delay."""
    if not delay_s:
        done: Future[object] = Future()
        try:
            done.set_result(make())
        except OSError as error:
            done.set_exception(error)
        return done

    def after_delay() -> object:
        time.sleep(delay_s)
        return make()

    thread = ThreadPoolExecutor(1, "packing")
    packing = thread.submit(after_delay)
    thread.shutdown(wait=False)
    return packing


def _rounded(linear: Linear) -> Linear:
    return Linear(dequantised(linear.weight), linear.bias)


def _refusal(options: PassOptions, layout: str, example: Tensor) -> str:
    """Returns why native passes are impossible for these options; empty if they are possible."""
    if options.quant_bits is not None:
        return f"{options.weights} weights need kernels"
    if options.native == "off":
        return "not asked for"
    if example.device.type != "cpu":
        return f"on {example.device.type}"
    if example.dtype != torch.float32:
        return f"only float32, not {str(example.dtype).removeprefix('torch.')}"
    if layout != "auto":
        return f"layout {layout} is asked for"
    return ""


def describe_layout(library: Library, packer: Packer) -> str:
    """Returns a description of a native network's layout."""
    kinds = packer.kinds
    if kinds <= {FLOATS, HALVES, INT8}:
        kinds = {max(kinds)}
    kept = ", ".join(NAMES[kind] for kind in sorted(kinds, reverse=True))
    rounded = f", {8 * packer.limbs}-bit activations" if packer.limbs else ""
    return f"native {library.simd}: {kept} weights{rounded}"
