"""Random small models for tests: targets of every type, saved by transformers, and drafters to match.

Shared by the tests of `nn` and of the rooms above it. Nothing here has learned anything.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
}


def build_target(model_type: str, seed: int = 0, **changes: Any) -> Any:
    """A random transformers model of a type, in float32 and eval mode, with SHAPE's sizes unless changed."""
    from transformers import AutoConfig, AutoModelForCausalLM

    values = dict(SHAPE) | ({"head_dim": 16} if model_type == "qwen3" else {}) | changes
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **values)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                weight.add_(torch.randn_like(weight) * 0.2)
    return model


def save_target(folder: Path, model_type: str, seed: int = 0, **changes: Any) -> Any:
    """Build a target, save it under `folder`, and return the transformers model as the reference."""
    model = build_target(model_type, seed, **changes)
    model.save_pretrained(folder)
    return model


def drafter_config(**changes: Any) -> dict[str, Any]:
    """The config of a small block drafter for a target of SHAPE's sizes."""
    values = {
        "model_type": "qwen3",
        "architectures": ["DFlashDraftModel"],
        "hidden_size": SHAPE["hidden_size"],
        "intermediate_size": 72,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "max_position_embeddings": 512,
        "vocab_size": SHAPE["vocab_size"],
        "attention_bias": False,
        "block_size": 8,
        "num_target_layers": SHAPE["num_hidden_layers"],
        "dflash_config": {"mask_token_id": 96, "target_layer_ids": [0, 2]},
    }
    return values | changes


def drafter_shapes(config: dict[str, Any], num_features: int) -> dict[str, tuple[int, ...]]:
    """The published tensors of a drafter, by name."""
    hidden, middle, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q_size, kv_size = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, num_features * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    layer = {
        "self_attn.q_proj": (q_size, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.o_proj": (hidden, q_size),
        "self_attn.q_norm": (size,),
        "self_attn.k_norm": (size,),
        "mlp.gate_proj": (middle, hidden),
        "mlp.up_proj": (middle, hidden),
        "mlp.down_proj": (hidden, middle),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def save_drafter(
    folder: Path, seed: int = 1, num_features: int = 2, **changes: Any
) -> dict[str, torch.Tensor]:
    """Save a random block drafter in the published format; returns its tensors."""
    config = drafter_config(**changes)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in drafter_shapes(config, num_features).items():
        noise = torch.randn(shape, generator=generator) * 0.2
        tensors[name] = noise + 1.0 if len(shape) == 1 else noise
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return tensors
