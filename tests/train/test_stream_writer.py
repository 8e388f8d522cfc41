"""Texts written in bulk are the target's own: transformers' greedily, and the engine's by seed."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.nn.tiny import SHAPE, save_target
from tests.train.toy import Toy, engine_writer
from wager.errors import InputError, ModelError
from wager.train.generate import write_rows
from wager.train.slot_decoder import SlotDecoder, load_slot_decoder, slot_bytes
from wager.train.stream_writer import StreamWriter, lent_writer
from wager.train.texts import TextOrder

CPU = torch.device("cpu")
LENGTH = 48
CHANGES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 5},
}


def orders(count: int, temperature: float = 0.0, vocab: int = SHAPE["vocab_size"]) -> list[TextOrder]:
    """Prompts of 1 to 20 tokens with limits of 1 to 25 tokens; every third has half the temperature."""
    chance = random.Random(4)
    return [
        TextOrder(
            [chance.randrange(vocab) for _ in range(chance.randint(1, 20))],
            chance.randint(1, 25),
            temperature / 2 if number % 3 == 0 else temperature,
            chance.getrandbits(63) * 2,
        )
        for number in range(count)
    ]


def cut(output: list[int], end_ids: set[int]) -> list[int]:
    """A text up to its first end token."""
    ends = [place for place, token in enumerate(output) if token in end_ids]
    return output[: ends[0] + 1] if ends else output


def transformers_texts(model: Any, asked: list[TextOrder], end_ids: set[int]) -> list[list[int]]:
    """Every text alone, by the plain sampler over a transformers model."""
    found = []
    for order in asked:
        rows = write_rows(model, [order.prompt_ids], order.num_output, order.temperature, [order.seed])
        found.append(cut(rows.tokens[0, len(order.prompt_ids) :].tolist(), end_ids))
    return found


def decoder_of(folder: Path, num_slots: int, device: torch.device = CPU) -> SlotDecoder:
    return load_slot_decoder(folder, torch.float32, device, num_slots, LENGTH)


@pytest.mark.parametrize("model_type", CHANGES)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_texts_are_those_of_transformers(tmp_path: Path, model_type: str, temperature: float) -> None:
    """Mixed prompts, more texts than slots, limits, and end tokens that some texts meet."""
    model = save_target(tmp_path, model_type, **CHANGES[model_type])
    asked = orders(15, temperature)
    whole = transformers_texts(model, asked, set())
    end_ids = {whole[0][-1], whole[7][len(whole[7]) // 2]}
    want = [cut(text, end_ids) for text in whole]
    assert any(len(text) < order.num_output for text, order in zip(want, asked, strict=True))
    for num_slots in (4, 20):
        assert StreamWriter(decoder_of(tmp_path, num_slots), end_ids)(asked) == want


def test_a_text_does_not_depend_on_its_slot_or_its_neighbours(tmp_path: Path) -> None:
    save_target(tmp_path, "qwen3")
    asked = orders(12, 0.8)
    writer = StreamWriter(decoder_of(tmp_path, 3), {5})
    together = writer(asked)
    assert [writer([order])[0] for order in reversed(asked)] == together[::-1]
    assert StreamWriter(decoder_of(tmp_path, 1), {5})(asked) == together
    assert writer([]) == [] and writer([asked[0]._replace(num_output=0)]) == [[]]


def test_texts_are_those_of_the_engine(toy: Toy) -> None:
    """The same contract as `wager train`'s other writer, for a target that has learned to end."""
    tokenizer = toy.target.tokenizer
    words = ["What is 3 plus 4? It is", "What is 11 plus", "<|user|>\nSay 7 twice.\n<|assistant|>\n"]
    prompts = [tokenizer.encode(word, add_special=False) for word in words]
    asked = [
        TextOrder(prompt, 40, temperature, 11 * number)
        for number, prompt in enumerate(prompts)
        for temperature in (0.0, 0.7)
    ]
    with engine_writer(toy) as write:
        want = [list(output) for output in write(asked)]
    decoder = load_slot_decoder(toy.target.folder, torch.float32, CPU, 4, 128)
    assert StreamWriter(decoder, tokenizer.eos_ids)(asked) == want
    assert any(output[-1] in tokenizer.eos_ids for output in want)


def test_other_end_tokens_hold_for_one_call(tmp_path: Path) -> None:
    model = save_target(tmp_path, "llama")
    asked = orders(6)
    whole = transformers_texts(model, asked, set())
    writer = StreamWriter(decoder_of(tmp_path, 4), ())
    ends = {token for text in whole for token in text[len(text) // 2 :: 3]}
    assert writer(asked) == whole
    assert writer.write(asked, end_ids=ends) == [cut(text, ends) for text in whole] != whole
    assert writer(asked) == whole


def test_at_the_time_limit_texts_stop_where_they_are(tmp_path: Path) -> None:
    model = save_target(tmp_path, "llama")
    asked = orders(6)
    writer, told = StreamWriter(decoder_of(tmp_path, 4), ()), list[tuple[int, int]]()
    assert writer.write(asked, max_seconds=0.0) == [[]] * 6
    whole = transformers_texts(model, asked, set())
    looks = iter(range(10**6))

    def stop_soon(texts: int, tokens: int) -> None:
        told.append((texts, tokens))
        if next(looks) == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writer.write(asked, tell=stop_soon)
    assert told == sorted(told) and writer(asked) == whole


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    save_target(tmp_path, "llama")
    writer = StreamWriter(decoder_of(tmp_path, 2), ())
    with pytest.raises(
        InputError, match="a text of 49 tokens after a prompt of 9: expected a prompt, and at"
    ):
        writer([TextOrder([1] * 9, 40, 0.0, 0)])
    with pytest.raises(InputError, match="expected a prompt"):
        writer([TextOrder([], 4, 0.0, 0)])
    writer.decoder._embedding[3] = torch.nan
    with pytest.raises(ModelError, match="scores are not finite"):
        writer([TextOrder([1, 3], 4, 0.0, 0)])
    assert len(writer([TextOrder([1, 2], 4, 0.0, 0)])[0]) == 4
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(ModelError, match="model_type 'mamba' is not supported"):
        decoder_of(tmp_path, 2)


def test_a_lent_writer_is_loaded_when_it_is_called(tmp_path: Path) -> None:
    save_target(tmp_path, "llama")
    asked, loaded = orders(3), list[StreamWriter]()

    def load() -> StreamWriter:
        loaded.append(StreamWriter(decoder_of(tmp_path, 2), ()))
        return loaded[-1]

    with lent_writer(load) as write:
        assert not loaded
        assert write(asked) == write(asked)
    assert len(loaded) == 1


def test_the_memory_of_a_slot_is_counted(tmp_path: Path) -> None:
    save_target(tmp_path, "llama")
    decoder = decoder_of(tmp_path, 2)
    cached = 2 * decoder._keys.nbytes // 2
    assert cached < slot_bytes(decoder.spec, torch.float32, LENGTH) < 2 * cached


@pytest.mark.gpu
@pytest.mark.parametrize("model_type", CHANGES)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_device_writes_what_a_cpu_writes(tmp_path: Path, model_type: str, temperature: float) -> None:
    """One graph, refills, ends and noise; the scores differ by roundings, so few texts may part."""
    save_target(tmp_path, model_type, **CHANGES[model_type])
    asked = orders(60, temperature)
    want = StreamWriter(decoder_of(tmp_path, 60), {5, 6})(asked)
    device = torch.device("cuda")
    for num_slots in (16, 100):
        writer = StreamWriter(decoder_of(tmp_path, num_slots, device), {5, 6})
        got = writer(asked)
        assert writer._graph is not None and got == writer(asked)
        assert sum(left == right for left, right in zip(got, want, strict=True)) >= 57
