"""A target's metadata as a config: equal to the published config, with an error for every contradiction."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.gguf.files import save_gguf
from wager.errors import ModelError
from wager.gguf.config import gguf_config
from wager.gguf.fields import shortest
from wager.gguf.rope import llama3_factors
from wager.nn.models import read_spec
from wager.nn.rope import RopeSpec, frequencies

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-bias": ("llama", {"tie_word_embeddings": True, "mlp_bias": True}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "qwen3": ("qwen3", {"rms_norm_eps": 1e-5}),
}


def words_and_window(window: int | None) -> Any:
    def change(writer: Any) -> None:
        writer.add_tokenizer_model("no_vocab")
        if window is not None:
            writer.add_sliding_window(window)

    return change


@pytest.mark.parametrize("case", list(CASES))
def test_the_spec_is_that_of_the_published_config(case: str, tmp_path: Path) -> None:
    kind, changes = CASES[case]
    path = tmp_path / "model.gguf"
    change = words_and_window(changes.get("sliding_window"))
    model = save_gguf(path, kind, "F32", change, hidden_act="silu", **changes)
    published = model.config.to_dict()
    assert read_spec(gguf_config(path)) == read_spec(published)


def test_the_factors_of_llama_3_are_its_parameters(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain, scaled = RopeSpec(64, 5e5), RopeSpec(64, 5e5, "llama3", 32.0, 1.0, 4.0, 8192)
    factors = (frequencies(plain) / frequencies(scaled)).numpy()
    np.testing.assert_allclose(factors, llama3_factors(64, 5e5, 32.0, 8192), rtol=1e-4)

    def change(writer: Any) -> None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))

    save_gguf(tmp_path / "a.gguf", "llama", "F32", change, rope_parameters=rope)
    assert gguf_config(tmp_path / "a.gguf")["rope_parameters"] == rope

    def other(writer: Any) -> None:
        writer.add_tensor("rope_freqs.weight", (factors * 1.5).astype(np.float32))

    save_gguf(tmp_path / "b.gguf", "llama", "F32", other, rope_parameters=rope)
    with pytest.raises(ModelError, match="factors of no published scaling"):
        gguf_config(tmp_path / "b.gguf")


def test_scalings_with_keys(tmp_path: Path) -> None:
    def linear(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(3.0)

    def yarn(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(128)

    save_gguf(tmp_path / "linear.gguf", "llama", "F32", linear)
    save_gguf(tmp_path / "yarn.gguf", "qwen3", "F32", yarn)
    rope = read_spec(gguf_config(tmp_path / "linear.gguf")).rope
    assert (rope.type, rope.factor) == ("linear", 3.0)
    rope = read_spec(gguf_config(tmp_path / "yarn.gguf")).rope
    assert (rope.type, rope.factor, rope.original_max_position) == ("yarn", 4.0, 128)


REFUSED: dict[str, tuple[Any, str]] = {
    "experts": (lambda w: w.add_expert_count(8), "expert_count is 8: experts are not supported"),
    "parts": (lambda w: w.add_uint16("split.count", 3), "split.count is 3: merge the parts"),
    "longrope": (lambda w: w.add_string("llama.rope.scaling.type", "longrope"), "is 'longrope'"),
    "window pattern": (
        lambda w: (
            w.add_sliding_window(5),
            w.add_array("llama.attention.sliding_window_pattern", [True, False]),
        ),
        "windows of this file",
    ),
    "scale": (lambda w: w.add_float32("llama.attention.scale", 0.5), "attention.scale is 0.5"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_not_computed_is_refused(name: str, tmp_path: Path) -> None:
    change, words = REFUSED[name]
    save_gguf(tmp_path / "a.gguf", "llama", "F32", change)
    with pytest.raises(ModelError, match=words):
        gguf_config(tmp_path / "a.gguf")


CONTRADICTIONS = {
    "embedding_length": 128,
    "attention.head_count": 8,
    "attention.head_count_kv": 4,
    "feed_forward_length": 64,
    "block_count": 3,
    "vocab_size": 98,
    "rope.dimension_count": 32,
    "attention.value_length": 32,
}


@pytest.mark.parametrize("name", list(CONTRADICTIONS))
def test_sizes_are_checked_against_the_tensors(name: str, tmp_path: Path) -> None:
    def change(writer: Any) -> None:
        writer.kv_data[0].pop(f"qwen3.{name}")
        writer.add_uint32(f"qwen3.{name}", CONTRADICTIONS[name])

    save_gguf(tmp_path / "a.gguf", "qwen3", "F32", change)
    with pytest.raises(ModelError, match=rf"qwen3\.{name.replace('.', chr(92) + '.')} (gives|is)"):
        gguf_config(tmp_path / "a.gguf")


@pytest.mark.parametrize("name", ["context_length", "block_count", "attention.layer_norm_rms_epsilon"])
def test_a_missing_key_is_named(name: str, tmp_path: Path) -> None:
    save_gguf(tmp_path / "a.gguf", "qwen3", "F32", lambda writer: writer.kv_data[0].pop(f"qwen3.{name}"))
    with pytest.raises(ModelError, match=f"qwen3.{name} is missing"):
        gguf_config(tmp_path / "a.gguf")


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "falcon")
    from tests.gguf.files import finish

    finish(writer)
    with pytest.raises(
        ModelError, match="architecture 'falcon' is not supported; known: llama, qwen2, qwen3"
    ):
        gguf_config(tmp_path / "a.gguf")


@pytest.mark.parametrize("value", [1e-5, 1e-6, 10_000.0, 0.1, 5e5, 1.5, 0.0])
def test_numbers_get_their_shortest_spelling(value: float) -> None:
    assert shortest(float(np.float32(value))) == value
