"""Selects how a product is computed, by the weight's shape and the number of tokens: by the library or by our
kernel.

The rules reproduce what `python -m bench.gpu.tune` found fastest for the shapes of an 8B decoder on an H200,
and something similar for other shapes: all programs of a product should be on the device at once, or the
rounds they need should be well filled. Our kernel needs a device with as much shared memory as that one, and
16-bit values; all other products, and products with a bias, are the library's. `passes.py` uses this.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from torch import Tensor

from wager.nn.kernels.device import DeviceInfo
from wager.nn.kernels.matmul import ProductConfig
from wager.nn.layers.decoder_layer import Linear

FEW, MANY = 32, 64
"""Numbers of tokens up to which the configurations for few tokens, and for more, are used."""
_SOME = 4  # up to this number of tokens the library's product and a gate are faster than a gated product
_MOST_SPLITS = 8


class ProductRole(Enum):
    """The use of a product: whole, summed by the next kernel, or gated."""

    WHOLE = "whole"
    SUMMED = "summed"
    GATED = "gated"


class ProductPlan(NamedTuple):
    """The configurations of one weight: (largest number of tokens, config) in ascending order.

    None, and more tokens than the last entry, stand for the library's product.
    """

    by_tokens: Sequence[tuple[int, ProductConfig | None]] = ()

    def config(self, num_tokens: int) -> ProductConfig | None:
        for most, config in self.by_tokens:
            if num_tokens <= most:
                return config
        return None


CUBLAS_ONLY = ProductPlan()


def plan_products(linear: Linear, role: ProductRole, device_info: DeviceInfo) -> ProductPlan:
    """Returns the plan of a weight [out, in] in its role."""
    weight: Tensor = linear.weight
    if not device_info.has_large_shared_memory or weight.itemsize != 2 or linear.bias is not None:
        return CUBLAS_ONLY
    return plan_shape(weight.shape[0], weight.shape[1], role, device_info.num_sms)


def plan_shape(num_out: int, inner: int, role: ProductRole, num_sms: int) -> ProductPlan:
    if role is ProductRole.SUMMED:
        return ProductPlan(
            ((FEW, _split_few(num_out, inner, num_sms)), (MANY, _split(num_out, inner, num_sms)))
        )
    if role is ProductRole.GATED:
        few, many = ProductConfig(32, 128, 1, 4, 3), ProductConfig(64, 64, 1, 4, 4)
        middle = num_out // 2
        return ProductPlan((
            (_SOME, None),
            (FEW, few if _fill(middle, few, 3 * num_sms) > 0.8 else None),
            (MANY, many if _fill(middle, many, 2 * num_sms) > 0.7 else None),
        ))  # fmt: skip
    few, many = ProductConfig(64, 128, 1, 4, 3), ProductConfig(128, 64, 1, 4, 3)
    is_filled = _fill(num_out, few, 3 * num_sms) > 0.8
    return ProductPlan(((FEW, few), (MANY, many)) if is_filled else ())


def _split_few(num_out: int, inner: int, num_sms: int) -> ProductConfig:
    """Returns as many splits as fit on the device at once: three programs per multiprocessor, or two deeper
    ones.
    """
    tiles, splits = -(-num_out // 64), _MOST_SPLITS
    while splits > 1 and (tiles * splits > 3 * num_sms or 256 * splits > inner):
        splits //= 2
    return ProductConfig(64, 128, splits, 4, 4 if tiles * splits <= 2 * num_sms else 3, 0)


def _split(num_out: int, inner: int, num_sms: int) -> ProductConfig | None:
    """Returns two programs per multiprocessor, or one with more rows for a long inner dimension."""
    if inner >= max(2 * num_out, 512) and -(-num_out // 128) * 4 <= num_sms:
        return ProductConfig(128, 128, 4, 8, 4, 0)
    if -(-num_out // 64) * 4 <= 2 * num_sms and inner >= 1024:
        return ProductConfig(64, 128, 4, 4, 3, 0)
    return None


def _fill(num_out: int, config: ProductConfig, at_once: int) -> float:
    """Returns the filled share of the rounds that a product's programs need."""
    tiles = -(-num_out // config.rows)
    return tiles / (-(-tiles // at_once) * at_once)
