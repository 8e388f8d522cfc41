"""Kernels that start before the one in front has ended, in a chain: the same numbers as in turn."""

import pytest
import torch
from torch import Tensor

from tests.nn.kernels.attention_case import Kind, Shape, World, make_world
from tests.nn.kernels.interpreter import random
from wager.nn.kernels.attention import AttentionPlan, attend, plan_attention
from wager.nn.kernels.device import Launch, prefetch_of
from wager.nn.kernels.matmul import ProductConfig, gated_product, product, split_product
from wager.nn.kernels.norm import Norm, add_norm
from wager.nn.kernels.qkv import HeadTransform, TokenSlots, rotation_table, write_qkv
from wager.nn.layers.attention import HeadShape
from wager.nn.rope import RopeSpec

HEADS, HIDDEN, MIDDLE = HeadShape(16, 4, 128), 2048, 3072
KINDS = [Kind(1, 7, 900), Kind(1, 0, 40), Kind(2, 3, 2000)]


class Layer:
    """Random weights, and the chain of a layer over them."""

    def __init__(self, device: torch.device, seed: int) -> None:
        qkv = (HEADS.num_heads + 2 * HEADS.num_kv_heads) * HEADS.head_dim
        sizes = ((qkv, HIDDEN), (HIDDEN, HIDDEN), (2 * MIDDLE, HIDDEN), (HIDDEN, MIDDLE))
        self.qkv, self.out, self.gate_up, self.down = (
            random(*size, dtype=torch.bfloat16, device=device, seed=seed + index) * 0.02
            for index, size in enumerate(sizes)
        )
        self.norm = Norm(torch.ones(HIDDEN, dtype=torch.bfloat16, device=device), 1e-6)
        table = rotation_table(RopeSpec(HEADS.head_dim, theta=1e4), 4096, torch.bfloat16, device)
        self.turn = HeadTransform(HEADS, None, 1e-6, table)

    def run(self, x: Tensor, world: World, slots: Tensor, plan: AttentionPlan, launch: Launch) -> Tensor:
        split, places = ProductConfig(64, 64, 4, 4, 4), TokenSlots(world.tables.positions, slots)
        fused = product(x, self.qkv, None, ProductConfig(64, 128, 1, 4, 3), None, launch)
        queries = write_qkv(fused, self.turn, places, world.layer, None, launch)
        attended = attend(queries, world.layer, world.tables, plan, None, None, launch)
        state = add_norm(split_product(attended, self.out, split, launch), x, self.norm, None, launch)
        middle = gated_product(state.normed, self.gate_up, ProductConfig(32, 64, 1, 4, 4), launch)
        down = split_product(middle, self.down, split, launch)
        return add_norm(down, state.residual, self.norm, None, launch).normed


def own_slots(world: World, page_size: int) -> Tensor:
    slots = torch.full_like(world.tables.positions, -1)
    for start, count, _, context_len, _, page_row in world.tables.rows.tolist():
        places = torch.arange(context_len, context_len + count, device=slots.device)
        pages = world.tables.pages[page_row].long()
        slots[start : start + count] = pages[places // page_size] * page_size + places % page_size
    return slots


@pytest.mark.gpu
@pytest.mark.parametrize("merge", ["after", "last"])
def test_a_chain_of_early_launches_is_the_chain(device: torch.device, merge: str) -> None:
    if device.type != "cuda" or torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("early launches need a device of compute capability 9")
    world = make_world(KINDS, Shape(HEADS, 64, torch.bfloat16, num_programs=264), device)
    slots, plan = own_slots(world, 64), plan_attention(HEADS, world.tiling, 64, device, merge)
    layers = [Layer(device, seed) for seed in (0, 10, 20)]
    prefetch = prefetch_of(layers[0].gate_up, 1 << 20)
    first = random(world.num_tokens, HIDDEN, dtype=torch.bfloat16, device=device, seed=5)
    ends = []
    for launch in (Launch(), *(Launch(True, one) for one in (None, prefetch) for _ in range(10))):
        x = first
        for layer in layers:
            x = layer.run(x, world, slots, plan, launch)
        ends.append(x)
    assert bool(ends[0].isfinite().all())
    assert all(torch.equal(end, ends[0]) for end in ends)
