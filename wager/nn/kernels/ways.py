"""Which way a product is taken, by the weight's shape and the number of tokens: the library's, or our own.

Rules that give back what `python -m bench.gpu.tune` found quickest for the shapes of an 8B decoder on an
H200, and something like it for others: all programs of a product should be on the device at once, or the
rounds they take be well filled. Own products need a device with as much room as that one, and numbers of two
bytes; everything else, and every bias, is the library's. Used by `passes.py`.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from torch import Tensor

from wager.nn.kernels.device import Machine
from wager.nn.kernels.matmul import ProductConfig
from wager.nn.layers.decoder_layer import Linear

FEW, MANY = 32, 64
"""Tokens up to which the configurations of few, and of more, are used."""
_SOME = 4  # tokens up to which the library's product and a gate behind it are quicker than a gated one
_MOST_SPLITS = 8


class Role(Enum):
    """What becomes of a product: it is wanted whole, summed by the kernel behind it, or gated."""

    WHOLE = "whole"
    SUMMED = "summed"
    GATED = "gated"


class Ways(NamedTuple):
    """How products with one weight are taken: (most tokens, config) in ascending order; None, and beyond the
    last, is the library's.
    """

    by_tokens: Sequence[tuple[int, ProductConfig | None]] = ()

    def config(self, num_tokens: int) -> ProductConfig | None:
        for most, config in self.by_tokens:
            if num_tokens <= most:
                return config
        return None


LIBRARY = Ways()


def choose_ways(linear: Linear, role: Role, machine: Machine) -> Ways:
    """The ways of a weight [out, in] in its role."""
    weight: Tensor = linear.weight
    if not machine.is_roomy or weight.itemsize != 2 or linear.bias is not None:
        return LIBRARY
    return choose_products(weight.shape[0], weight.shape[1], role, machine.processors)


def choose_products(num_out: int, inner: int, role: Role, processors: int) -> Ways:
    if role is Role.SUMMED:
        return Ways(
            ((FEW, _split_few(num_out, inner, processors)), (MANY, _split(num_out, inner, processors)))
        )
    if role is Role.GATED:
        few, many = ProductConfig(32, 128, 1, 4, 3), ProductConfig(64, 64, 1, 4, 4)
        middle = num_out // 2
        return Ways((
            (_SOME, None),
            (FEW, few if _fill(middle, few, 3 * processors) > 0.8 else None),
            (MANY, many if _fill(middle, many, 2 * processors) > 0.7 else None),
        ))  # fmt: skip
    few, many = ProductConfig(64, 128, 1, 4, 3), ProductConfig(128, 64, 1, 4, 3)
    is_filled = _fill(num_out, few, 3 * processors) > 0.8
    return Ways(((FEW, few), (MANY, many)) if is_filled else ())


def _split_few(num_out: int, inner: int, processors: int) -> ProductConfig:
    """As many splits as fit on the device at once, three programs to a processor or two deeper ones."""
    tiles, splits = -(-num_out // 64), _MOST_SPLITS
    while splits > 1 and (tiles * splits > 3 * processors or 256 * splits > inner):
        splits //= 2
    return ProductConfig(64, 128, splits, 4, 4 if tiles * splits <= 2 * processors else 3, 0)


def _split(num_out: int, inner: int, processors: int) -> ProductConfig | None:
    """Two programs to a processor, or one that takes more rows of a long inner dimension."""
    if inner >= max(2 * num_out, 512) and -(-num_out // 128) * 4 <= processors:
        return ProductConfig(128, 128, 4, 8, 4, 0)
    if -(-num_out // 64) * 4 <= 2 * processors and inner >= 1024:
        return ProductConfig(64, 128, 4, 4, 3, 0)
    return None


def _fill(num_out: int, config: ProductConfig, at_once: int) -> float:
    """How much of the rounds that a product's programs take is filled."""
    tiles = -(-num_out // config.rows)
    return tiles / (-(-tiles // at_once) * at_once)
