"""Quantised blocks: values equal to those of the gguf package, bit for bit, for every type."""

import gguf
import numpy as np
import pytest
import torch

from tests.gguf.files import TYPES, random_blocks, values_of
from wager.nn.gguf_blocks import decode_blocks, encode_q8_0, join_grouped

QUANTISED = [name for name in TYPES if name not in ("F32", "F16", "BF16")]


def decoded(name: str, rows: int = 48, columns: int = 512, seed: int = 0):
    stored = random_blocks(name, rows, columns, seed)
    _, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    return decode_blocks(torch.from_numpy(stored.reshape(-1, block_bytes)), name, (rows, columns)), stored


@pytest.mark.parametrize("name", QUANTISED)
def test_values_are_those_of_the_package(name: str) -> None:
    narrow, stored = decoded(name)
    wanted = values_of(stored, name)
    assert np.array_equal(narrow.weight.numpy().view(np.int32), wanted.view(np.int32))
    assert np.unique(wanted).size > 1000 and narrow.shape == (48, 512)
    low = -(1 << (narrow.bits - 1)) if narrow.offsets is None else 0
    assert low <= int(narrow.codes.min()) and int(narrow.codes.max()) < low + (1 << narrow.bits)


@pytest.mark.parametrize(
    "names", [("Q4_K", "Q4_K", "Q6_K"), ("Q4_0", "Q4_1"), ("Q8_0", "Q5_0"), ("Q4_0", "Q4_0")]
)
def test_joined_weights_have_the_same_values(names: tuple[str, ...]) -> None:
    parts = [decoded(name, seed=seed)[0] for seed, name in enumerate(names)]
    joined = join_grouped(parts)
    assert torch.equal(joined.weight, torch.cat([part.weight for part in parts]))


def test_q8_0_is_encoded_as_by_the_package() -> None:
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    weight[3, :32] = 0
    weight[5, :32] = torch.arange(32) - 16.5  # halves
    wanted = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(encode_q8_0(weight).numpy().reshape(64, -1), wanted)
