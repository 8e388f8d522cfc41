"""The chain drafter after any history against its own model's continuation, computed with nothing cached."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.draft.pair import VOCAB, Face, chain_model
from wager.draft.base import DraftRow, PoolShape, Proposal
from wager.draft.chain import ChainDrafter, ChainOptions
from wager.errors import ConfigError, ModelError
from wager.kvcache.pool import KVPool
from wager.nn.batch import PassBatch, PassRow
from wager.nn.models.decoder import Decoder
from wager.nn.noise import NoiseSource

PAGE = 4
SHAPE = PoolShape(120, PAGE)
NOISE = NoiseSource(VOCAB, dtype=torch.float64)
SMALL = {"num_hidden_layers": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return chain_model(tmp_path_factory.mktemp("chain"), **SMALL)


def make(model: Decoder, **options: Any) -> ChainDrafter:
    drafter = ChainDrafter(model, Face(), SHAPE, ChainOptions(**({"depth": 5} | options)))
    drafter.pool.store.fill_(float("nan"))
    return drafter


def scores_after(model: Decoder, tokens: list[int]) -> Tensor:
    """The model's scores behind a whole sequence, in a pool of its own."""
    pool, count = KVPool(model.pool_spec(40, PAGE)), len(tokens)
    pages = list(range(40))
    batch = PassBatch(
        torch.tensor(tokens), torch.arange(count), pool.slots(pages, 0, count), [PassRow(0, count, 0, pages)]
    )
    return model.logits(model.forward(batch, pool).hidden[-1:])[0]


def check(model: Decoder, row: DraftRow, proposal: Proposal | None, depth: int, ranks: int = 4) -> None:
    assert proposal is not None and proposal.logprobs is not None and proposal.spine_only
    assert proposal.token_ids.shape == proposal.logprobs.shape == (depth, ranks)
    tokens = list(row.tokens)
    for step in range(depth):
        scores = scores_after(model, tokens)
        if row.temperature:
            scores = scores / row.temperature + NOISE.rows([(row.seed, len(tokens))])[0, : len(scores)]
        logprobs, token_ids = scores.log_softmax(dim=0).topk(ranks)
        assert proposal.token_ids[step].tolist() == token_ids.tolist()
        assert np.abs(proposal.logprobs[step] - logprobs.numpy()).max() < 1e-4
        tokens.append(int(token_ids[0]))


def pages_of(name: int, rng: np.random.Generator) -> list[int]:
    return [int(page) for page in rng.permutation(24) + 24 * name]


@pytest.mark.parametrize("seed", range(6))
def test_any_history_gives_the_models_own_continuation(model: Decoder, seed: int) -> None:
    """Accepted runs, rejections, bonus tokens guessed or not, zero bets, pages that change hands."""
    rng = np.random.default_rng(seed)
    drafter = make(model, chunk=int(rng.choice([3, 64])))
    temperatures = (0.0, 0.9, 0.0)
    texts = [[int(token) for token in rng.integers(0, VOCAB, count)] for count in (1, 11, 23)]
    pages = [pages_of(name, rng) for name in range(3)]
    for _ in range(6):
        rows = [
            DraftRow(name, list(text), 1, pages[name], temperatures[name], name, int(rng.integers(0, 6)))
            for name, text in enumerate(texts)
            if rng.random() < 0.7
        ]
        got = drafter.propose(rows, NOISE)
        for row, proposal in zip(rows, got, strict=True):
            check(model, row, proposal, row.depth or 5)
            accepted = int(rng.integers(0, len(proposal.token_ids) + 1))
            texts[row.request_id] += proposal.token_ids[:accepted, 0].tolist()
        for text in texts:
            text += [int(token) for token in rng.integers(0, VOCAB, int(rng.integers(1, 3)))]
        if rng.random() < 0.5:
            one, other = rng.choice(3, 2, replace=False)
            pages[one], pages[other] = pages[other], pages[one]
            for name in (int(one), int(other)):
                drafter.forget(name)
                drafter.adopt(name, len(texts[name]) // PAGE * PAGE)


def test_a_sequence_that_is_stored_to_its_end_is_drafted_again(model: Decoder) -> None:
    rng = np.random.default_rng(3)
    drafter, pages = make(model), pages_of(0, rng)
    row = DraftRow(0, [3, 4, 5], 1, pages)
    proposal = drafter.propose([row], NOISE)[0]
    check(model, row, proposal, 5)
    for kept in (2, 2):
        row = DraftRow(0, [3, 4, 5, *proposal.token_ids[:kept, 0].tolist()], 1, pages)
        check(model, row, drafter.propose([row], NOISE)[0], 5)


def test_where_the_pages_end_the_chain_ends(model: Decoder) -> None:
    drafter = make(model)
    tokens = [int(token) for token in np.random.default_rng(4).integers(0, VOCAB, 6)]
    for count, depth in ((3, 5), (2, 3)):
        row = DraftRow(count, tokens, 1, [7, 2, 9][:count])
        check(model, row, drafter.propose([row], NOISE)[0], depth)
    short = DraftRow("short", tokens, 2, [7])
    assert not drafter.can_propose(short)
    assert drafter.propose([short], NOISE) == [None]
    full = DraftRow("full", [*tokens, 1, 2], 1, [4, 5])
    check(model, full, drafter.propose([short, full], NOISE)[1], 1)


def test_it_stops_at_the_models_last_position(tmp_path: Path) -> None:
    model = chain_model(tmp_path, **SMALL, max_position_embeddings=8)
    drafter, pages = make(model), list(range(10))
    assert drafter.propose([DraftRow(0, [1] * 7, 1, pages)], NOISE)[0].token_ids.shape == (2, 4)
    assert not drafter.can_propose(DraftRow(0, [1] * 9, 1, pages))


def fed_tokens(drafter: ChainDrafter, row: DraftRow, monkeypatch: pytest.MonkeyPatch) -> int:
    """Draft for the row, check it, and count the known tokens it took."""
    fed, forward = [], drafter.model.forward
    with monkeypatch.context() as patch:
        patch.setattr(drafter.model, "forward", lambda batch, pool: fed.append(batch) or forward(batch, pool))
        check(drafter.model, row, drafter.propose([row], NOISE)[0], 5)
    return fed[0].num_tokens


def test_what_a_page_holds_is_found_again(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = make(model)
    tokens = [int(token) for token in np.random.default_rng(5).integers(0, VOCAB, 10)]
    assert fed_tokens(drafter, DraftRow(0, tokens, 1, list(range(8))), monkeypatch) == 10
    drafter.adopt(1, 8)
    beside = DraftRow(1, [*tokens[:8], 5, 6, 7], 3, [0, 1, 20, 21, 22])
    assert fed_tokens(drafter, beside, monkeypatch) == 3
    drafter.forget(0)
    drafter.adopt(0, 4)
    assert fed_tokens(drafter, DraftRow(0, tokens, 1, list(range(8))), monkeypatch) == 2
    # Pages of two texts: the second holds the right tokens, but behind another beginning.
    fed_tokens(drafter, DraftRow(2, list(range(5)), 1, [30, 31, 32]), monkeypatch)
    mixed = DraftRow(3, [*range(4), *tokens[4:8], 1], 1, [30, 1, 40, 41])
    assert fed_tokens(drafter, mixed, monkeypatch) == 5


def test_pages_it_never_wrote_are_not_trusted(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = make(model)
    assert drafter.prepare_sharing(0, [0, 1], 8)
    drafter.adopt(0, 8)
    assert fed_tokens(drafter, DraftRow(0, list(range(9)), 1, list(range(6))), monkeypatch) == 9


def test_pages_written_since_are_not_trusted(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = make(model)
    old = DraftRow(0, list(range(12)), 1, [0, 1, 2, 3, 4])
    assert fed_tokens(drafter, old, monkeypatch) == 12
    drafter.forget(0)
    check(model, other := DraftRow(1, [7, 8, 9], 1, [5, 1, 2]), drafter.propose([other], NOISE)[0], 5)
    assert fed_tokens(drafter, old, monkeypatch) == 8


def test_after_a_failed_pass_nothing_it_wrote_is_trusted(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter, forward = make(model), model.forward
    old = DraftRow(0, list(range(12)), 1, [0, 1, 2, 3, 4])
    assert fed_tokens(drafter, old, monkeypatch) == 12
    drafter.forget(0)
    new = DraftRow(1, [9, 8, 7, 6, 5], 1, [2, 7, 8])
    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", lambda batch, pool: forward(batch, pool) and 1 / 0)
        with pytest.raises(ZeroDivisionError):
            drafter.propose([new], NOISE)
    assert fed_tokens(drafter, old, monkeypatch) == 4
    drafter.forget(0)
    check(model, new, drafter.propose([new], NOISE)[0], 5)


def test_guesses_that_came_true_fill_pages_for_others(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter, pages = make(model), list(range(8))
    row = DraftRow(0, [3, 4, 5], 1, pages)
    guesses = drafter.propose([row], NOISE)[0].token_ids[:, 0].tolist()
    text = [3, 4, 5, *guesses]
    assert fed_tokens(drafter, DraftRow(0, [*text, 1], 1, pages), monkeypatch) == 2
    drafter.adopt(1, 8)
    assert fed_tokens(drafter, DraftRow(1, [*text, 2], 1, [0, 1, 9, 10, 11]), monkeypatch) == 1


def test_a_page_whose_last_token_is_fed_again_is_still_found(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = make(model)
    row = DraftRow(0, list(range(8)), 1, list(range(6)))
    assert [fed_tokens(drafter, row, monkeypatch) for _ in range(2)] == [8, 1]
    assert fed_tokens(drafter, DraftRow(1, [*range(8), 3], 1, [0, 1, 9, 10, 11]), monkeypatch) == 1


def test_a_smaller_vocabulary_takes_its_part_of_the_noise(tmp_path: Path) -> None:
    model = chain_model(tmp_path, **SMALL, vocab_size=61)
    row = DraftRow(0, [5, 6, 60], 1, [1, 2, 3], temperature=0.7, seed=9)
    drafter = make(model)
    check(model, row, drafter.propose([row], NOISE)[0], 5)
    unknown = DraftRow(1, [5, 61, 6], 1, [11, 12, 13])
    assert drafter.propose([unknown, row], NOISE)[0] is None
    longer = DraftRow(1, [5, 61, 6, 7], 1, [11, 12, 13])
    assert drafter.propose([longer, row], NOISE)[0] is None


def test_misfits_are_refused_by_name(tmp_path: Path, model: Decoder) -> None:
    with pytest.raises(ModelError, match="vocab_size"):
        make(chain_model(tmp_path, **SMALL, vocab_size=101))
    with pytest.raises(ConfigError, match="ranks"):
        make(model, ranks=0)
    assert make(model).describe()["vocab_size"] == VOCAB
