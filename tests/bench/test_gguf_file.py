"""A target as a GGUF file: read back, every tensor under its name, in its shape, with its values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.cpu.gguf_file import library, write_gguf
from tests.nn.tiny import save_target
from wager.errors import ConfigError, ModelError

SIZES = {"hidden_size": 64, "intermediate_size": 96}


@pytest.fixture(scope="module")
def gguf() -> Any:
    return pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    save_target(folder, "qwen3", seed=1, tie_word_embeddings=True, **SIZES)
    return folder


def tensors(gguf: Any, path: Path) -> dict[str, Any]:
    return {one.name: one for one in gguf.GGUFReader(path).tensors}


def weights(folder: Path) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def test_float32_is_the_weights_themselves(gguf: Any, target: Path, tmp_path: Path) -> None:
    found = tensors(gguf, write_gguf(target, tmp_path / "f32.gguf", "f32"))
    own = weights(target)
    assert len(found) == 2 + 3 * 11
    assert {one.tensor_type for one in found.values()} == {gguf.GGMLQuantizationType.F32}
    for name, source in {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "blk.0.attn_q.weight": "model.layers.0.self_attn.q_proj.weight",
        "blk.1.attn_k.weight": "model.layers.1.self_attn.k_proj.weight",
        "blk.1.attn_v.weight": "model.layers.1.self_attn.v_proj.weight",
        "blk.2.attn_output.weight": "model.layers.2.self_attn.o_proj.weight",
        "blk.2.attn_q_norm.weight": "model.layers.2.self_attn.q_norm.weight",
        "blk.2.attn_k_norm.weight": "model.layers.2.self_attn.k_norm.weight",
        "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
        "blk.0.ffn_norm.weight": "model.layers.0.post_attention_layernorm.weight",
        "blk.1.ffn_gate.weight": "model.layers.1.mlp.gate_proj.weight",
        "blk.1.ffn_up.weight": "model.layers.1.mlp.up_proj.weight",
        "blk.1.ffn_down.weight": "model.layers.1.mlp.down_proj.weight",
    }.items():
        assert found[name].shape.tolist() == list(reversed(own[source].shape)), name
        assert np.array_equal(found[name].data, own[source]), name


def test_q8_0_has_matrices_in_groups_of_32_and_norms_in_float32(
    gguf: Any, target: Path, tmp_path: Path
) -> None:
    found = tensors(gguf, write_gguf(target, tmp_path / "q8.gguf", "q8_0"))
    own = weights(target)
    norm = found["blk.0.attn_norm.weight"]
    assert norm.tensor_type == gguf.GGMLQuantizationType.F32
    assert np.array_equal(norm.data, own["model.layers.0.input_layernorm.weight"])
    down, source = found["blk.0.ffn_down.weight"], own["model.layers.0.mlp.down_proj.weight"]
    assert down.tensor_type == gguf.GGMLQuantizationType.Q8_0 and down.shape.tolist() == [96, 64]
    values = gguf.quants.dequantize(down.data, down.tensor_type)
    step = np.abs(source.reshape(-1, 32)).max(1, keepdims=True) / 127
    # Half a step of rounding, and what the scale loses in sixteen bits over 127 steps.
    assert (np.abs((values - source).reshape(-1, 32)) <= step * (0.5 + 127 * 2**-11) + 1e-9).all()
    assert not np.array_equal(values, source)
    assert {"token_embd.weight"} <= {
        name for name, one in found.items() if one.tensor_type == gguf.GGMLQuantizationType.Q8_0
    }


def test_bf16_is_the_published_weights_rounded_once(gguf: Any, target: Path, tmp_path: Path) -> None:
    import torch

    found = tensors(gguf, write_gguf(target, tmp_path / "bf16.gguf", "bf16"))
    own, up = weights(target), found["blk.1.ffn_up.weight"]
    assert up.tensor_type == gguf.GGMLQuantizationType.BF16 and up.shape.tolist() == [64, 96]
    rounded = torch.from_numpy(own["model.layers.1.mlp.up_proj.weight"]).bfloat16().float().numpy()
    assert np.array_equal(gguf.quants.dequantize(up.data, up.tensor_type), rounded)
    assert found["output_norm.weight"].tensor_type == gguf.GGMLQuantizationType.F32


def test_the_file_says_what_the_model_is(gguf: Any, target: Path, tmp_path: Path) -> None:
    path = write_gguf(target, tmp_path / "f32.gguf", "f32")
    fields = {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}
    wanted = {
        "general.architecture": "qwen3",
        "qwen3.block_count": 3,
        "qwen3.embedding_length": 64,
        "qwen3.feed_forward_length": 96,
        "qwen3.attention.head_count": 4,
        "qwen3.attention.head_count_kv": 2,
        "qwen3.attention.key_length": 16,
        "qwen3.attention.value_length": 16,
        "qwen3.context_length": 512,
        "qwen3.vocab_size": 97,
        "qwen3.rope.freq_base": 10_000.0,
        "tokenizer.ggml.model": "no_vocab",
    }
    assert {name: fields.get(name) for name in wanted} == wanted
    assert fields["qwen3.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-6)


def test_a_head_of_its_own_is_kept(gguf: Any, tmp_path: Path) -> None:
    save_target(tmp_path / "target", "qwen3", seed=2, tie_word_embeddings=False, **SIZES)
    found = tensors(gguf, write_gguf(tmp_path / "target", tmp_path / "f32.gguf", "f32"))
    assert np.array_equal(found["output.weight"].data, weights(tmp_path / "target")["lm_head.weight"])


def test_what_would_be_another_model_is_refused(gguf: Any, target: Path, tmp_path: Path) -> None:
    def refused(words: str, form: str = "f32", kind: str = "qwen3", **changes: Any) -> None:
        folder = tmp_path / words.replace(" ", "-")
        save_target(folder, kind, **SIZES | changes)
        with pytest.raises(ModelError, match=words):
            write_gguf(folder, folder / "out.gguf", form)
        assert not (folder / "out.gguf").exists()

    refused("type llama", kind="llama")
    refused("biases", attention_bias=True)
    refused("sliding windows", use_sliding_window=True, sliding_window=8, max_window_layers=1)
    refused("yarn", rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4})
    refused("rows of 48", "q8_0", hidden_size=48)
    with pytest.raises(ConfigError, match="f32, bf16, q8_0"):
        write_gguf(target, tmp_path / "out.gguf", "q4_0")


def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(ModelError, match=r"no-such-package.*\[bench\]"):
        library("no_such_package")
