"""Drafters to GGUF and back: the same bits in bfloat16, Q8_0 within its bound, the same guesses."""

from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.gguf.drafters import SIZES, own_name
from tests.gguf.files import save_gguf
from tests.nn.tiny import save_drafter, save_target
from wager.errors import ConfigError, InputError, ModelError, WeightsError
from wager.llm import LLM
from wager.nn.gguf_convert import drafter_to_gguf, gguf_to_folder
from wager.nn.models import load_target
from wager.nn.models.dflash_spec import read_spec
from wager.nn.weights import read_config
from wager.records import SamplingParams

RECORDED = {
    "dflash_config": {
        "mask_token_id": 96,
        "target_layer_ids": [0, 2],
        "max_known_tokens": 3,
        "block_lengths": [4, 8],
        "block_causal_in_sliding": True,
    },
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 7,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A drafter in bfloat16 with everything that Wager's own training records."""
    tensors = save_drafter(tmp_path / "drafter", **SIZES, **RECORDED)
    narrow = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    save_file(narrow, tmp_path / "drafter" / "model.safetensors")
    return tmp_path / "drafter"


def test_a_round_trip_in_bfloat16_changes_no_bit(folder: Path, tmp_path: Path) -> None:
    done = drafter_to_gguf(folder, tmp_path / "a.gguf", "bf16")
    assert done.num_tensors == 25 and done.unused == []
    gguf_to_folder(tmp_path / "a.gguf", tmp_path / "back")
    before, after = (
        load_file(folder / "model.safetensors"),
        load_file(tmp_path / "back" / "model.safetensors"),
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {one.dtype for one in after.values()} == {torch.bfloat16}
    config, back = read_config(folder), read_config(tmp_path / "back")
    assert read_spec(config) == read_spec(back)
    assert config["dflash_config"] == back["dflash_config"] and config["vocab_size"] == back["vocab_size"]


def test_the_names_are_llama_cpps_and_the_types_as_asked(folder: Path, tmp_path: Path) -> None:
    for form, kind in (("bf16", "BF16"), ("f16", "F16"), ("q8_0", "Q8_0")):
        drafter_to_gguf(folder, tmp_path / f"{form}.gguf", form)
        found = {one.name: one for one in gguf.GGUFReader(tmp_path / f"{form}.gguf").tensors}
        names = load_file(folder / "model.safetensors")
        assert set(found) == {own_name(name, "dflash") for name in names}
        for name, tensor in names.items():
            one = found[own_name(name, "dflash")]
            assert one.tensor_type.name == (kind if tensor.ndim == 2 else "F32")
            assert one.shape.tolist() == list(reversed(tensor.shape))
    fields = {name: one.contents() for name, one in gguf.GGUFReader(tmp_path / "bf16.gguf").fields.items()}
    wanted = {
        "general.architecture": "dflash",
        "dflash.block_size": 8,
        "dflash.target_layers": [1, 3],
        "tokenizer.ggml.mask_token_id": 96,
        "dflash.attention.sliding_window": 7,
        "dflash.attention.sliding_window_pattern": [True, False],
        "dflash.rope.freq_base": 10_000.0,
        "wager.block_lengths": [4, 8],
    }
    assert {name: fields.get(name) for name in wanted} == wanted


def test_q8_0_is_within_its_bound_and_equal_to_the_package(folder: Path, tmp_path: Path) -> None:
    drafter_to_gguf(folder, tmp_path / "a.gguf", "q8_0")
    gguf_to_folder(tmp_path / "a.gguf", tmp_path / "back")
    before, after = (
        load_file(folder / "model.safetensors"),
        load_file(tmp_path / "back" / "model.safetensors"),
    )
    for name, tensor in before.items():
        wide = tensor.float()
        if tensor.ndim == 1:
            assert torch.equal(wide, after[name].float())
            continue
        groups = wide.view(-1, 32)
        step = groups.abs().amax(1, keepdim=True) / 127
        error = (after[name].view(-1, 32) - groups).abs()
        assert bool((error <= step * (0.5 + 127 * 2**-11) + 1e-9).all()) and float(error.max()) > 0
        stored = gguf.quants.quantize(wide.numpy(), gguf.GGMLQuantizationType.Q8_0)
        wanted = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.Q8_0)
        assert torch.equal(after[name], torch.from_numpy(wanted))


@pytest.mark.parametrize("form", ["bf16", "q8_0"])
def test_the_converted_drafter_drafts_the_same_tokens(form: str, folder: Path, tmp_path: Path) -> None:
    save_target(tmp_path / "target", "qwen3", **SIZES)
    drafter_to_gguf(folder, tmp_path / "a.gguf", form)
    reference = folder
    if form == "q8_0":  # the drafter of the rounded weights
        reference = gguf_to_folder(tmp_path / "a.gguf", tmp_path / "back").path
    found = []
    for drafter in (tmp_path / "a.gguf", reference):
        llm = LLM(
            str(tmp_path / "target"), drafter=str(drafter), policy="fixed:5", dtype="float32", native="off"
        )
        (output,) = llm.generate([[1, 2, 3, 4, 5]], SamplingParams(max_tokens=40, temperature=0.9, seed=3))
        found.append((output.token_ids, output.origins, output.stats.accepted, output.stats.drafted))
    assert found[0] == found[1] and found[0][3] > 20


def test_a_target_becomes_a_folder_with_the_same_weights(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = save_gguf(tmp_path / "a.gguf", "llama", "Q4_1", tie_word_embeddings=True)
    gguf_to_folder(tmp_path / "a.gguf", tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    own = dict(model.named_parameters())
    for name, weight in loaded.named_parameters():
        assert torch.equal(weight, own[name]), name
    file, out = (
        load_target(tmp_path / "a.gguf", layout="out_in"),
        load_target(tmp_path / "out", layout="out_in"),
    )
    assert file.spec == out.spec and torch.equal(file.embedding, out.embedding)


def test_faults_of_tensors_are_named(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")

    def refused(
        error: type[ModelError], words: str, form: str = "bf16", **changes: torch.Tensor | None
    ) -> None:
        named = {name.replace("__", "."): value for name, value in changes.items()}
        kept = {**tensors, **{name: value for name, value in named.items() if value is not None}}
        kept = {name: value for name, value in kept.items() if named.get(name, value) is not None}
        save_file(kept, folder / "model.safetensors")
        with pytest.raises(error, match=words):
            drafter_to_gguf(folder, tmp_path / "a.gguf", form)
        assert not (tmp_path / "a.gguf").exists()

    refused(WeightsError, r"tensor fc\.weight: is missing from", fc__weight=None)
    refused(WeightsError, "has shape .* the config asks for", norm__weight=torch.ones(63))
    refused(WeightsError, "holds NaN", norm__weight=torch.full((64,), float("nan")))
    refused(WeightsError, "too large for F16", "f16", fc__weight=torch.full((64, 128), 1e5))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ConfigError, match="bf16, f16, q8_0"):
        drafter_to_gguf(folder, tmp_path / "a.gguf", "q4_0")


def test_rows_that_q8_0_cannot_hold_are_named(tmp_path: Path) -> None:
    save_drafter(tmp_path / "odd")  # rows of 48
    with pytest.raises(WeightsError, match="has rows of 48: Q8_0 needs multiples of 32"):
        drafter_to_gguf(tmp_path / "odd", tmp_path / "a.gguf", "q8_0")


def test_tensors_without_a_use_are_left_out_and_listed(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "extra.weight": torch.ones(3)}, folder / "model.safetensors")
    drafter_to_gguf(folder, tmp_path / "a.gguf", "bf16")
    assert len(gguf.GGUFReader(tmp_path / "a.gguf").tensors) == 25


def test_a_folder_that_cannot_be_written_is_named(folder: Path, tmp_path: Path) -> None:
    drafter_to_gguf(folder, tmp_path / "a.gguf", "bf16")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        gguf_to_folder(tmp_path / "a.gguf", tmp_path / "file" / "out")
