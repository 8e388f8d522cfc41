"""Matrix products with weights in the layout that is fastest on this machine.

A weight has one of three layouts: "out_in" as published, "in_out" transposed (K-major), and "packed" in the
tiling of the CPU matrix library. The fastest layout depends on the machine, the shape and the number of
tokens, so `choose_layout` measures them at load, for one token and for several. The choice is reported and
can be overridden. This module knows nothing of models; every network uses it at inference.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from wager.errors import ConfigError

LAYOUT_NAMES = ("out_in", "in_out", "packed")
# The first number of tokens represents plain decoding, the others represent verify passes.
PROBE_TOKENS = (1, 4, 8, 16)
PROBE_ROUNDS = 6
PROBE_S = 0.1
PROBE_MATRICES = 6
PROBE_BYTES = 16 << 20
# The packed tiling depends on a number of tokens: tiling for one is slow for several; this number suits all.
PACK_TOKENS = 64
TWO_COPIES_MAX_BYTES = 2 << 30

Shape = tuple[int, int]


class LaidOutWeight(Protocol):
    """A weight in one layout, with its products."""

    def product(self, x: Tensor) -> Tensor:
        """Returns x @ W^T (+ bias)."""
        ...

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Returns residual + x @ W^T (+ bias) as a new tensor."""
        ...


class OutIn:
    """The weight as published: [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self._transposed = weight.t()

    def product(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        out = torch.addmm(residual, x, self._transposed)
        return out if self.bias is None else out.add_(self.bias)


class InOut:
    """The weight transposed and contiguous: [in, out]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight.t().contiguous(), bias

    def product(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.weight) if self.bias is None else torch.addmm(self.bias, x, self.weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        out = torch.addmm(residual, x, self.weight)
        return out if self.bias is None else out.add_(self.bias)


class Packed:
    """The weight in oneDNN's tiling, which torch's compiler uses on CPUs for constant weights."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.bias = bias
        self._out = weight.shape[0]
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACK_TOKENS)
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    def product(self, x: Tensor) -> Tensor:
        if x.shape[0] == 0:
            return x.new_empty((0, self._out))
        out: Tensor = self._product(x, self.weight, self.bias, "none", [], "")
        return out

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        if x.shape[0] == 0:
            return residual
        out: Tensor = self._binary(x, residual, self.weight, self.bias, "add")
        return out


_BUILDERS: Mapping[str, Callable[[Tensor, Tensor | None], LaidOutWeight]] = {
    "out_in": OutIn,
    "in_out": InOut,
    "packed": Packed,
}


@dataclass(frozen=True)
class LayoutChoice:
    """The layout for passes of one token and of several; if they differ, the weight is stored twice."""

    one: str = "out_in"
    many: str = "out_in"


@dataclass(frozen=True)
class Layout:
    """The choice for each weight shape (out, in) of a model, and its source."""

    choices: Mapping[Shape, LayoutChoice] = field(default_factory=dict)
    source: str = "default"

    def of(self, shape: Shape) -> LayoutChoice:
        return self.choices.get(shape, LayoutChoice())

    def __str__(self) -> str:
        parts = [f"{out}x{inner} {c.one}/{c.many}" for (out, inner), c in sorted(self.choices.items())]
        return f"{self.source}: " + (", ".join(parts) or "out_in")


class Projection:
    """A linear map in its chosen layouts."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, choice: LayoutChoice | None = None
    ) -> None:
        choice = choice or LayoutChoice()
        self.shape: Shape = (weight.shape[0], weight.shape[1])
        self.choice = choice
        self._one = _BUILDERS[choice.one](weight, bias)
        self._many = self._one if choice.many == choice.one else _BUILDERS[choice.many](weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Maps x [tokens, in] to [tokens, out]."""
        return (self._many if x.shape[0] > 1 else self._one).product(x)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Returns residual [tokens, out] + the product, as a new tensor."""
        return (self._many if x.shape[0] > 1 else self._one).add_to(residual, x)


def choose_layout(weights: Iterable[Tensor], request: str = "auto") -> Layout:
    """Returns the layout of a model, given all its matrices.

    `request` is "auto" (measure) or one of LAYOUT_NAMES. Models above TWO_COPIES_MAX_BYTES store each weight
    only once. Raises ConfigError on any other word, and on "packed" if this build or dtype does not support
    it.
    """
    samples: dict[Shape, list[Tensor]] = {}
    total_bytes = 0
    for weight in weights:
        samples.setdefault((weight.shape[0], weight.shape[1]), []).append(weight)
        total_bytes += weight.nbytes
    if request != "auto":
        return _requested_layout(samples, request)
    if any(same[0].device.type != "cpu" for same in samples.values()):
        return Layout({shape: LayoutChoice() for shape in samples}, "device default")
    allow_both = total_bytes <= TWO_COPIES_MAX_BYTES
    choices = {shape: _probe(same, allow_both) for shape, same in samples.items()}
    return Layout(choices, f"probed with {torch.get_num_threads()} threads")


def _requested_layout(samples: Mapping[Shape, list[Tensor]], request: str) -> Layout:
    if request not in LAYOUT_NAMES:
        raise ConfigError("layout", request, "auto or one of " + ", ".join(LAYOUT_NAMES))
    for same in samples.values():
        if request not in available_layouts(same[0]):
            raise ConfigError("layout", request, f"a layout this machine has for {same[0].dtype}")
    return Layout({shape: LayoutChoice(request, request) for shape in samples}, "requested")


def available_layouts(weight: Tensor) -> list[str]:
    """Returns the layouts that work for a weight's dtype and device; "packed" is tried on a part of the
    weight.
    """
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return ["out_in", "in_out"]
    try:
        Packed(weight[:16, :16], None).product(weight.new_ones(2, min(16, weight.shape[1])))
    except (RuntimeError, NotImplementedError, AttributeError):
        return ["out_in", "in_out"]
    return list(LAYOUT_NAMES)


@torch.inference_mode()
def _probe(same: Sequence[Tensor], allow_both: bool) -> LayoutChoice:
    """Returns the fastest layouts of one shape, measured over several matrices so that they do not stay in
    the cache.
    """
    chosen = same[: min(PROBE_MATRICES, max(1, PROBE_BYTES // same[0].nbytes))]
    in_layout = {name: [_BUILDERS[name](w, None) for w in chosen] for name in available_layouts(same[0])}
    seconds = _time_all(in_layout, [same[0].new_ones(count, same[0].shape[1]) for count in PROBE_TOKENS])
    one = {name: times[0] for name, times in seconds.items()}
    many = {name: sum(times[1:]) for name, times in seconds.items()}
    if allow_both:
        return LayoutChoice(min(one, key=one.__getitem__), min(many, key=many.__getitem__))
    best_one, best_many = min(one.values()), min(many.values())
    single = min(one, key=lambda name: one[name] / best_one + many[name] / best_many)
    return LayoutChoice(single, single)


def _time_all(
    in_layout: Mapping[str, Sequence[LaidOutWeight]], inputs: Sequence[Tensor]
) -> dict[str, list[float]]:
    """Returns seconds per layout and input: the minimum per matrix, because stalls only add time, then the
    sum.

    The layouts alternate in every round, so that a slow moment does not affect only one of them. The first
    round warms up; after PROBE_S no further round begins.
    """
    best = {name: [[float("inf")] * len(ways) for _ in inputs] for name, ways in in_layout.items()}
    began = time.perf_counter()
    for number in range(PROBE_ROUNDS + 1):
        if number > 1 and time.perf_counter() - began > PROBE_S:
            break
        for index, x in enumerate(inputs):
            for name, ways in in_layout.items():
                seen = best[name][index]
                for place, way in enumerate(ways):
                    took = _seconds(way, x)
                    seen[place] = took if number == 0 else min(seen[place], took)
    return {name: [sum(seen) for seen in rows] for name, rows in best.items()}


def _seconds(weight: LaidOutWeight, x: Tensor) -> float:
    began = time.perf_counter()
    weight.product(x)
    return time.perf_counter() - began
