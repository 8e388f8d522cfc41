"""What a drafter is said to offer against what it really proposes, and the figures made of that by hand."""

import numpy as np
import pytest
import torch

from tests.nn.fused import fused_drafter
from tests.train.pair import VOCAB, Face, make_net, make_teacher
from wager.draft.base import DraftRow, KeptTokens, PoolShape, Proposal
from wager.draft.block import BlockDrafter, BlockOptions
from wager.nn.noise import NoiseSource
from wager.train.acceptance import Rows, acceptance_by_depth, offered, tokens_per_step
from wager.train.generate import write_rows

NUM_OUTPUT, RANKS, PAGE = 12, 8, 4
PROMPTS = [[5, 6, 7], [1, 2, 3, 4, 8, 9, 10, 11], [50, 40]]
SEEDS = [11, 12, 13]


def made_rows(temperature: float) -> Rows:
    done = write_rows(make_teacher().model, PROMPTS, NUM_OUTPUT, temperature, SEEDS)
    return Rows(done.tokens, done.num_prompt, NUM_OUTPUT, temperature, SEEDS)


def proposals(rows: Rows, row: int) -> list[Proposal]:
    """What the drafter proposes at every output position of a row, as the engine would run it."""
    teacher = make_teacher()
    face, noise = Face(teacher), NoiseSource(VOCAB, dtype=torch.float64)
    drafter = BlockDrafter(fused_drafter(make_net()), face, PoolShape(16, PAGE), BlockOptions())
    features, _ = teacher.observe(rows.tokens)
    tokens, pages = rows.tokens[row].tolist(), list(range(16))
    found, kept = [], 0
    for place in range(NUM_OUTPUT):
        root = int(rows.num_prompt[row]) - 1 + place
        drafter.keep([KeptTokens("row", kept, features[row, kept:root], pages)])
        kept = root
        asked = DraftRow("row", tokens[: root + 1], 1, pages, rows.temperature, rows.seeds[row])
        (proposal,) = drafter.propose([asked], noise)
        assert proposal is not None
        found.append(proposal)
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_offers_are_what_the_running_drafter_proposes(temperature: float) -> None:
    rows = made_rows(temperature)
    seen = offered(make_net(), make_teacher(), rows, RANKS)
    assert seen.logprobs.shape == (3, NUM_OUTPUT, 7, RANKS) and seen.ranks.shape == (3, NUM_OUTPUT, 7)
    for row in range(len(PROMPTS)):
        start = int(rows.num_prompt[row])
        output = rows.tokens[row, start : start + NUM_OUTPUT].tolist()
        for place, proposal in enumerate(proposals(rows, row)):
            assert proposal.logprobs is not None
            assert np.allclose(seen.logprobs[row, place], proposal.logprobs, atol=2e-3, rtol=2e-3)
            truth = output[place : place + 7]
            offers = proposal.token_ids.tolist()
            ranks = [offers[i].index(token) if token in offers[i] else -1 for i, token in enumerate(truth)]
            assert seen.ranks[row, place].tolist() == ranks + [-1] * (7 - len(truth))
    # Some are found and some are not, or nothing was compared.
    assert (seen.ranks >= 0).any() and (seen.ranks[:, :5] < 0).any()


def test_the_seed_matters_where_rows_are_sampled() -> None:
    rows = made_rows(0.8)
    other = Rows(rows.tokens, rows.num_prompt, NUM_OUTPUT, 0.8, [1, 2, 3])
    net, teacher = make_net(), make_teacher()
    assert not np.array_equal(offered(net, teacher, rows).ranks, offered(net, teacher, other).ranks)


def ranks_of(*rows: list[list[int]]) -> np.ndarray:
    return np.array(rows, np.int8)


def test_tokens_per_step_walks_the_row() -> None:
    # Position 0 keeps two guesses and emits three; 3 keeps none; 4 keeps one and ends the row.
    row = [[0, 0, 3], [0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 0]]
    assert tokens_per_step(ranks_of(row)) == pytest.approx(6 / 3)
    nothing = [[-1, 0, 0]] * 6
    assert tokens_per_step(ranks_of(nothing)) == 1.0
    assert tokens_per_step(ranks_of(row, nothing)) == pytest.approx(12 / 9)
    assert tokens_per_step(np.zeros((1, 8, 3), np.int8)) == 4.0


def test_acceptance_by_depth_is_conditional() -> None:
    ranks = ranks_of([[0, 0, 0], [0, 1, 0], [0, -1, 0], [2, 0, 0]])
    assert acceptance_by_depth(ranks) == pytest.approx([3 / 4, 1 / 3, 1.0])
    assert acceptance_by_depth(ranks_of([[1, 0], [-1, 0]])) == [0.0, 0.0]
