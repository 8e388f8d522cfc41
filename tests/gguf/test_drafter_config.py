"""Drafters' metadata: both styles give the published config, and every fault has an error of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gguf.drafters import SIZES, save_drafter_gguf, with_key, without
from tests.nn.tiny import drafter_config
from wager.errors import ModelError
from wager.gguf.config import gguf_config
from wager.gguf.drafter_config import drafter_metadata
from wager.nn.models.dflash import load_drafter
from wager.nn.models.dflash_spec import read_spec
from wager.nn.weights import WeightReader


@pytest.mark.parametrize("architecture", ["dflash", "qwen35-dflash-draft"])
def test_both_styles_give_the_published_drafter(architecture: str, tmp_path: Path) -> None:
    tensors = save_drafter_gguf(tmp_path / "a.gguf", architecture)
    # Such files do not say how many layers the target has.
    own = read_spec({**drafter_config(**SIZES), "num_target_layers": None})
    assert load_drafter(tmp_path / "a.gguf").spec == own
    reader = WeightReader(tmp_path / "a.gguf", torch.float32)
    assert all(torch.equal(reader.get(name, tensor.shape), tensor) for name, tensor in tensors.items())
    assert reader.leftovers() == [] and len(tensors) == 3 + 2 * 11


def test_windows_come_from_the_pattern(tmp_path: Path) -> None:
    def change(writer: Any, named: Any) -> None:
        writer.add_sliding_window(5)
        writer.add_array("dflash.attention.sliding_window_pattern", [True, False])

    save_drafter_gguf(tmp_path / "a.gguf", change=change)
    assert read_spec(gguf_config(tmp_path / "a.gguf")).windows == (5, None)


def drop(name: str) -> Callable[[Any, dict[str, torch.Tensor]], None]:
    return lambda writer, named: named.pop(name)


def reshape(name: str, *shape: int) -> Callable[[Any, dict[str, torch.Tensor]], None]:
    return lambda writer, named: named.update({name: torch.zeros(shape)})


def window_without_pattern(writer: Any, named: Any) -> None:
    writer.add_sliding_window(5)


def short_pattern(writer: Any, named: Any) -> None:
    writer.add_sliding_window(5)
    writer.add_array("dflash.attention.sliding_window_pattern", [True, False, True])


BROKEN: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "no mask token": (without("tokenizer.ggml.mask_token_id"), "tokenizer.ggml.mask_token_id is missing"),
    "no layer list": (without("dflash.target_layers"), "dflash.target_layers is missing"),
    "no rope base": (without("dflash.rope.freq_base"), "dflash.rope.freq_base is missing"),
    "no block size": (without("dflash.block_size"), "dflash.block_size is missing"),
    "no head size": (without("dflash.attention.key_length"), "dflash.attention.key_length is missing"),
    "no epsilon": (without("dflash.attention.layer_norm_rms_epsilon"), "rms_epsilon is missing"),
    "layer 0": (
        with_key("dflash.target_layers", [0, 2]),
        r"target_layers is \[0, 2\]: expected different layers",
    ),
    "a layer twice": (with_key("dflash.target_layers", [2, 2]), r"target_layers is \[2, 2\]"),
    "three layers": (
        with_key("dflash.target_layers", [1, 2, 3]),
        r"target_layers gives fc.weight the shape \[64, 192\]",
    ),
    "other heads": (with_key("dflash.attention.head_count", 8), "head_count gives blk.0.attn_q.weight"),
    "other key heads": (
        with_key("dflash.attention.head_count_kv", 4),
        "head_count_kv gives blk.0.attn_k.weight",
    ),
    "other width": (
        with_key("dflash.feed_forward_length", 64),
        "feed_forward_length gives blk.0.ffn_gate.weight",
    ),
    "other depth": (
        with_key("dflash.block_count", 3),
        "block_count is 3, but the file has tensors of 2 layers",
    ),
    "other values": (
        with_key("dflash.attention.value_length", 8),
        "value_length is not the length of keys, 16",
    ),
    "a partial rotation": (with_key("dflash.rope.dimension_count", 8), "a partial rotation is not supported"),
    "no pattern": (window_without_pattern, "sliding_window_pattern is missing"),
    "a long pattern": (short_pattern, "expected a flag for each of 2 layers"),
    "the anchor guesses": (with_key("dflash.sample_from_anchor", True), "sample_from_anchor is true"),
    "no fc": (drop("fc.weight"), "tensor fc.weight: is missing"),
    "DSpark": (reshape("markov_w1.weight", 4, 4), "tensor markov_w1.weight: belongs to DSpark drafters"),
    "own words": (reshape("d2t", 4), "tensor d2t: belongs to drafters with a vocabulary of their own"),
    "a wrong own value": (with_key("wager.block_lengths", 4), "wager.block_lengths is 4: expected list"),
}


def message(name: str, folder: Path) -> str:
    change, words = BROKEN[name]
    save_drafter_gguf(folder / "a.gguf", change=change)
    with pytest.raises(ModelError, match=words) as found:
        gguf_config(folder / "a.gguf")
    return str(found.value)


def test_every_broken_file_has_an_error_of_its_own(tmp_path: Path) -> None:
    found = {}
    for name in BROKEN:
        folder = tmp_path / name
        folder.mkdir()
        found[name] = message(name, folder)
    assert len(set(found.values())) == len(BROKEN) >= 10


def test_lucebox_files_must_count_their_layers(tmp_path: Path) -> None:
    key = "qwen35-dflash-draft.dflash.n_target_layers"
    save_drafter_gguf(tmp_path / "a.gguf", "qwen35-dflash-draft", with_key(key, 5))
    with pytest.raises(ModelError, match=r"n_target_layers is 5, but .*target_layer_ids lists 2"):
        gguf_config(tmp_path / "a.gguf")


def own(**changes: Any) -> dict[str, Any]:
    return drafter_config(**SIZES)["dflash_config"] | changes


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "no own part": ({"dflash_config": None}, "dflash_config is missing"),
    "no theta": ({"rope_theta": None}, "rope_theta is missing"),
    "two thetas": ({"rope_parameters": {"rope_theta": 5e5}}, "two values of rope_theta"),
    "yarn": ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type 'yarn'"),
    "no mask": ({"dflash_config": own(mask_token_id=None)}, r"dflash_config\.mask_token_id is missing"),
    "no layers": (
        {"dflash_config": own(target_layer_ids=None)},
        r"dflash_config\.target_layer_ids is missing",
    ),
    "odd layers": ({"dflash_config": own(target_layer_ids=[-1])}, "expected a list of layers"),
    "no block": ({"block_size": None}, "block_size is missing"),
    "two blocks": ({"dflash_config": own(block_size=4)}, "two values of block_size"),
    "no head size": ({"head_dim": None}, "head_dim is missing"),
    "no length": ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
    "no epsilon": ({"rms_norm_eps": None}, "rms_norm_eps is missing"),
    "no vocabulary": ({"vocab_size": None}, "vocab_size is missing"),
    "a wrong count": ({"num_attention_heads": "4"}, "num_attention_heads = '4'"),
    "no window": ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding_window is missing"),
    "short types": ({"layer_types": ["sliding_attention"], "sliding_window": 4}, "must list 2 layers"),
    "a wrong own value": ({"dflash_config": own(max_known_tokens="7")}, "max_known_tokens = '7'"),
}


def test_every_broken_config_has_an_error_of_its_own() -> None:
    found = set()
    for changes, words in CONFIGS.values():
        with pytest.raises(ModelError, match=words) as error:
            drafter_metadata(drafter_config(**SIZES, **changes))
        found.add(str(error.value))
    assert len(found) == len(CONFIGS) >= 10
