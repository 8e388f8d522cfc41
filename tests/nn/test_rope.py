"""Rotary frequencies against transformers, and the configs that are refused."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from wager.errors import ModelError
from wager.nn.rope import RopeSpec, Rotary, frequencies, read_rope, rotate

SCALED: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.5},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
    "yarn-betas": {"factor": 8.0, "original_max_position_embeddings": 128, "beta_fast": 20, "beta_slow": 2},
    "yarn-attention": {"factor": 4.0, "original_max_position_embeddings": 512, "attention_factor": 0.8},
    "yarn-mscale": {
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "mscale": 0.7,
        "mscale_all_dim": 1.1,
    },
    "yarn-exact": {"factor": 4.0, "original_max_position_embeddings": 512, "truncate": False},
}


def config_with(parameters: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=64,
        max_position_embeddings=2048,
        rope_parameters=parameters,
    )


@pytest.mark.parametrize("name", list(SCALED))
def test_scaled_frequencies_equal_the_reference(name: str) -> None:
    kind = name.split("-")[0]
    config = config_with({"rope_type": kind, "rope_theta": 50_000.0} | SCALED[name])
    want, factor = ROPE_INIT_FUNCTIONS[kind](config)
    spec = read_rope(config.to_dict(), 64)
    torch.testing.assert_close(frequencies(spec), want, rtol=1e-6, atol=0)
    assert spec.attention_factor == pytest.approx(factor)


def test_old_and_new_spelling_agree() -> None:
    scaling = {"type": "linear", "factor": 4.0}
    old = read_rope({"rope_theta": 500.0, "rope_scaling": scaling}, 32)
    new = read_rope({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}}, 32)
    both = read_rope(
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rope_scaling": scaling}, 32
    )
    assert old == new == both
    assert old.theta == 500.0 and old.factor == 4.0


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2}}, "longrope"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2}}, "low_freq_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "per layer type"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "original_max_position_embeddings"),
    ],
)
def test_unsupported_ropes_are_refused_by_name(config: dict[str, Any], word: str) -> None:
    with pytest.raises(ModelError, match=word):
        read_rope(config, 64)


def test_rotation_depends_on_distance_alone() -> None:
    rotary = Rotary(RopeSpec(head_dim=16), torch.float64, "cpu")
    query, key = torch.randn(2, 1, 16, dtype=torch.float64).unbind()

    def score(query_position: int, key_position: int) -> float:
        turned = [
            rotate(x.view(1, 1, 16), rotary.at(torch.tensor([p])))
            for x, p in ((query, query_position), (key, key_position))
        ]
        return float((turned[0] * turned[1]).sum())

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-4)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-4)


def test_rotating_in_place_gives_the_same() -> None:
    rotation = Rotary(RopeSpec(head_dim=8), torch.float32, "cpu").at(torch.arange(5))
    x = torch.randn(5, 3, 8)
    want = rotate(x, rotation)
    rotate(x, rotation, out=x)
    assert torch.equal(x, want)


def test_the_table_grows_and_equals_the_computation() -> None:
    rotary = Rotary(RopeSpec(head_dim=8, theta=500.0), torch.float32, "cpu")
    for positions in ([0, 3, 3], [1023], [1024, 5], [9000, 1], []):
        where = torch.tensor(positions, dtype=torch.int64)
        looked_up, computed = rotary.at(where), rotary.compute(where)
        assert looked_up.cos.shape == (len(positions), 1, 8)
        torch.testing.assert_close(looked_up.cos, computed.cos)
        torch.testing.assert_close(looked_up.sin, computed.sin)
