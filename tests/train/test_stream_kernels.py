"""The stream writer's passes by kernels, in Triton's interpreter: the same texts as in plain torch."""

from pathlib import Path

import pytest
import torch

from tests.nn.kernels.interpreter import triton
from tests.nn.tiny import save_target
from tests.train.test_stream_writer import CHANGES, CPU, decoder_of, orders
from wager.nn.kernels.slot_attention import attend_slots
from wager.train.stream_writer import StreamWriter


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a CUDA device the kernels are compiled")
@pytest.mark.parametrize("model_type", ["qwen3", "mistral"])
def test_kernels_write_the_same_texts(tmp_path: Path, model_type: str) -> None:
    assert triton.knobs.runtime.interpret
    save_target(tmp_path, model_type, num_hidden_layers=1, **CHANGES[model_type])
    asked = [order._replace(num_output=min(order.num_output, 6)) for order in orders(5, 0.8)]
    plain = StreamWriter(decoder_of(tmp_path, 3), {5})
    by_kernels = StreamWriter(decoder_of(tmp_path, 3), {5})
    by_kernels.decoder._attend = attend_slots
    by_kernels._choose = by_kernels._by_kernel
    assert by_kernels(asked) == plain(asked)
    assert by_kernels.decoder.device == CPU
