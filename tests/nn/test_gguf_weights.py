"""Targets from GGUF files against transformers on the same dequantised weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.gguf.files import TYPES, save_gguf
from tests.nn.test_parity import Row
from wager.errors import WeightsError
from wager.gguf.header import read_header
from wager.nn.models import load_target
from wager.nn.weights import WeightReader


def mixed(name: str) -> str:
    """The types of a file as quantisers write them: each projection of a layer may have another one."""
    kinds = {"v_proj": "Q6_K", "down_proj": "Q8_0", "embed_tokens": "Q5_K", "up_proj": "BF16"}
    return next((kind for part, kind in kinds.items() if part in name), "Q4_K")


CASES = [("llama", kind) for kind in TYPES] + [("qwen2", "Q4_1"), ("qwen3", "Q4_K"), ("llama", "mixed")]


@pytest.mark.parametrize(("model_type", "kind"), CASES)
def test_scores_are_those_of_transformers(model_type: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    bias = {"attention_bias": True} if kind == "Q4_0" else {}
    model = save_gguf(path, model_type, mixed if kind == "mixed" else kind, **bias)
    decoder = load_target(path, torch.float32, layout="out_in")
    ids = torch.randint(0, 97, (23,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        found, wanted = Row(decoder, [3, 1, 7, 5, 2, 9]).feed(ids), model(ids[None]).logits[0]
    assert float((found - wanted).abs().max()) < 1e-4
    assert float(wanted.abs().max()) > 1.0


def test_a_window_makes_mistral_of_llama(tmp_path: Path) -> None:
    def change(writer: Any) -> None:
        writer.add_tokenizer_model("no_vocab")
        writer.add_sliding_window(6)

    model = save_gguf(tmp_path / "a.gguf", "mistral", "Q4_0", change, sliding_window=6)
    decoder = load_target(tmp_path / "a.gguf", torch.float32, layout="out_in")
    assert decoder.spec.model_type == "mistral" and decoder.spec.windows == (6, 6)
    ids = torch.randint(0, 97, (23,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        found, wanted = Row(decoder, [3, 1, 7, 5, 2, 9]).feed(ids), model(ids[None]).logits[0]
    assert float((found - wanted).abs().max()) < 1e-4


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    save_gguf(tmp_path / "a.gguf", "llama", "Q4_0", tie_word_embeddings=True)
    decoder = load_target(tmp_path / "a.gguf", torch.float32, layout="out_in")
    x = torch.randn(2, 256)
    torch.testing.assert_close(decoder.logits(x), x @ decoder.embedding.T)


def test_tensors_without_a_use_are_listed(tmp_path: Path) -> None:
    def change(writer: Any) -> None:
        writer.add_tensor("something.else", np.ones(3, np.float32))

    save_gguf(tmp_path / "a.gguf", "qwen3", "Q8_0", change)
    reader = WeightReader(tmp_path / "a.gguf", torch.float32)
    assert "something.else" in reader.leftovers() and "model.layers.1.self_attn.q_norm.weight" in reader


def damaged(path: Path, name: str, stored: bytes) -> Path:
    entry = read_header(path).tensors[name]
    whole = bytearray(path.read_bytes())
    whole[entry.start : entry.start + len(stored)] = stored
    path.write_bytes(bytes(whole))
    return path


def test_a_damaged_scale_is_named(tmp_path: Path) -> None:
    save_gguf(tmp_path / "a.gguf", "llama", "Q8_0")
    path = damaged(tmp_path / "a.gguf", "blk.1.ffn_down.weight", np.float16("nan").tobytes())
    with pytest.raises(WeightsError, match=r"layers\.1\.mlp\.down_proj\.weight: holds NaN.*a\.gguf"):
        load_target(path, torch.float32, layout="out_in")


def test_an_unreadable_type_is_named(tmp_path: Path) -> None:
    save_gguf(tmp_path / "a.gguf", "qwen3", "Q4_0")
    whole = (tmp_path / "a.gguf").read_bytes()
    place = whole.index(b"blk.1.ffn_up.weight") + len(b"blk.1.ffn_up.weight") + 4 + 16
    assert whole[place] == 2  # Q4_0, which has blocks of the same size as IQ4_NL
    (tmp_path / "a.gguf").write_bytes(whole[:place] + bytes([20]) + whole[place + 1 :])
    with pytest.raises(WeightsError, match=r"blk\.1\.ffn_up\.weight: has the type IQ4_NL; readable are F32"):
        load_target(tmp_path / "a.gguf", torch.float32, layout="out_in")
