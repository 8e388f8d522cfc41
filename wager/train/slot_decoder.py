"""The target for writing texts in bulk: one pass reads one token in every slot.

Keys and values have fixed room per slot, so a pass has one shape and can be captured as a CUDA graph. The
weights, the rotation and the layers are those of the engine, so all supported model types work, and others
are refused by name. It knows no texts and no sampling; stream_writer.py does.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from wager.nn import kernels
from wager.nn.kernels.support import refusal
from wager.nn.layers.decoder_layer import DecoderLayer
from wager.nn.layers.linear import Layout
from wager.nn.layers.norm import RmsNorm
from wager.nn.layers.slot_attention import attend_slots
from wager.nn.models import read_spec
from wager.nn.models.decoder import DecoderSpec, DecoderWeights
from wager.nn.models.tensors import read_decoder
from wager.nn.rope import Rotary
from wager.nn.weights import WeightReader, read_config

_FREE_SHARE = 0.85
"""Share of a device's free memory that slots may take."""


class SlotDecoder:
    """A decoder whose slots advance by one token per pass."""

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights, num_slots: int, length: int) -> None:
        """`length` is the room of a slot in tokens."""
        self.spec, self.num_slots, self.length = spec, num_slots, length
        self.device, self.dtype = weights.norm.device, weights.norm.dtype
        self._embedding, self._head = weights.embedding, weights.head
        self._layers = [DecoderLayer(layer, spec.heads, spec.eps, Layout()) for layer in weights.layers]
        self._norm = RmsNorm(weights.norm, spec.eps)
        self._rotary = Rotary(spec.rope, self.dtype, self.device)
        room = (spec.num_layers, num_slots, spec.num_kv_heads, length, spec.head_dim)
        self._keys = torch.zeros(room, dtype=self.dtype, device=self.device)
        self._values = torch.zeros_like(self._keys)
        self._slots = torch.arange(num_slots, device=self.device)[:, None]
        self._heads = torch.arange(spec.num_kv_heads, device=self.device)[None]
        self.has_kernels = can_capture(spec, self.dtype, self.device)
        """Whether passes run by kernels, so that they can be captured."""
        self._attend = attend_slots
        if self.has_kernels:
            from wager.nn.kernels.slot_attention import attend_slots as attend_slots_by_kernel

            self._attend = attend_slots_by_kernel

    @torch.inference_mode()
    def step(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Reads the token of every slot at its position, both [slots], and returns the scores [slots, vocab]
        of the next tokens.
        """
        spec = self.spec
        num_rotated = spec.num_heads + spec.num_kv_heads
        rotation = self._rotary.at(positions)
        cells = (self._slots, self._heads, positions[:, None])
        x = F.embedding(token_ids, self._embedding)
        for index, layer in enumerate(self._layers):
            fused = layer.project(x, rotation)
            keys, values = self._keys[index], self._values[index]
            keys.index_put_(cells, fused[:, spec.num_heads : num_rotated])
            values.index_put_(cells, fused[:, num_rotated:])
            queries = fused[:, : spec.num_heads]
            x = layer.finish(x, self._attend(queries, keys, values, positions, spec.windows[index]))
        return F.linear(self._norm(x), self._head)


def can_capture(spec: DecoderSpec, dtype: torch.dtype, device: torch.device | str) -> bool:
    """Whether the kernels can run this decoder's slots on this device."""
    return kernels.has_kernels(device) and not refusal(spec, dtype, spec.vocab_size)


def load_slot_decoder(
    folder: Path, dtype: torch.dtype, device: torch.device, num_slots: int, length: int
) -> SlotDecoder:
    """Loads a target's folder with at most `num_slots` slots, fewer if the device's memory is too small.

    Raises ModelError if the model type is not supported, and WeightsError that names a faulty tensor.
    """
    spec = read_spec(read_config(folder))
    weights = read_decoder(WeightReader(folder, dtype, device), spec)
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        fitting = int(_FREE_SHARE * free_bytes) // slot_bytes(spec, dtype, length)
        num_slots = max(1, min(num_slots, fitting))
    return SlotDecoder(spec, weights, num_slots, length)


def slot_bytes(spec: DecoderSpec, dtype: torch.dtype, length: int) -> int:
    """Returns the memory that one slot takes: its keys and values, and its part of a pass."""
    cached = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * length
    heads = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    in_a_pass = 2 * (spec.vocab_size + 2 * spec.intermediate_size + heads + 4 * spec.hidden_size)
    return (cached + in_a_pass) * dtype.itemsize + 8 * length
