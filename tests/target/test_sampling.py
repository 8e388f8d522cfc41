"""Sampling is right: 20,000 tokens written with guesses against the target's exact distribution.

The target here sees only its last token (its layers add nothing), so every token is a draw from one of a few
known distributions, whatever came before, and a chi-square test can judge the engine as a whole.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import chdtrc

from tests.equivalence.world import Job, World, drive, make_engine
from tests.nn.tiny import build_target, save_drafter
from wager.records import SamplingParams

VOCAB = 12
NUM_ROWS, LENGTH = 40, 505
TEMPERATURE = 0.9


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A target whose layers add nothing to the stream, and drafters beside it."""
    folder: Path = tmp_path_factory.mktemp("forgetful")
    target = without_layers(0)
    target.save_pretrained(folder / "target")
    near = without_layers(0)
    torch.manual_seed(1)
    with torch.no_grad():
        near.lm_head.weight.add_(torch.randn_like(near.lm_head.weight) * 0.08)
    near.save_pretrained(folder / "chain")
    own = {"mask_token_id": 5, "target_layer_ids": [0, 2]}
    save_drafter(folder / "block", 2, vocab_size=VOCAB, dflash_config=own)
    return World(str(folder / "target"), str(folder / "chain"), str(folder / "block"), target)


def without_layers(seed: int):  # type: ignore[no-untyped-def]
    model = build_target("qwen3", seed, vocab_size=VOCAB, tie_word_embeddings=False)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
    return model


@pytest.mark.parametrize(
    ("drafter", "policy", "filters"),
    [
        ("chain", "fixed:3", {}),
        ("chain", "tree:6", {"top_k": 7}),
        ("block", "tree:8", {}),
    ],
    ids=["chain", "chain-with-leaves", "tree"],
)
def test_samples_follow_the_targets_distribution(
    forgetful: World, drafter: str, policy: str, filters: dict[str, int]
) -> None:
    engine = make_engine(forgetful, drafter, policy, num_pages=80, page_size=512, max_rows=NUM_ROWS)
    params = [
        SamplingParams(max_tokens=LENGTH, temperature=TEMPERATURE, seed=seed, **filters)
        for seed in range(NUM_ROWS)
    ]
    run = drive(engine, {0: [(i, Job([i % VOCAB], one)) for i, one in enumerate(params)]}, {})
    counts = np.zeros((VOCAB, VOCAB))
    for number in range(NUM_ROWS):
        tokens = [number % VOCAB, *run.tokens(number)]
        np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
    assert counts.sum() == NUM_ROWS * LENGTH >= 20_000
    assert run.accepted > 2000
    assert chi_square_p(counts, distribution(forgetful, filters.get("top_k", VOCAB))) > 1e-3


def test_the_test_sees_a_small_shift(forgetful: World) -> None:
    """The same judgement on as many draws from a slightly different distribution must fail."""
    right = distribution(forgetful, VOCAB)
    wrong = 0.95 * right + 0.05 / VOCAB
    rng = np.random.default_rng(0)
    counts = np.stack([rng.multinomial(20_000 // VOCAB, row) for row in wrong]).astype(float)
    assert chi_square_p(counts, right) < 1e-6


def distribution(world: World, top_k: int) -> np.ndarray:
    """[last token, next token]: transformers' own scores, scaled, filtered and normed."""
    with torch.inference_mode():
        logits = world.reference(torch.arange(VOCAB)[:, None]).logits[:, -1].double() / TEMPERATURE
    least = logits.topk(top_k).values[:, -1:]
    return logits.masked_fill(logits < least, -torch.inf).softmax(-1).numpy()


def chi_square_p(counts: np.ndarray, probs: np.ndarray) -> float:
    """Pooled over the last tokens; cells expected fewer than five times are joined with their row's rest."""
    statistic, freedom = 0.0, 0
    for seen, chances in zip(counts, probs, strict=True):
        expected = chances * seen.sum()
        assert seen[expected == 0].sum() == 0, "a token that was filtered out was drawn"
        big = expected >= 5
        groups = [(seen[i], expected[i]) for i in np.flatnonzero(big)]
        if expected[~big].sum() >= 5:
            groups.append((seen[~big].sum(), expected[~big].sum()))
        elif len(groups):
            last = groups.pop()
            groups.append((last[0] + seen[~big].sum(), last[1] + expected[~big].sum()))
        statistic += sum((s - e) ** 2 / e for s, e in groups)
        freedom += max(len(groups) - 1, 0)
    return float(chdtrc(freedom, statistic))
