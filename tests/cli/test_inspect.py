"""`wager inspect`: what a model contains, whether it fits, what is missing or unused; faults are findings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.gguf.drafters import SIZES, save_drafter_gguf, without
from tests.gguf.files import save_gguf
from tests.nn.test_gguf_weights import mixed
from tests.nn.tiny import save_drafter, save_target
from wager.cli import main

Capture = pytest.CaptureFixture[str]


def look(capsys: Capture, *args: object, status: int = 0) -> dict[str, tuple[str, str]]:
    """The findings by name."""
    assert main.exit_status(["inspect", *map(str, args), "--json"]) == status
    return {one["name"]: (one["status"], one["detail"]) for one in json.loads(capsys.readouterr().out)}


def test_a_target_file(tmp_path: Path, capsys: Capture) -> None:
    def change(writer: Any) -> None:
        writer.add_tensor("something.else", np.ones(3, np.float32))
        writer.add_uint32("llama.new_feature", 7)

    save_gguf(tmp_path / "a.gguf", "llama", mixed, change)
    found = look(capsys, tmp_path / "a.gguf")
    assert found["architecture"] == ("ok", "llama")
    assert found["model"][1] == "target of the type llama, 2 layers x 256, 97 tokens"
    assert "4/2 heads of 64, ffn 512, rope theta 10000" in found["sizes"][1]
    assert "Q4_K" in found["tensors"][1] and "2 Q6_K (" in found["tensors"][1]
    assert found["unused tensors"] == ("warn", "something.else")
    assert found["unused keys"] == ("warn", "llama.new_feature")
    assert found["tokenizer"][0] == "warn"
    assert main.exit_status(["inspect", str(tmp_path / "a.gguf")]) == 0
    assert "warn  unused keys     llama.new_feature" in capsys.readouterr().out


def test_a_drafter_fits_its_target_or_not(tmp_path: Path, capsys: Capture) -> None:
    save_drafter_gguf(tmp_path / "a.gguf")
    save_target(tmp_path / "target", "qwen3", **SIZES)
    save_target(tmp_path / "other", "qwen3", hidden_size=48, num_hidden_layers=2)
    found = look(capsys, tmp_path / "a.gguf", "--target", tmp_path / "target")
    assert found["drafter"] == ("ok", "blocks of 8, outputs of target layers [0, 2], mask token 96")
    assert found["fit: hidden size"] == ("ok", "64") and found["fit: layer ids"][0] == "ok"
    found = look(capsys, tmp_path / "a.gguf", "--target", tmp_path / "other", status=2)
    assert found["fit: hidden size"] == ("fail", "64, but the target has 48")
    assert found["fit: layer ids"][0] == "fail"


def test_folders_are_shown_too(tmp_path: Path, capsys: Capture) -> None:
    save_drafter(tmp_path / "drafter", **SIZES)
    assert look(capsys, tmp_path / "drafter")["tensors"] == ("ok", "25 F32 (0.3 MB)")
    tensors = load_file(tmp_path / "drafter" / "model.safetensors")
    del tensors["layers.0.mlp.up_proj.weight"]
    tensors["norm.weight"] = torch.ones(63)
    save_file(tensors, tmp_path / "drafter" / "model.safetensors")
    found = look(capsys, tmp_path / "drafter", status=2)
    assert found["missing tensors"] == ("fail", "layers.0.mlp.up_proj.weight")
    assert found["shape"] == ("fail", "norm.weight has [63], needed is [64]")


def test_a_fault_does_not_hide_the_rest(tmp_path: Path, capsys: Capture) -> None:
    save_drafter_gguf(tmp_path / "a.gguf", change=without("dflash.block_size"))
    found = look(capsys, tmp_path / "a.gguf", status=2)
    assert found["config"] == ("fail", "a.gguf: the metadata key dflash.block_size is missing")
    assert found["architecture"] == ("ok", "dflash")
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    found = look(capsys, tmp_path / "b.gguf", status=2)
    assert "not a GGUF file: it has only 4 bytes" in found["file"][1]
    assert main.exit_status(["inspect", str(tmp_path / "nowhere")]) == 2
    assert "neither a GGUF file nor a model folder" in capsys.readouterr().err


def test_an_unreadable_type_is_a_fault(tmp_path: Path, capsys: Capture) -> None:
    save_gguf(tmp_path / "a.gguf", "qwen3", "Q4_0")
    whole = bytearray((tmp_path / "a.gguf").read_bytes())
    place = whole.index(b"blk.1.ffn_up.weight") + len(b"blk.1.ffn_up.weight") + 4 + 16
    whole[place] = 20  # IQ4_NL
    (tmp_path / "a.gguf").write_bytes(whole)
    assert look(capsys, tmp_path / "a.gguf", status=2)["types"][1].startswith("IQ4_NL cannot be read; F32")
