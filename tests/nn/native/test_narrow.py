"""Quantised weights of GGUF files in native passes: the same bits as their dequantised values in float32."""

from pathlib import Path

import pytest
import torch

from tests.gguf.files import save_gguf
from tests.nn.test_gguf_weights import mixed
from tests.nn.test_parity import Row
from tests.nn.tiny import save_drafter
from wager.errors import ConfigError, InputError
from wager.llm import LLM
from wager.nn.models import load_target
from wager.nn.models.decoder import Decoder
from wager.nn.native.library import Library
from wager.nn.native.loader import PassOptions
from wager.records import SamplingParams

PAGES = list(range(40))
NARROW, WIDE = PassOptions("on", activations="full"), PassOptions("on", "full")
KINDS = {
    "Q4_0": "4-bit",
    "Q4_1": "4-bit",
    "Q4_K": "4-bit",
    "Q5_0": "8-bit",
    "Q8_0": "8-bit",
    "Q5_1": "8-bit",
    "Q5_K": "8-bit",
    "Q6_K": "8-bit in groups of 16",
    "mixed": "8-bit in groups of 16, 8-bit, 4-bit, float32",
}


def make(path: Path, kind: str) -> Path:
    with torch.inference_mode(False):
        save_gguf(path, "qwen3", mixed if kind == "mixed" else kind, tie_word_embeddings=kind == "Q4_0")
    return path


def scores(decoder: Decoder, counts: tuple[int, ...]) -> list[torch.Tensor]:
    row, generator = Row(decoder, PAGES), torch.Generator().manual_seed(5)
    return [row.feed(torch.randint(0, 97, (count,), generator=generator)) for count in counts]


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_bits_are_those_of_float32(kind: str, tmp_path: Path, ready: Library) -> None:
    path = make(tmp_path / "a.gguf", kind)
    narrow, wide = load_target(path, options=NARROW), load_target(path, options=WIDE)
    assert narrow.layout == f"native {ready.simd}: {KINDS[kind]} weights"
    counts = (1, 2, 3, 4, 5, 7, 10, 11, 12, 13, 25, 41)  # the last ones meet widened panels
    for found, wanted in zip(scores(narrow, counts), scores(wide, counts), strict=True):
        assert torch.equal(found, wanted)
        assert float(wanted.abs().max()) > 0.5


@pytest.mark.parametrize("activations", ["full", "int16", "int8"])
def test_a_token_is_the_same_in_any_company(activations: str, tmp_path: Path, ready: Library) -> None:
    options = PassOptions("on", activations=activations)
    decoder = load_target(make(tmp_path / "a.gguf", "mixed"), options=options)
    ids = torch.randint(0, 97, (23,), generator=torch.Generator().manual_seed(5))
    row = Row(decoder, PAGES)
    alone = torch.cat([row.feed(ids[at : at + 1]) for at in range(23)])
    assert torch.equal(alone, Row(decoder, PAGES).feed(ids))


@pytest.mark.parametrize("kind", list(KINDS))
def test_rounded_activations_change_little(kind: str, tmp_path: Path, ready: Library) -> None:
    path = make(tmp_path / "a.gguf", kind)
    wanted, differences = scores(load_target(path, options=WIDE), (9,))[0], []
    for activations in ("auto", "int8"):
        decoder = load_target(path, options=PassOptions("on", activations=activations))
        assert f"{KINDS[kind]} weights, {8 if activations == 'int8' else 16}-bit" in str(decoder.layout)
        found = scores(decoder, (9,))[0]
        differences.append(float((found - wanted).norm() / wanted.norm()))
    assert 0 < differences[0] < 2e-4 and 10 * differences[0] < differences[1] < 0.05


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_a_head_serves_guesses_in_4_bits_with_8_bit_activations(
    kind: str, tmp_path: Path, ready: Library
) -> None:
    path = make(tmp_path / "a.gguf", kind)
    target, rounded = (load_target(path, options=PassOptions("on", activations=a)) for a in ("auto", "int8"))
    hidden = torch.randn(5, 256, generator=torch.Generator().manual_seed(0))
    head = target.draft_head(())
    assert head is not None and not torch.equal(head(hidden), target.logits(hidden))
    assert torch.equal(head(hidden), rounded.logits(hidden)) == (kind == "Q4_1"), "it has 4 bits already"


def test_a_model_without_quantised_weights_has_no_rounded_activations(tmp_path: Path, ready: Library) -> None:
    with pytest.raises(ConfigError, match="activations = 'int16'"):
        load_target(make(tmp_path / "a.gguf", "F16"), options=PassOptions("on", activations="int16"))


def test_plain_torch_serves_until_the_library_is_ready(tmp_path: Path) -> None:
    path = make(tmp_path / "a.gguf", "Q4_1")
    waiting, plain = load_target(path, options=NARROW), load_target(path, layout="out_in")
    assert waiting.native_loader.reason
    found, wanted = scores(waiting, (9,))[0], scores(plain, (9,))[0]
    assert float((found - wanted).abs().max()) < 1e-4


def test_int8_and_full_are_what_they_say(tmp_path: Path, ready: Library) -> None:
    path = make(tmp_path / "a.gguf", "Q4_1")
    assert "int8" in str(load_target(path, options=PassOptions("on", "int8")).layout)
    assert "float32" in str(load_target(path, options=WIDE).layout)


@pytest.mark.parametrize("token", [-1, 97, 10**6])
def test_a_token_outside_the_vocabulary_is_refused(token: int, tmp_path: Path, ready: Library) -> None:
    path = make(tmp_path / "a.gguf", "Q8_0")
    narrow, wide = load_target(path, options=NARROW), load_target(path, options=WIDE)
    for decoder in (narrow, wide):
        with pytest.raises(InputError, match="token id outside the vocabulary"):
            Row(decoder, PAGES).feed(torch.tensor([1, token]))


def test_embeddings_are_dequantised_when_they_are_needed(tmp_path: Path, ready: Library) -> None:
    path = make(tmp_path / "a.gguf", "mixed")
    narrow, wide = load_target(path, options=NARROW), load_target(path, options=WIDE)
    ids = torch.tensor([0, 96, 3, 3])
    assert torch.equal(narrow.embed(ids), wide.embed(ids))
    assert torch.equal(narrow.embedding, wide.embedding)


def test_a_block_drafter_changes_no_text(tmp_path: Path, ready: Library) -> None:
    path = make(tmp_path / "a.gguf", "Q4_1")
    layers = {"mask_token_id": 96, "target_layer_ids": [0, 1]}
    save_drafter(tmp_path / "drafter", hidden_size=256, num_target_layers=2, dflash_config=layers)
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=2)
    texts = []
    for policy in ("ar", "fixed:5", "tree:8"):
        llm = LLM(str(path), drafter=str(tmp_path / "drafter"), policy=policy, native="on")
        assert "4-bit" in str(llm.notes["layout"])
        (output,) = llm.generate([[1, 2, 3, 4]], params)
        assert policy == "ar" or output.stats.drafted > 20
        texts.append(output.token_ids)
    assert texts[0] == texts[1] == texts[2] and len(texts[0]) == 40
