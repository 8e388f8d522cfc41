"""Weights of a grown network, created one tensor at a time on demand.

`GrownReader` behaves like a reader of the large network's folder. It puts small weights in their seats, zeros
where a new part would write to the residual, and random numbers elsewhere, which depend on the name and the
seed only. It knows no config and writes no file; `grow.py` creates it.

    h, H, e, E    small and large hidden size, small and large eps of all norms
    c             the constant channel: every embedding contains it, every norm sees its square
    hidden norms  (|x|^2 + c^2) / H + E = h/H * (|x|^2 / h + e), so E = (e h - c^2) / H and weight * sqrt(h/H)
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from wager.nn.weights import WeightReader
from wager.train.grow_shape import (
    LayerShape,
    Seats,
    first_seats,
    head_rows,
    key_dims,
    key_heads,
    layer_seats,
    query_dims,
    query_heads,
    value_dims,
)

SPREAD = 0.02
"""Standard deviation of random weights, as in the initialisation of such networks."""
CONSTANT_SHARE = 0.75
"""c^2 as a fraction of e * h; with this value the factors of matrices are powers of two."""
GAP, GAP_RMS = 100.0, 1000.0
"""Score difference between a new token id and the one it copies, at a last residual of RMS GAP_RMS."""

_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


class Width(NamedTuple):
    """A size before and after."""

    small: int
    big: int


@dataclass(frozen=True)
class Growth:
    """The growth of one network. `num_features` is 0 for a target, else the drafter's number of feature
    layers.
    """

    small: LayerShape
    big: LayerShape
    hidden: Width
    vocab: Width
    eps: float
    constant: float
    bias: bool = False
    tied: bool = False
    num_features: int = 0

    @property
    def grown_eps(self) -> float:
        return (self.eps * self.hidden.small - self.constant**2) / self.hidden.big

    @property
    def layers(self) -> tuple[int, ...]:
        """The large layer of each small one."""
        return layer_seats(self.small.num_layers, self.big.num_layers)

    @property
    def constant_channel(self) -> int | None:
        return self.hidden.small if self.constant else None

    def small_shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes(self.small, self.hidden.small, self.vocab.small, self.tied)

    def big_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns all tensors of the large network in the order of its passes; the head is never tied."""
        return self._shapes(self.big, self.hidden.big, self.vocab.big, False)

    def _shapes(self, net: LayerShape, hidden: int, vocab: int, tied: bool) -> dict[str, tuple[int, ...]]:
        one = _layer_shapes(net, hidden, self.bias)
        layers = {f"layers.{i}.{name}": shape for i in range(net.num_layers) for name, shape in one.items()}
        if self.num_features:
            width = self.num_features * hidden
            first = {"fc.weight": (hidden, width), "hidden_norm.weight": (hidden,)}
            return {**first, **layers, "norm.weight": (hidden,)}
        words = {"model.embed_tokens.weight": (vocab, hidden)}
        inside = {f"model.{name}": shape for name, shape in layers.items()}
        head = {} if tied else {"lm_head.weight": (vocab, hidden)}
        return {**words, **inside, "model.norm.weight": (hidden,), **head}


def _layer_shapes(net: LayerShape, hidden: int, bias: bool) -> dict[str, tuple[int, ...]]:
    queries, keys, middle = (
        net.num_heads * net.head_dim,
        net.num_kv_heads * net.head_dim,
        net.intermediate_size,
    )
    attention = {
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
    }
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    for name, shape in attention.items():
        shapes[f"self_attn.{name}.weight"] = shape
        if bias:
            shapes[f"self_attn.{name}.bias"] = shape[:1]
    return shapes | {
        "self_attn.q_norm.weight": (net.head_dim,),
        "self_attn.k_norm.weight": (net.head_dim,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (middle, hidden),
        "mlp.up_proj.weight": (middle, hidden),
        "mlp.down_proj.weight": (hidden, middle),
    }


def choose_constant(eps: float, hidden: int, dtype: torch.dtype) -> float:
    """Returns c in the precision of the dtype; its square replaces most of eps, so that norms do not
    change.
    """
    return float(torch.tensor(math.sqrt(CONSTANT_SHARE * eps * hidden), dtype=dtype))


class GrownReader(WeightReader):
    """The large network's weights by name. It has no files: `source` reads those of the small network."""

    def __init__(
        self,
        folder: str | Path,
        growth: Growth,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        """Opens the small folder, whose weights are read in float64. Raises WeightsError."""
        self.source = WeightReader(folder, torch.float64)
        self.folder, self.dtype, self.device = self.source.folder, dtype, torch.device(device)
        self.growth, self.seed = growth, seed
        self._shapes, self._small_shapes = growth.big_shapes(), growth.small_shapes()

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def leftovers(self) -> list[str]:
        """Returns an empty list, because every tensor is created on demand."""
        return []

    def get(self, name: str, shape: Sequence[int], check_finite: bool = True) -> Tensor:
        """Returns a grown tensor on the device. Raises WeightsError if a small one is missing or has a wrong
        shape.
        """
        assert self._shapes.get(name) == tuple(shape), f"{name} of shape {tuple(shape)}"
        found = _LAYER.search(name)
        return self._outer(name) if found is None else self._inner(name, int(found[1]), found[2])

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all tensors, one after the other; none is cached."""
        for name, shape in self._shapes.items():
            yield name, self.get(name, shape)

    def _inner(self, name: str, layer: int, part: str) -> Tensor:
        """Returns a tensor of a layer, whether the layer has a small counterpart or not."""
        seats = self.growth.layers
        if layer in seats:
            small = self._small(name.replace(f"layers.{layer}.", f"layers.{seats.index(layer)}.", 1))
        else:
            small = None
        if "norm" in part:
            return self._norm(name, part, small)
        if ".o_proj" in part or ".down_proj" in part:
            return self._writing(name, part, small)
        return self._reading(name, part, small)

    def _outer(self, name: str) -> Tensor:
        if name == "fc.weight":
            return self._fc(name)
        if name == "model.embed_tokens.weight":
            return self._embedding(name)
        if name == "lm_head.weight":
            return self._head(name)
        return self._norm(name, name, self._small(name))

    def _reading(self, name: str, part: str, small: Tensor | None) -> Tensor:
        """Returns a matrix that reads the residual, or its bias: random except for the small one.

        Columns of new channels may be random, because their inputs are zero; so is the constant channel after
        its norm.
        """
        grown = self._random(name)
        if small is None:
            return grown
        rows, scale = self._rows[part.split(".")[1]]
        _put(grown, small * scale, rows, first_seats(self.growth.hidden.small))
        grown[list(rows.empty)] = 0
        return grown

    def _writing(self, name: str, part: str, small: Tensor | None) -> Tensor:
        """Returns a matrix that writes to the residual, or its bias: zero except for the small one."""
        grown = self._zeros(name)
        if small is not None:
            columns = self._columns[part.split(".")[1]]
            _put(grown, small, first_seats(self.growth.hidden.small), columns)
        return grown

    def _norm(self, name: str, part: str, small: Tensor | None) -> Tensor:
        grown = self._random(name).add_(1)
        if small is None:
            return grown
        if "q_norm" in part or "k_norm" in part:
            dims = (query_dims if "q_norm" in part else key_dims)(self.growth.small, self.growth.big)
            _put(grown, small, dims)
            return grown
        hidden, constant = self.growth.hidden, self.growth.constant_channel
        grown[: hidden.small] = (small * math.sqrt(hidden.small / hidden.big)).to(grown)
        if constant is not None:
            # Only the last norm passes the constant on, to the head.
            grown[constant] = self._push if name in ("model.norm.weight", "norm.weight") else 0.0
        return grown

    def _embedding(self, name: str) -> Tensor:
        small, grown, growth = self._small(name), self._random(name), self.growth
        grown[: growth.vocab.small] = 0
        grown[: growth.vocab.small, : growth.hidden.small] = small.to(grown)
        if growth.constant_channel is not None:
            grown[:, growth.constant_channel] = growth.constant
        return grown

    def _head(self, name: str) -> Tensor:
        """Returns the head. New rows copy the old ones in turn and are lowered through the constant channel.

        So no new token id can score above the one it copies, and together they have almost no probability.
        """
        growth = self.growth
        small = self._small("model.embed_tokens.weight" if growth.tied else name).to(self.dtype)
        grown, (old, new) = self._random(name), growth.vocab
        for start in range(0, new, old):
            stop = min(start + old, new)
            grown[start:stop, : growth.hidden.small] = small[: stop - start].to(grown)
        if growth.constant_channel is not None:
            grown[:old, growth.constant_channel] = 0
            grown[old:, growth.constant_channel] = -self._push
        return grown

    def _fc(self, name: str) -> Tensor:
        """Returns the feature projection. Features are residuals, so the columns of the constant are zero.

        A norm follows, so new rows are zero too. The scale compensates the constant, which that norm does not
        see.
        """
        growth, grown = self.growth, self._random(name)
        hidden = growth.hidden
        taps = range(growth.num_features)
        columns = Seats(
            tuple(tap * hidden.big + place for tap in taps for place in range(hidden.small)),
            tuple(range(growth.num_features * hidden.small)),
        )
        scale = self._factor(growth.grown_eps * hidden.big / (growth.eps * hidden.small))
        _put(grown, self._small(name) * scale, first_seats(hidden.small), columns)
        if growth.constant_channel is not None:
            grown[:, growth.constant_channel :: hidden.big] = 0
        grown[hidden.small :] = 0
        return grown

    @cached_property
    def _rows(self) -> dict[str, tuple[Seats, float]]:
        """Returns for each matrix that reads: the seats of its rows, and their factor.

        The factor of queries and keys only keeps eps in proportion, because a norm follows that cancels it.
        """
        small, big = self.growth.small, self.growth.big
        queries = [(head, index) for index, head in enumerate(query_heads(small, big))]
        keys = list(enumerate(key_heads(small, big)))
        dims, middle = (small.head_dim, big.head_dim), first_seats(small.intermediate_size)
        shrink = self.growth.grown_eps / self.growth.eps
        return {
            "q_proj": (head_rows(queries, query_dims(small, big), *dims), self._factor(shrink)),
            "k_proj": (
                head_rows(keys, key_dims(small, big), *dims),
                self._factor(shrink * big.head_dim / small.head_dim),
            ),
            "v_proj": (head_rows(keys, value_dims(small), *dims), 1.0),
            "gate_proj": (middle, 1.0),
            "up_proj": (middle, 1.0),
        }

    @cached_property
    def _columns(self) -> dict[str, Seats]:
        """Returns for each matrix that writes: the columns of the small one."""
        small, big = self.growth.small, self.growth.big
        queries = [(head, index) for index, head in enumerate(query_heads(small, big))]
        return {
            "o_proj": head_rows(queries, value_dims(small), small.head_dim, big.head_dim),
            "down_proj": first_seats(small.intermediate_size),
        }

    @property
    def _push(self) -> float:
        """Returns the constant's weight in the last norm and, negated, in new head rows; the product is the
        gap.
        """
        hidden = self.growth.hidden
        at_one = self.growth.constant * math.sqrt(hidden.big / hidden.small)
        return math.sqrt(GAP * GAP_RMS / at_one)

    def _factor(self, square: float) -> float:
        """Returns the root of a ratio of eps, in 16 bits rounded to a power of two, which rounds no weight.

        Eps is then wrong by at most a factor of two, far below the precision of these dtypes.
        """
        if self.dtype.itemsize >= 4:
            return math.sqrt(square)
        return 2.0 ** round(math.log2(square) / 2)

    def _small(self, name: str) -> Tensor:
        return self.source.get(name, self._small_shapes[name])

    def _zeros(self, name: str) -> Tensor:
        return torch.zeros(self._shapes[name], dtype=self.dtype, device=self.device)

    def _random(self, name: str) -> Tensor:
        word = hashlib.blake2b(f"{self.seed} {name}".encode(), digest_size=7).digest()
        generator = torch.Generator(self.device).manual_seed(int.from_bytes(word, "big"))
        empty = torch.empty(self._shapes[name], dtype=self.dtype, device=self.device)
        return empty.normal_(0.0, SPREAD, generator=generator)


def _put(grown: Tensor, small: Tensor, rows: Seats, columns: Seats | None = None) -> None:
    """Copies the values at the small seats to the large ones; a vector has rows only."""
    own = small[list(rows.small)]
    if small.ndim == 1:
        grown[list(rows.big)] = own.to(grown)
        return
    assert columns is not None
    at = torch.tensor(rows.big, device=grown.device)[:, None]
    across = torch.tensor(columns.big, device=grown.device)[None, :]
    grown[at, across] = own[:, list(columns.small)].to(grown)
