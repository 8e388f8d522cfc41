"""What is measured on texts of different lengths is what is measured on each alone."""

import pytest
import torch

from tests.train.pair import make_net, make_teacher
from wager.train.acceptance import Rows, acceptance_by_depth, offered, tokens_per_step
from wager.train.drafter_quality import measure
from wager.train.generate import write_rows
from wager.train.texts import Text

CPU = torch.device("cpu")
PROMPTS = [[5, 6, 7], [1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17], [50, 40]]
SEEDS = [11, 12, 13]
LENGTHS = [12, 3, 7]


def written(temperature: float, lengths: list[int]) -> list[Text]:
    done = write_rows(make_teacher().model, PROMPTS, max(lengths), temperature, SEEDS)
    rows = zip(done.tokens.tolist(), PROMPTS, lengths, SEEDS, strict=True)
    return [
        Text(prompt, row[len(prompt) : len(prompt) + length], temperature, seed)
        for row, prompt, length, seed in rows
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_of_one_length_are_rows(temperature: float) -> None:
    net, teacher = make_net(), make_teacher()
    texts = written(temperature, [9, 9, 9])
    done = write_rows(teacher.model, PROMPTS, 9, temperature, SEEDS)
    ranks = offered(net, teacher, Rows(done.tokens, done.num_prompt, 9, temperature, SEEDS)).ranks
    [found] = measure(net, teacher, texts, CPU)  # type: ignore[arg-type]
    assert (found.temperature, found.num_texts, found.num_tokens) == (temperature, 3, 27)
    assert found.tokens_per_step == pytest.approx(tokens_per_step(ranks))
    assert found.by_depth == pytest.approx(acceptance_by_depth(ranks), abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_text_that_ended_early_counts_as_if_alone(temperature: float) -> None:
    net, teacher = make_net(), make_teacher()
    texts = written(temperature, LENGTHS)
    [together] = measure(net, teacher, texts, CPU)  # type: ignore[arg-type]
    alone = [measure(net, teacher, [text], CPU)[0] for text in texts]  # type: ignore[arg-type]
    steps = sum(own.num_tokens / own.tokens_per_step for own in alone)
    assert together.num_tokens == sum(LENGTHS)
    assert together.tokens_per_step == pytest.approx(sum(LENGTHS) / steps)
    assert all(own.tokens_per_step >= 1.0 for own in alone)


def test_temperatures_are_told_apart_and_empty_outputs_left_out() -> None:
    net, teacher = make_net().train(), make_teacher()
    texts = [*written(0.8, LENGTHS), *written(0.0, LENGTHS), Text([1, 2], [], 0.0, 1)]
    found = measure(net, teacher, texts, CPU)  # type: ignore[arg-type]
    assert [(own.temperature, own.num_texts) for own in found] == [(0.0, 3), (0.8, 3)]
    assert net.training
    assert measure(net, teacher, [], CPU) == []  # type: ignore[arg-type]
