"""Rows written in bulk are what the engine writes, token for token, and lie where they are said to."""

from pathlib import Path

import pytest
import torch

from tests.equivalence.world import Job, World, alone, make_engine, make_world, prompt
from wager.records import SamplingParams
from wager.train.generate import write_rows

PROMPTS = [prompt(1, 7), prompt(2, 1), prompt(3, 19), prompt(4, 12)]
SEEDS = [3, 2**40, 77, 0]
NUM_OUTPUT = 24


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = make_world(Path(tmp_path_factory.mktemp("world")))
    made.reference.double()
    return made


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rows_are_what_the_engine_writes(world: World, temperature: float) -> None:
    written = write_rows(world.reference, PROMPTS, NUM_OUTPUT, temperature, SEEDS)
    jobs = [
        Job(ids, SamplingParams(max_tokens=NUM_OUTPUT, temperature=temperature, seed=seed, ignore_eos=True))
        for ids, seed in zip(PROMPTS, SEEDS, strict=True)
    ]
    for row, ids, want in zip(written.tokens.tolist(), PROMPTS, alone(make_engine(world), jobs), strict=True):
        assert row[: len(ids)] == ids
        assert row[len(ids) : len(ids) + NUM_OUTPUT] == want
        assert not any(row[len(ids) + NUM_OUTPUT :])
    assert written.num_prompt.tolist() == [len(ids) for ids in PROMPTS]
    assert written.tokens.shape == (4, 19 + NUM_OUTPUT)


def test_without_seeds_torch_draws(world: World) -> None:
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(write_rows(world.reference, PROMPTS, 8, 0.8).tokens)
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
