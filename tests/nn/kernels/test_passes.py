"""A network's layers as a chain of kernels: own products and cuts give the library's numbers."""

import numpy as np
import pytest
import torch

from tests.nn.kernels.ways import BOUNDS, error, random
from wager.kvcache.pool import KVPool, PoolSpec
from wager.nn.kernels.cuts import PassSize, plan_pass
from wager.nn.kernels.device import INTERPRETER, Machine, machine_of
from wager.nn.kernels.gate import gate_reference
from wager.nn.kernels.matmul import ProductConfig, product_reference
from wager.nn.kernels.norm import Norm
from wager.nn.kernels.passes import ContextEntry, Frame, KernelStack, Matrix, PassViews, matrix
from wager.nn.kernels.qkv import Places, Turn, rotation_table
from wager.nn.kernels.tables import PassTables, TableLimits, TableRow
from wager.nn.kernels.ways import Role, Ways
from wager.nn.layers.attention import HeadShape
from wager.nn.layers.decoder_layer import LayerWeights, Linear
from wager.nn.rope import RopeSpec

HEADS, HIDDEN, MIDDLE = HeadShape(8, 2, 32), 512, 384
ROOMY = Machine(4, False, True)
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


def views(tokens: int, context: int, pool: PoolSpec, machine: Machine, device: torch.device) -> PassViews:
    """One causal row behind its context, on the pool's first pages."""
    plan = plan_pass(HEADS, PassSize(1, tokens), pool, machine, device)
    tables = PassTables(TableLimits(tokens, 1, pool.num_pages, 1, plan.tiling.max_items), device)
    tables.host_pages[0] = np.arange(pool.num_pages)
    tables.host.positions[:] = tables.host.slots[:] = np.arange(context, context + tokens)
    tables.lay_rows([TableRow(0, tokens, tokens, context, 0)], plan.tiling)
    tables.push()
    return PassViews(Places(tables.positions, tables.slots), tables.attention(), plan)


@pytest.mark.parametrize("tokens", [2, 7])
def test_own_products_are_the_librarys(device: torch.device, tokens: int) -> None:
    layers = [layer(device, seed) for seed in (0, 20)]
    frame = Frame(HEADS, 1e-6, (None, 40), rotation_table(RopeSpec(32, theta=1e4), 256, DTYPE, device))
    norm = torch.ones(HIDDEN, dtype=DTYPE, device=device)
    spec = PoolSpec(2, 4, 64, HEADS.num_kv_heads, HEADS.head_dim, DTYPE, device)
    x, ends = numbers(tokens, HIDDEN, device=device, seed=3, scale=1.0), []
    for machine in (INTERPRETER, ROOMY):
        pool = KVPool(spec)
        pool.store.copy_(numbers(*pool.store.shape, device=device, seed=4, scale=1.0))
        stack = KernelStack(layers, norm, frame, machine)
        features = x.new_empty(tokens, HIDDEN)
        state = stack.run(x, views(tokens, 100, spec, machine, device), pool, (0,), features)
        ends.append((state, features, pool.store))
    for plain, own in zip(*ends, strict=True):
        assert error(own, plain) <= 8 * BOUNDS[DTYPE]


def test_a_stack_has_its_own_products_where_there_is_room(device: torch.device) -> None:
    one = layer(device, 0)
    configs = [
        matrix(linear, role, ROOMY)._ways.config(8)  # type: ignore[union-attr]
        for linear, role in ((one.qkv, Role.SUMMED), (one.down, Role.SUMMED), (one.gate_up, Role.GATED))
    ]
    assert [config and config.splits for config in configs] == [2, 1, 1]
    assert matrix(one.qkv, Role.SUMMED, INTERPRETER)._ways.config(8) is None  # type: ignore[union-attr]


@pytest.mark.parametrize("config", [None, ProductConfig(16, 32, 1), ProductConfig(16, 32, 3)], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_matrix_in_every_role(device: torch.device, config: ProductConfig | None, has_bias: bool) -> None:
    x = numbers(5, 96, device=device, seed=1, scale=1.0)
    weight = numbers(48, 96, device=device, seed=2)
    bias = numbers(48, device=device, seed=3) if has_bias else None
    one = Matrix(Linear(weight, bias), Ways(((8, config),)))
    want = product_reference(x.double(), weight.double(), None if bias is None else bias.double())
    out = torch.full((7, 48), torch.nan, dtype=DTYPE, device=device)
    assert one(x, out[:5]).data_ptr() == out.data_ptr()
    assert bool(out[5:].isnan().all())
    summed = one.summed(x).double()
    summed = summed if summed.dim() == 2 else summed.sum(dim=0)
    for got in (out[:5], one(x), summed):
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
    turn = Turn(heads, torch.ones(6, 32, dtype=DTYPE, device=device), 1e-6, table)
    norm = Norm(torch.ones(HIDDEN, dtype=DTYPE, device=device), 1e-6)
    places = Places(*(torch.arange(4, device=device) for _ in range(2)))
    stores = []
    for machine in (INTERPRETER, ROOMY._replace(processors=20)):
        pool = KVPool(spec)
        pool.store.zero_()
        made = [matrix(linear, Role.SUMMED, machine) for linear in (fc, context)]
        entry = ContextEntry(made[0], norm, made[1], turn, machine.launch)
        entry.run(numbers(4, 1024, device=device, seed=5, scale=1.0), places, pool)
        stores.append(pool.store)
    assert bool(stores[0][:, :, :, :4].any()) and not bool(stores[0][:, :, :, 4:].any())
    assert error(stores[1], stores[0]) <= 4 * BOUNDS[DTYPE]


def test_a_device_without_cuda_is_the_interpreters() -> None:
    assert machine_of("cpu") is INTERPRETER and not INTERPRETER.launch.early
