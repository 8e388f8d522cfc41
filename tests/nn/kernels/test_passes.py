"""A network's layers as a chain of kernels: own products and cuts give the library's numbers."""

import numpy as np
import pytest
import torch

from tests.nn.kernels.interpreter import BOUNDS, error, random
from wager.kvcache.pool import KVPool, PoolSpec
from wager.nn.kernels.device import INTERPRETER_INFO, DeviceInfo, read_device_info
from wager.nn.kernels.gate import gate_reference
from wager.nn.kernels.matmul import ProductConfig, product_reference
from wager.nn.kernels.norm import Norm
from wager.nn.kernels.passes import (
    ContextIngest,
    KernelLinear,
    KernelStack,
    PassViews,
    StackSpec,
    kernel_linear,
)
from wager.nn.kernels.product_plan import ProductPlan, ProductRole
from wager.nn.kernels.qkv import HeadTransform, TokenSlots, rotation_table
from wager.nn.kernels.split_plan import PassSize, plan_pass
from wager.nn.kernels.tables import PassTables, TableLimits, TableRow
from wager.nn.layers.attention import HeadShape
from wager.nn.layers.decoder_layer import LayerWeights, Linear
from wager.nn.rope import RopeSpec

HEADS, HIDDEN, MIDDLE = HeadShape(8, 2, 32), 512, 384
ROOMY = DeviceInfo(4, False, True)
DTYPE = torch.float16


def numbers(*size: int, device: torch.device, seed: int, scale: float = 0.05) -> torch.Tensor:
    return random(*size, dtype=DTYPE, device=device, seed=seed) * scale


def layer(device: torch.device, seed: int) -> LayerWeights:
    wide = (HEADS.num_heads + 2 * HEADS.num_kv_heads) * HEADS.head_dim
    sizes = ((wide, HIDDEN), (HIDDEN, 256), (2 * MIDDLE, HIDDEN), (HIDDEN, MIDDLE))
    qkv, out, gate_up, down = (
        Linear(numbers(*size, device=device, seed=seed + index)) for index, size in enumerate(sizes)
    )
    ones = torch.ones(HIDDEN, dtype=DTYPE, device=device)
    heads = HEADS.num_heads + HEADS.num_kv_heads
    norm = 1 + numbers(heads, HEADS.head_dim, device=device, seed=seed + 9)
    return LayerWeights(ones, qkv, norm, out, ones, gate_up, down)


def views(
    tokens: int, context: int, pool: PoolSpec, device_info: DeviceInfo, device: torch.device
) -> PassViews:
    """One causal row behind its context, on the pool's first pages."""
    plan = plan_pass(HEADS, PassSize(1, tokens), pool, device_info, device)
    tables = PassTables(TableLimits(tokens, 1, pool.num_pages, 1, plan.tiling.max_items), device)
    tables.host_pages[0] = np.arange(pool.num_pages)
    tables.host.positions[:] = tables.host.slots[:] = np.arange(context, context + tokens)
    tables.write_rows([TableRow(0, tokens, tokens, context, 0)], plan.tiling)
    tables.push()
    return PassViews(TokenSlots(tables.positions, tables.slots), tables.attention(), plan)


@pytest.mark.parametrize("tokens", [2, 7])
def test_own_products_are_the_librarys(device: torch.device, tokens: int) -> None:
    layers = [layer(device, seed) for seed in (0, 20)]
    frame = StackSpec(HEADS, 1e-6, (None, 40), rotation_table(RopeSpec(32, theta=1e4), 256, DTYPE, device))
    norm = torch.ones(HIDDEN, dtype=DTYPE, device=device)
    spec = PoolSpec(2, 4, 64, HEADS.num_kv_heads, HEADS.head_dim, DTYPE, device)
    x, ends = numbers(tokens, HIDDEN, device=device, seed=3, scale=1.0), []
    for device_info in (INTERPRETER_INFO, ROOMY):
        pool = KVPool(spec)
        pool.store.copy_(numbers(*pool.store.shape, device=device, seed=4, scale=1.0))
        stack = KernelStack(layers, norm, frame, device_info)
        features = x.new_empty(tokens, HIDDEN)
        state = stack.run(x, views(tokens, 100, spec, device_info, device), pool, (0,), features)
        ends.append((state, features, pool.store))
    for plain, own in zip(*ends, strict=True):
        assert error(own, plain) <= 8 * BOUNDS[DTYPE]


def test_a_stack_has_its_own_products_where_there_is_room(device: torch.device) -> None:
    one = layer(device, 0)
    configs = [
        kernel_linear(linear, role, ROOMY)._ways.config(8)  # type: ignore[union-attr]
        for linear, role in (
            (one.qkv, ProductRole.SUMMED),
            (one.down, ProductRole.SUMMED),
            (one.gate_up, ProductRole.GATED),
        )
    ]
    assert [config and config.splits for config in configs] == [2, 1, 1]
    assert kernel_linear(one.qkv, ProductRole.SUMMED, INTERPRETER_INFO)._ways.config(8) is None  # type: ignore[union-attr]


@pytest.mark.parametrize("config", [None, ProductConfig(16, 32, 1), ProductConfig(16, 32, 3)], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_matrix_in_every_role(device: torch.device, config: ProductConfig | None, has_bias: bool) -> None:
    x = numbers(5, 96, device=device, seed=1, scale=1.0)
    weight = numbers(48, 96, device=device, seed=2)
    bias = numbers(48, device=device, seed=3) if has_bias else None
    one = KernelLinear(Linear(weight, bias), ProductPlan(((8, config),)))
    want = product_reference(x.double(), weight.double(), None if bias is None else bias.double())
    out = torch.full((7, 48), torch.nan, dtype=DTYPE, device=device)
    assert one(x, out[:5]).data_ptr() == out.data_ptr()
    assert bool(out[5:].isnan().all())
    partial_sums = one.partial_sums(x).double()
    partial_sums = partial_sums if partial_sums.dim() == 2 else partial_sums.sum(dim=0)
    for got in (out[:5], one(x), partial_sums):
        assert error(got, want) <= BOUNDS[DTYPE]
    assert error(one.gated(x), gate_reference(want)) <= 4 * BOUNDS[DTYPE]
    many = numbers(200, 96, device=device, seed=4, scale=1.0)
    assert one(many).shape == (200, 48)


def test_context_is_written_alike(device: torch.device) -> None:
    heads, spec = HeadShape(2, 2, 32), PoolSpec(3, 1, 64, 2, 32, DTYPE, device)
    fc, context = (
        Linear(numbers(*size, device=device, seed=index))
        for index, size in enumerate(((HIDDEN, 1024), (384, HIDDEN)))
    )
    table = rotation_table(RopeSpec(32, theta=1e4), 64, DTYPE, device)
    turn = HeadTransform(heads, torch.ones(6, 32, dtype=DTYPE, device=device), 1e-6, table)
    norm = Norm(torch.ones(HIDDEN, dtype=DTYPE, device=device), 1e-6)
    places = TokenSlots(*(torch.arange(4, device=device) for _ in range(2)))
    stores = []
    for device_info in (INTERPRETER_INFO, ROOMY._replace(num_sms=20)):
        pool = KVPool(spec)
        pool.store.zero_()
        made = [kernel_linear(linear, ProductRole.SUMMED, device_info) for linear in (fc, context)]
        entry = ContextIngest(made[0], norm, made[1], turn, device_info.launch)
        entry.run(numbers(4, 1024, device=device, seed=5, scale=1.0), places, pool)
        stores.append(pool.store)
    assert bool(stores[0][:, :, :, :4].any()) and not bool(stores[0][:, :, :, 4:].any())
    assert error(stores[1], stores[0]) <= 4 * BOUNDS[DTYPE]


def test_a_device_without_cuda_is_the_interpreters() -> None:
    assert read_device_info("cpu") is INTERPRETER_INFO and not INTERPRETER_INFO.launch.pdl
