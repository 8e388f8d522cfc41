"""The block drafter against a plain re-computation from the published tensors, step after step."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.nn.fused import fused_drafter
from tests.nn.tiny import SHAPE, drafter_config, save_drafter
from wager.errors import ModelError, WeightsError
from wager.kvcache.pool import KVPool
from wager.nn.batch import BlockBatch, BlockRow
from wager.nn.models.dflash import DFlash, check_pair, load_drafter
from wager.nn.models.dflash_net import DFlashNet
from wager.nn.models.dflash_spec import derive_layer_ids, read_spec

HIDDEN = SHAPE["hidden_size"]
PAGE = 4
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
CAUSAL = SLIDING | {
    "dflash_config": {"mask_token_id": 96, "target_layer_ids": [0, 2], "block_causal_in_sliding": True}
}
YARN = {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}}
CASES: dict[str, dict[str, Any]] = {"full": {}, "sliding": SLIDING, "causal": CAUSAL, "yarn": YARN}


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def turn(x: Tensor, positions: Tensor, config: dict[str, Any]) -> Tensor:
    """Rotate [tokens, heads, size] with angles the long way; yarn steps are the room's own."""
    from wager.nn.rope import frequencies, read_rope

    spec = read_rope(config, 16)
    if spec.type == "default":
        steps = torch.tensor([10_000.0 ** (-2 * i / 16) for i in range(8)])
    else:
        steps = frequencies(spec)
    angles = positions[:, None, None].float() * steps
    cos, sin = angles.cos() * spec.attention_factor, angles.sin() * spec.attention_factor
    low, high = x[..., :8], x[..., 8:]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def plain_drafter(
    tensors: dict[str, Tensor], config: dict[str, Any], features: Tensor, embeddings: Tensor
) -> Tensor:
    """The published network over one row, with nothing cached: context at 0.., block right behind it."""
    num_context, num_block = len(features), len(embeddings)
    positions = torch.arange(num_context + num_block)
    context = rms(features @ tensors["fc.weight"].T, tensors["hidden_norm.weight"])
    x = embeddings
    for index in range(config["num_hidden_layers"]):
        layer = {k.removeprefix(f"layers.{index}."): v for k, v in tensors.items() if f"layers.{index}." in k}
        h = rms(x, layer["input_layernorm.weight"])
        both = torch.cat((context, h))
        q = rms((h @ layer["self_attn.q_proj.weight"].T).view(-1, 4, 16), layer["self_attn.q_norm.weight"])
        k = rms((both @ layer["self_attn.k_proj.weight"].T).view(-1, 2, 16), layer["self_attn.k_norm.weight"])
        v = (both @ layer["self_attn.v_proj.weight"].T).view(-1, 2, 16)
        q, k = turn(q, positions[num_context:], config), turn(k, positions, config)
        seen = plain_mask(config, index, num_context, num_block)
        heads = []
        for head in range(4):
            scores = q[:, head] @ k[:, head // 2].T / 4.0
            heads.append(scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v[:, head // 2])
        x = x + torch.cat(heads, -1) @ layer["self_attn.o_proj.weight"].T
        h = rms(x, layer["post_attention_layernorm.weight"])
        gate, up = h @ layer["mlp.gate_proj.weight"].T, h @ layer["mlp.up_proj.weight"].T
        x = x + (gate * gate.sigmoid() * up) @ layer["mlp.down_proj.weight"].T
    return rms(x, tensors["norm.weight"])


def plain_mask(config: dict[str, Any], layer: int, num_context: int, num_block: int) -> Tensor:
    seen = torch.ones(num_block, num_context + num_block, dtype=torch.bool)
    if config.get("layer_types", ["full_attention"] * 2)[layer] == "full_attention":
        return seen
    for q in range(num_block):
        for k in range(num_context + num_block):
            distance = num_context + q - k
            in_block = k >= num_context
            if not in_block:
                seen[q, k] = distance < config["sliding_window"]
            elif config["dflash_config"].get("block_causal_in_sliding"):
                seen[q, k] = 0 <= distance < config["sliding_window"]
    return seen


def poisoned_pool(drafter: DFlash, num_pages: int = 40) -> KVPool:
    pool = KVPool(drafter.pool_spec(num_pages, PAGE))
    pool.store.fill_(float("nan"))
    return pool


def ingest(drafter: DFlash, pool: KVPool, features: Tensor, pages: list[int], start: int) -> None:
    stop = start + len(features)
    drafter.ingest(features, torch.arange(start, stop), pool.slots(pages, start, stop), pool)


def draft(drafter: DFlash, pool: KVPool, embeddings: Tensor, row: BlockRow) -> Tensor:
    positions = torch.arange(row.context_len, row.context_len + row.num_tokens)
    return drafter.forward(BlockBatch(embeddings, positions, [row]), pool)


@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize("case", list(CASES))
def test_step_after_step_with_cached_context(tmp_path: Path, case: str, spare: bool) -> None:
    tensors = save_drafter(tmp_path, **CASES[case])
    config = drafter_config(**CASES[case])
    drafter = load_drafter(tmp_path, torch.float32, layout="out_in")
    pool, pages = poisoned_pool(drafter), [7, 8, 9, 3, 4, 5, 20, 21, 22, 23]
    features = torch.randn(30, 2 * HIDDEN)
    start = 0
    for step, kept in enumerate((5, 1, 4, 9, 2)):
        ingest(drafter, pool, features[start : start + kept], pages, start)
        start += kept
        embeddings = torch.randn(8 - step, HIDDEN)
        got = draft(drafter, pool, embeddings, BlockRow(0, 8 - step, start, pages, spare))
        want = plain_drafter(tensors, config, features[:start], embeddings)
        assert (got - want).abs().max().item() < 1e-4


def test_rows_of_different_lengths_share_a_pass(tmp_path: Path) -> None:
    tensors = save_drafter(tmp_path, **SLIDING)
    drafter = load_drafter(tmp_path, torch.float32)
    pool = poisoned_pool(drafter)
    features, embeddings = torch.randn(3, 12, 2 * HIDDEN), torch.randn(19, HIDDEN)
    rows, positions, start = [], [], 0
    for index, (context_len, length) in enumerate(((0, 8), (5, 4), (12, 7))):
        pages = list(range(10 * index, 10 * index + 8))
        ingest(drafter, pool, features[index, :context_len], pages, 0)
        rows.append(BlockRow(start, start + length, context_len, pages, spare=index == 1))
        positions.append(torch.arange(context_len, context_len + length))
        start += length
    got = drafter.forward(BlockBatch(embeddings, torch.cat(positions), rows), pool)
    for index, row in enumerate(rows):
        block = embeddings[row.start : row.stop]
        want = plain_drafter(tensors, drafter_config(**SLIDING), features[index, : row.context_len], block)
        assert (got[row.start : row.stop] - want).abs().max().item() < 1e-4


def test_a_block_without_spare_slots_writes_nothing(tmp_path: Path) -> None:
    save_drafter(tmp_path)
    drafter = load_drafter(tmp_path, torch.float32)
    pool, pages = poisoned_pool(drafter), [0, 1, 2, 3]
    ingest(drafter, pool, torch.randn(6, 2 * HIDDEN), pages, 0)
    before = pool.store.clone()
    draft(drafter, pool, torch.randn(8, HIDDEN), BlockRow(0, 8, 6, pages))
    assert torch.equal(before.nan_to_num(-7), pool.store.nan_to_num(-7))


@pytest.mark.parametrize("bias", [False, True])
def test_the_trainable_module_is_the_same_network(bias: bool) -> None:
    spec = read_spec(drafter_config(attention_bias=bias, **SLIDING))
    torch.manual_seed(3)
    net = DFlashNet(spec)
    for weight in net.parameters():
        torch.nn.init.normal_(weight, 0.3, 0.2)
    features, embeddings = torch.randn(2, 9, spec.feature_size), torch.randn(2, 8, HIDDEN)
    distance = torch.arange(9, 17)[:, None] - torch.arange(17)[None, :]
    sliding = (distance < 6) | (torch.arange(17) >= 9)
    want = net(embeddings, features, torch.arange(17).expand(2, -1), None, sliding)
    drafter = fused_drafter(net)
    pool = poisoned_pool(drafter)
    for row in range(2):
        pages = list(range(10 * row, 10 * row + 5))
        ingest(drafter, pool, features[row], pages, 0)
        got = draft(drafter, pool, embeddings[row], BlockRow(0, 8, 9, pages))
        assert (got - want[row]).abs().max().item() < 1e-4


def test_training_reaches_every_parameter_under_published_names(tmp_path: Path) -> None:
    tensors = save_drafter(tmp_path)
    net = DFlashNet(read_spec(drafter_config()))
    net.load_state_dict(tensors)
    out = net(torch.randn(1, 8, HIDDEN), torch.randn(1, 5, 2 * HIDDEN), torch.arange(13)[None])
    out.square().sum().backward()
    assert {name for name, _ in net.named_parameters()} == set(tensors)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


def test_missing_layer_ids_are_derived_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = drafter_config(num_hidden_layers=5, num_target_layers=36, dflash_config={"mask_token_id": 1})
    with caplog.at_level(logging.WARNING):
        spec = read_spec(config)
    assert spec.target_layer_ids == (1, 9, 17, 25, 33)
    assert spec.layer_ids_derived
    assert "target_layer_ids" in caplog.text
    assert derive_layer_ids(1, 36) == (18,)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"dflash_config": {"target_layer_ids": [0]}}, "mask_token_id"),
        ({"block_size": None}, "block_size"),
        ({"rope_theta": None}, "rope_theta"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": "all"}}, "target_layer_ids"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [-1]}}, "target_layer_ids"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_window"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_bad_drafter_configs_are_refused_by_field(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ModelError, match=word):
        read_spec(drafter_config(**changes))


def test_rope_theta_is_read_from_either_place() -> None:
    old = read_spec(drafter_config(rope_theta=1e7))
    new = read_spec(drafter_config(rope_theta=None, rope_parameters={"rope_theta": 1e7}))
    assert old.rope == new.rope and old.rope.theta == 1e7


def test_a_wrong_fc_is_reported_by_name(tmp_path: Path) -> None:
    save_drafter(tmp_path)
    config = drafter_config(dflash_config={"mask_token_id": 96, "target_layer_ids": [0, 1, 2]})
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(WeightsError, match=r"fc\.weight"):
        load_drafter(tmp_path)


def test_a_drafter_for_another_target_is_refused() -> None:
    spec = read_spec(drafter_config())
    check_pair(spec, HIDDEN, 3, 97)
    for numbers, word in (
        ((64, 3, 97), "hidden_size"),
        ((HIDDEN, 4, 97), "num_target_layers"),
        ((HIDDEN, 3, 90), "mask_token_id"),
    ):
        with pytest.raises(ModelError, match=word):
            check_pair(spec, *numbers)
