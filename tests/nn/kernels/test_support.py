"""The kernels refuse by name what they do not support, and a network runs by plain torch then."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.nn.native.nets import CASES, decoder_parts
from tests.nn.tiny import drafter_config, save_drafter, save_target
from wager.errors import ModelError
from wager.nn import kernels
from wager.nn.kernels import support
from wager.nn.models import load_target
from wager.nn.models.decoder import Decoder
from wager.nn.models.dflash import load_drafter
from wager.nn.models.dflash_spec import DFlashSpec, read_spec
from wager.nn.native.loader import PassOptions
from wager.nn.rope import RopeSpec

BF16 = torch.bfloat16


@pytest.fixture
def on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any device counts as one with kernels."""
    monkeypatch.setattr(kernels, "has_kernels", lambda device: True)


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("dtype", support.DTYPES, ids=str)
def test_windows_biases_norms_and_ropes_are_supported(case: str, dtype: torch.dtype) -> None:
    spec, _ = decoder_parts(CASES[case])
    assert support.refusal(spec, dtype, spec.vocab_size) == ""


@pytest.mark.parametrize(
    ("changed", "dtype", "said"),
    [
        ({}, torch.float64, "float64"),
        ({"head_dim": 512, "rope": RopeSpec(512)}, BF16, "head sizes up to 256, not 512"),
        ({"num_heads": 130, "num_kv_heads": 2}, BF16, "64 query heads per key head, not 65"),
        ({"hidden_size": 40_000}, BF16, "hidden sizes up to 32768, not 40000"),
        ({"vocab_size": 2_000_000}, BF16, "1048576 tokens in a vocabulary, not 2000000"),
    ],
)
def test_each_limit_is_refused_by_name(changed: dict[str, Any], dtype: torch.dtype, said: str) -> None:
    spec = replace(decoder_parts(CASES["odd"])[0], **changed)
    assert said in support.refusal(spec, dtype, spec.vocab_size)


@pytest.mark.parametrize(
    ("ranks", "vocab_size", "said"),
    [
        (64, 1 << 20, ""),
        (65, 100, "64 candidates per token, not 65"),
        (8, 2_000_000, "1048576 tokens in a vocabulary, not 2000000"),
    ],
)
def test_limits_of_ranking_are_refused_by_name(ranks: int, vocab_size: int, said: str) -> None:
    found = support.ranking_refusal(ranks, vocab_size)
    assert (said in found) if said else not found


def test_pools_beyond_32_bit_offsets_are_refused_by_name() -> None:
    assert support.pool_refusal((1 << 24) - 1, 128) == ""
    assert "up to 16777215 tokens, not 16777216" in support.pool_refusal(1 << 24, 128)


def drafter_spec(**changed: Any) -> DFlashSpec:
    return replace(read_spec(drafter_config()), **changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"windows": (None, 8)}, ""),
        ({"block_causal_in_sliding": True}, ""),
        ({"windows": (None, 16), "block_causal_in_sliding": True}, "causal in sliding layers"),
        ({"windows": (None, 7)}, "a sliding window of 7 in blocks of 8"),
        ({"head_dim": 300, "rope": RopeSpec(300)}, "head sizes up to 256, not 300"),
    ],
)
def test_blocks_that_a_window_cuts_are_refused(changed: dict[str, Any], said: str) -> None:
    found = support.block_refusal(drafter_spec(**changed), BF16)
    assert (said in found) if said else not found


def test_a_refused_decoder_keeps_no_weights_for_kernels_and_says_why(
    on_kernels: None, caplog: pytest.LogCaptureFixture
) -> None:
    spec, weights = decoder_parts(CASES["odd"])
    assert Decoder(spec, weights, "out_in").weights is weights
    with caplog.at_level("WARNING"):
        refused = Decoder(replace(spec, vocab_size=2_000_000), weights, "out_in")
    assert refused.weights is None and "vocabulary" in refused.kernel_refusal
    assert refused.layers, "it runs by plain torch"
    assert "plain torch: kernels support up to 1048576 tokens" in caplog.text


def test_a_refused_drafter_keeps_no_weights_for_kernels_and_says_why(
    on_kernels: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_drafter(tmp_path / "supported")
    assert load_drafter(tmp_path / "supported", layout="out_in").weights is not None
    cut = {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]}
    save_drafter(tmp_path / "cut", **cut)
    with caplog.at_level("WARNING"):
        refused = load_drafter(
            tmp_path / "cut", layout="out_in", options=PassOptions(weights="int8", kernels=True)
        )
    assert refused.weights is None and refused.has_plain_passes
    assert "plain torch: kernels do not support a sliding window of 5" in caplog.text


def test_quantised_weights_that_only_kernels_multiply_are_refused(
    on_kernels: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_target(tmp_path, "qwen3")
    monkeypatch.setattr(support, "MAX_HEAD_DIM", 2)
    with pytest.raises(ModelError, match=r"weights in 4 bits need kernels: .* head sizes up to 2"):
        load_target(tmp_path, device="cpu", options=PassOptions(weights="int4", kernels=True))
