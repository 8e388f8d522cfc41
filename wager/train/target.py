"""Trains a small target from scratch: next-token loss over packed rows of a corpus.

The network is Qwen3 of transformers, so the result is an ordinary model folder. The demo target is trained
with this; for an existing target read drafter.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wager.nn.saving import share, writing_errors


@dataclass(frozen=True)
class TargetShape:
    """A deep, narrow Qwen3; on a CPU speculation helps such a target most."""

    vocab_size: int = 8192
    hidden_size: int = 256
    num_layers: int = 20
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 768
    max_position: int = 2048

    def hf_config(self, eos_ids: list[int], pad_id: int) -> Any:
        from transformers import Qwen3Config

        return Qwen3Config(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.max_position,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=eos_ids,
            pad_token_id=pad_id,
        )


def build_model(shape: TargetShape, eos_ids: list[int], pad_id: int, seed: int) -> Any:
    """Returns a new model with depth-scaled output projections."""
    from transformers import Qwen3ForCausalLM

    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(shape.hf_config(eos_ids, pad_id))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_((2 * shape.num_layers) ** -0.5)
    return model


def next_token_loss(model: Any, tokens: Tensor) -> Tensor:
    """Returns the mean cross-entropy of every next token of rows [B, T]."""
    logits = model(tokens[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def save_target(model: Any, folder: Path, dtype: torch.dtype = torch.bfloat16, shard: str = "15MB") -> None:
    """Writes an ordinary model folder, with weights in `dtype`, in shards."""
    folder.mkdir(parents=True, exist_ok=True)
    tied = getattr(model, "_tied_weights_keys", None) if model.config.tie_word_embeddings else None
    state = {name: w.to(dtype) for name, w in model.state_dict().items() if name not in (tied or ())}
    with writing_errors(folder):
        model.save_pretrained(folder, state_dict=state, max_shard_size=shard)
        share(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
