"""What a block drafter learns from, against plain definitions and against the drafter as it runs."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from tests.nn.fused import fused_drafter
from tests.train.pair import LAYERS, MASK, VOCAB, make_net, make_teacher
from wager.errors import ConfigError, InputError
from wager.kvcache.pool import KVPool
from wager.nn.batch import BlockBatch, BlockRow
from wager.nn.models.dflash import load_drafter
from wager.nn.models.dflash_net import DFlashNet
from wager.nn.models.dflash_spec import read_spec
from wager.train.drafter import (
    Blocks,
    BlockSampling,
    DrafterShape,
    HFTeacher,
    block_loss,
    block_mask,
    build_drafter,
    cut_blocks,
    cut_text_blocks,
    drafter_config,
    loss_of_blocks,
    save_drafter,
    spread_layers,
)

LENGTH, BLOCK = 30, 8


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 3),
    anchors=st.integers(1, 4),
    block=st.integers(2, 6),
    extra=st.integers(2, 9),
)
@settings(deadline=None, max_examples=30)
def test_the_mask_is_its_definition(seed: int, rows: int, anchors: int, block: int, extra: int) -> None:
    length = block + extra
    sampling = BlockSampling(anchors=anchors, shortest=2, full_share=0.4, most_known=4, one_known_share=0.5)
    blocks = cut_blocks(rows, length, block, sampling, seeded(seed))
    mask = block_mask(blocks, length, block)
    assert mask.shape == (rows, 1, anchors * block, length + anchors * block)
    for row in range(rows):
        for query in range(anchors * block):
            own = query // block
            start, size = int(blocks.starts[row, own]), int(blocks.lengths[row, own])
            seen = {*range(start), *(length + own * block + place for place in range(size))}
            assert set(torch.nonzero(mask[row, 0, query])[:, 0].tolist()) == seen


@given(
    seed=st.integers(0, 10**6),
    block=st.integers(2, 16),
    extra=st.integers(2, 40),
    most_known=st.integers(1, 9),
)
@settings(deadline=None, max_examples=60)
def test_blocks_lie_inside_their_rows(seed: int, block: int, extra: int, most_known: int) -> None:
    length = block + extra
    sampling = BlockSampling(
        anchors=50, shortest=2, full_share=0.5, most_known=most_known, one_known_share=0.3
    )
    starts, lengths, known, stops = cut_blocks(3, length, block, sampling, seeded(seed))
    assert starts.shape == lengths.shape == known.shape == (3, 50) and bool((stops == length).all())
    assert int(starts.min()) >= 1 and int((starts + block).max()) <= length
    assert int(lengths.min()) >= 2 and int(lengths.max()) <= block
    assert int(known.min()) >= 1 and bool((known <= most_known).all()) and bool((known < lengths).all())


def test_cutting_has_the_stated_shares() -> None:
    sampling = BlockSampling(anchors=20_000, shortest=4, full_share=0.6, most_known=7, one_known_share=0.7)
    starts, lengths, known, _ = cut_blocks(1, 60, 16, sampling, seeded(0))
    assert set(starts.flatten().tolist()) == set(range(1, 44))
    assert set(lengths.flatten().tolist()) == set(range(4, 17))
    assert set(known.flatten().tolist()) == set(range(1, 8))
    full = float((lengths == 16).double().mean())
    assert full == pytest.approx(0.6 + 0.4 / 13, abs=0.02)
    # A seventh of the others is cut at one known token as well.
    assert float((known == 1).double().mean()) == pytest.approx(0.7 + 0.3 / 7, abs=0.02)


def test_lessons_that_cannot_be_given_are_refused() -> None:
    with pytest.raises(InputError, match="rows of 9 tokens, too short for blocks of 8"):
        cut_blocks(1, 9, 8, BlockSampling(), seeded(0))
    with pytest.raises(ConfigError, match="shortest"):
        cut_blocks(1, 40, 8, BlockSampling(shortest=1), seeded(0))


def through_pools(net: DFlashNet, teacher: HFTeacher, tokens: Tensor, blocks: Blocks) -> Tensor:
    """Scores [length - known, vocab] of one block, by the drafter that runs at decoding time."""
    start, length, known, _ = (int(part) for part in blocks)
    drafter = fused_drafter(net)
    pool, pages = KVPool(drafter.pool_spec(12, 4)), list(range(12))
    features, _ = teacher.observe(tokens[None])
    context = features[0, :start]
    drafter.ingest(context, torch.arange(start), pool.slots(pages, 0, start), pool)
    ids = torch.full((length,), MASK)
    ids[:known] = tokens[start : start + known]
    row = BlockRow(0, length, start, pages)
    batch = BlockBatch(teacher.embed(ids), torch.arange(start, start + length), [row])
    return teacher.head(drafter.forward(batch, pool)[known:])


@pytest.mark.parametrize("soft", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_loss_of_one_block_is_what_the_running_drafter_gives(seed: int, soft: float) -> None:
    net, teacher = make_net(), make_teacher()
    tokens = torch.randint(0, VOCAB, (LENGTH,), generator=seeded(seed + 50))
    sampling = BlockSampling(
        anchors=1, shortest=3, full_share=0.3, most_known=4, one_known_share=0.3, soft=soft
    )
    blocks = cut_blocks(1, LENGTH, BLOCK, sampling, seeded(seed))
    start, length, known, _ = (int(part) for part in blocks)
    scores = through_pools(net, teacher, tokens, blocks).log_softmax(dim=1)
    target = teacher.head(teacher.observe(tokens[None])[1][0]).softmax(dim=1)
    total = weights = 0.0
    for depth in range(1, length - known + 1):
        place = start + known + depth - 1
        own = scores[depth - 1]
        loss = -(1 - soft) * float(own[tokens[place]]) - soft * float(target[place - 1] @ own)
        weight = math.exp(-(depth - 1) / sampling.fade)
        total, weights = total + weight * loss, weights + weight
    got = block_loss(net, teacher, tokens[None], sampling, seeded(seed))
    assert got.item() == pytest.approx(total / weights, rel=1e-5)


def test_blocks_of_a_batch_do_not_disturb_each_other() -> None:
    """With one weight for all, the loss of many blocks is the mean over the places they are asked for."""
    net, teacher = make_net(), make_teacher()
    tokens = torch.randint(0, VOCAB, (2, LENGTH), generator=seeded(1))
    sampling = BlockSampling(anchors=3, shortest=3, full_share=0.3, one_known_share=0.5, fade=1e9, soft=0.0)
    blocks = cut_blocks(2, LENGTH, BLOCK, sampling, seeded(2))
    found = []
    for row in range(2):
        for anchor in range(3):
            own = Blocks(*(part[row, anchor] for part in blocks))
            start, length, known, _ = (int(part) for part in own)
            scores = through_pools(net, teacher, tokens[row], own).log_softmax(dim=1)
            wanted = tokens[row, start + known : start + length]
            found.append(-scores.gather(1, wanted[:, None])[:, 0])
    got = block_loss(net, teacher, tokens, sampling, seeded(2))
    assert got.item() == pytest.approx(float(torch.cat(found).mean()), rel=1e-5)


def text_rows(lengths: list[int], firsts: list[int]) -> tuple[Tensor, Tensor]:
    """Texts of these lengths as rows padded with zeros, and the ends for blocks from `firsts` on."""
    tokens = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    stops = torch.zeros_like(tokens)
    for row, (length, first) in enumerate(zip(lengths, firsts, strict=True)):
        tokens[row, :length] = torch.randint(1, VOCAB, (length,), generator=seeded(row + 9))
        stops[row, first : length - 1] = length
    return tokens, stops


@given(seed=st.integers(0, 10**6), block=st.integers(2, 16), most_known=st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_blocks_of_texts_begin_in_answers_and_know_a_token_less(
    seed: int, block: int, most_known: int
) -> None:
    lengths, firsts = [30, 9, 17, 4], [20, 1, 15, 2]
    _, stops = text_rows(lengths, firsts)
    sampling = BlockSampling(
        anchors=50, shortest=2, full_share=0.5, most_known=most_known, one_known_share=0.3
    )
    blocks = cut_text_blocks(stops, block, sampling, seeded(seed))
    for row, (length, first) in enumerate(zip(lengths, firsts, strict=True)):
        starts, known = blocks.starts[row], blocks.known[row]
        assert set(starts.tolist()) <= set(range(first, length - 1))
        assert bool((blocks.stops[row] == length).all())
        assert int(known.min()) >= 1 and bool((starts + known < length).all())
        assert bool((known < blocks.lengths[row]).all()) and int(blocks.lengths[row].max()) <= block


def test_every_place_of_an_answer_is_a_start() -> None:
    _, stops = text_rows([30, 9], [20, 1])
    blocks = cut_text_blocks(stops, 8, BlockSampling(anchors=400), seeded(1))
    assert set(blocks.starts[0].tolist()) == set(range(20, 29))
    assert set(blocks.starts[1].tolist()) == set(range(1, 8))


@pytest.mark.parametrize("soft", [0.0, 0.5])
def test_the_loss_of_uneven_texts_is_the_loss_of_each_text_alone(soft: float) -> None:
    """Neither the padding nor the tokens behind a text's end count, whatever they are."""
    net, teacher = make_net(), make_teacher()
    lengths, firsts = [30, 9, 17], [12, 1, 3]
    tokens, stops = text_rows(lengths, firsts)
    sampling = BlockSampling(anchors=6, shortest=3, full_share=0.5, one_known_share=0.4, soft=soft)
    blocks = cut_text_blocks(stops, BLOCK, sampling, seeded(7))
    assert bool((blocks.starts + blocks.lengths > blocks.stops).any()), "no block reaches over an end"
    got = loss_of_blocks(net, teacher, tokens, blocks, sampling)
    total = weight = 0.0
    for row, length in enumerate(lengths):
        own = Blocks(*(part[row : row + 1] for part in blocks))
        alone = loss_of_blocks(net, teacher, tokens[row : row + 1, :length], own, sampling)
        total, weight = total + alone.total.item(), weight + alone.weight.item()
    assert got.total.item() == pytest.approx(total, rel=1e-6)
    assert got.weight.item() == pytest.approx(weight, rel=1e-6)
    mean = block_loss(net, teacher, tokens, sampling, seeded(7), stops)
    assert mean.item() == pytest.approx(total / weight, rel=1e-6)
    # A row that is full of text is a text whose end is never reached.
    inside = cut_blocks(1, 30, BLOCK, sampling, seeded(3))
    far = inside._replace(stops=inside.stops + 99)
    one, other = (loss_of_blocks(net, teacher, tokens[:1], each, sampling) for each in (inside, far))
    assert one.total.item() == other.total.item()


def test_a_text_without_a_token_to_predict_is_refused() -> None:
    _, stops = text_rows([30, 9], [12, 8])
    with pytest.raises(InputError, match="own_text: has a text without a token to predict"):
        cut_text_blocks(stops, BLOCK, BlockSampling(), seeded(0))


def test_only_the_drafter_learns() -> None:
    net, teacher = make_net(), make_teacher()
    tokens = torch.randint(0, VOCAB, (2, LENGTH), generator=seeded(1))
    block_loss(net, teacher, tokens, BlockSampling(anchors=4), seeded(2)).backward()
    assert all(weight.grad is not None for weight in net.parameters())
    assert all(weight.grad is None for weight in teacher.model.parameters())


def test_features_are_the_outputs_of_the_layers() -> None:
    teacher = make_teacher()
    tokens = torch.randint(0, VOCAB, (2, 7), generator=seeded(1))
    features, _ = teacher.observe(tokens)
    # transformers' hidden_states[i + 1] is layer i's output, except that the last one is past the final norm.
    states = teacher.model(tokens, output_hidden_states=True).hidden_states
    size = states[0].shape[-1]
    assert torch.equal(features[..., :size], states[LAYERS[0] + 1])
    assert torch.allclose(teacher.model.model.norm(features[..., size:]), states[LAYERS[1] + 1])


def test_layers_are_spread_over_the_target() -> None:
    assert spread_layers(20) == (1, 5, 9, 13, 17)
    assert spread_layers(36) == (1, 9, 17, 25, 33)
    assert spread_layers(20, 1) == (10,)
    for num_layers in range(3, 12):
        layers = spread_layers(num_layers)
        assert list(layers) == sorted(set(layers)) and layers[-1] < num_layers


@pytest.mark.parametrize("full_share", [1.0, 0.5])
def test_a_saved_drafter_is_the_one_that_was_trained(tmp_path: Path, full_share: float) -> None:
    teacher = make_teacher()
    shape = DrafterShape(2, 72, 4, 2, 16, BLOCK, LAYERS)
    sampling = BlockSampling(full_share=full_share, most_known=3)
    config = drafter_config(shape, teacher.model.config, MASK, sampling)
    net = build_drafter(config, seed=4)
    same = build_drafter(config, seed=4).state_dict()
    assert all(torch.equal(weight, same[name]) for name, weight in net.state_dict().items())
    save_drafter(net, config, tmp_path / "drafter", torch.float32)
    stated = json.loads((tmp_path / "drafter" / "config.json").read_text())
    assert stated["dtype"] == "float32" and stated["rope_theta"] == 10_000.0
    own = stated["dflash_config"]
    assert own["max_known_tokens"] == 3 and own["target_layer_ids"] == list(LAYERS)
    assert own["block_lengths"] == ([BLOCK] if full_share == 1.0 else [4, 5, 6, 7, 8])
    assert load_drafter(tmp_path / "drafter", layout="out_in").spec == read_spec(config)
    stored = load_file(tmp_path / "drafter" / "model.safetensors")
    assert stored.keys() == same.keys()
    assert all(torch.equal(weight, same[name]) for name, weight in stored.items())
