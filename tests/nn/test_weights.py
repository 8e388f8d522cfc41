"""Reading model folders: shards, dtypes, and every way they can be broken, each named."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.nn.tiny import SHAPE, build_target, save_target
from wager.errors import ModelError, WeightsError
from wager.nn.models import MODEL_TYPES, load_target, read_spec
from wager.nn.models.hf_config import pick_dtype
from wager.nn.weights import WeightReader


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    save_target(folder, "qwen3")
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    for path in saved.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def change_tensors(folder: Path, **changes: Any) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, change in changes.items():
        name = name.replace("__", ".")
        if change is None:
            del tensors[name]
        else:
            tensors[name] = change(tensors[name]) if callable(change) else change
    save_file(tensors, path)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def with_nan(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[3] = float("nan")
    return tensor


def test_shards_equal_one_file(saved: Path, tmp_path: Path) -> None:
    build_target("qwen3").save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    one, many = load_target(saved, layout="out_in"), load_target(tmp_path, layout="out_in")
    assert torch.equal(one.embedding, many.embedding)
    x = torch.randn(3, SHAPE["hidden_size"])
    assert torch.equal(one.layers[2].gate_up(x), many.layers[2].gate_up(x))


def test_dtype_is_the_configs_unless_asked(saved: Path, folder: Path) -> None:
    assert load_target(saved).dtype == torch.float32
    assert load_target(saved, "bfloat16").dtype == torch.bfloat16
    change_config(folder, dtype="bfloat16")
    assert load_target(folder).dtype == torch.float32, "on a CPU 16-bit products are the slower ones"
    assert pick_dtype("auto", {"dtype": "bfloat16"}, "cuda") == torch.bfloat16
    assert load_target(folder, torch.float64).dtype == torch.float64
    with pytest.raises(ModelError, match="int8"):
        load_target(folder, "int8")


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change_tensors(folder, model__layers__1__self_attn__k_proj__weight=None)
    with pytest.raises(WeightsError, match=r"model\.layers\.1\.self_attn\.k_proj\.weight: is missing"):
        load_target(folder)


def test_a_wrong_shape_is_named_with_both_shapes(folder: Path) -> None:
    change_tensors(folder, model__norm__weight=torch.ones(47))
    with pytest.raises(WeightsError, match=r"model\.norm\.weight: has shape \[47\].*\[48\]"):
        load_target(folder)


def test_nan_weights_are_named(folder: Path) -> None:
    change_tensors(folder, model__layers__2__mlp__up_proj__weight=with_nan)
    with pytest.raises(WeightsError, match=r"layers\.2\.mlp\.up_proj\.weight: holds NaN"):
        load_target(folder)


def test_integer_weights_are_refused_by_name(folder: Path) -> None:
    change_tensors(folder, lm_head__weight=lambda w: torch.zeros(w.shape, dtype=torch.int8))
    with pytest.raises(WeightsError, match=r"lm_head\.weight: has dtype torch\.int8"):
        load_target(folder)


def test_a_truncated_file_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(WeightsError, match=r"model\.safetensors is damaged or truncated"):
        load_target(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    build_target("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    lost = sorted(tmp_path.glob("model-*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(WeightsError, match=lost.name):
        load_target(tmp_path)


def test_leftover_tensors_are_ignored_but_listed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_tensors(folder, something__else=torch.ones(2))
    with caplog.at_level(logging.DEBUG):
        load_target(folder)
    assert "something.else" in caplog.text


def test_a_reader_can_skip_the_finite_check(folder: Path) -> None:
    change_tensors(folder, model__norm__weight=with_nan)
    reader = WeightReader(folder, torch.float32)
    assert torch.isnan(reader.get("model.norm.weight", (48,), check_finite=False)).any()


def test_tied_models_need_no_head(tmp_path: Path) -> None:
    save_target(tmp_path, "qwen2", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    decoder = load_target(tmp_path, layout="out_in")
    x = torch.randn(2, SHAPE["hidden_size"])
    torch.testing.assert_close(decoder.logits(x), x @ decoder.embedding.T)


def test_missing_folder_config_and_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere does not exist"):
        load_target(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"config\.json not found"):
        load_target(tmp_path)
    (tmp_path / "config.json").write_text("{ not json")
    with pytest.raises(ModelError, match="not valid JSON"):
        load_target(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="JSON object"):
        load_target(tmp_path)


def test_no_weights_at_all(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"no \.safetensors file"):
        load_target(folder)


@pytest.mark.parametrize(
    ("model_type", "changes", "word"),
    [
        ("qwen3", {"hidden_act": "gelu"}, "hidden_act"),
        ("qwen3", {"num_experts": 8}, "num_experts"),
        ("qwen2", {"layer_types": ["linear_attention"] * 3}, "linear_attention"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
        ("llama", {"head_dim": 7}, "head_dim"),
        ("llama", {"hidden_size": "big"}, "hidden_size"),
        ("llama", {"vocab_size": None}, "vocab_size"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("mistral", {"sliding_window": 0}, "sliding_window"),
        ("mistral", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("mistral", {"rms_norm_eps": "tiny"}, "rms_norm_eps"),
        ("gemma3", {}, "gemma3"),
    ],
)
def test_what_a_config_cannot_have_is_refused_by_field(
    model_type: str, changes: dict[str, Any], word: str
) -> None:
    with pytest.raises(ModelError, match=word):
        read_spec(dict(SHAPE) | {"model_type": model_type} | changes)


def test_windows_follow_the_config() -> None:
    assert set(MODEL_TYPES) == {"llama", "mistral", "qwen2", "qwen3"}
    base = dict(SHAPE) | {"sliding_window": 9}
    assert read_spec(base | {"model_type": "mistral"}).windows == (9, 9, 9)
    assert read_spec(base | {"model_type": "mistral", "num_key_value_heads": None}).num_kv_heads == 4
    assert read_spec(base | {"model_type": "qwen2"}).windows == (None, None, None)
    on = base | {"model_type": "qwen3", "use_sliding_window": True}
    assert read_spec(on | {"max_window_layers": 2}).windows == (None, None, 9)
    assert read_spec(on | {"max_window_layers": 0}).windows == (9, 9, 9)
    listed = ["sliding_attention", "full_attention", "sliding_attention"]
    assert read_spec(on | {"layer_types": listed}).windows == (9, None, 9)
