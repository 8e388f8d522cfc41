"""The names of tensors: those of published model folders, and those of GGUF files in each of their styles.

`llama.cpp` names drafters as its targets, with `fc` and `enc.output_norm` for the features; `lucebox` puts
these two under `dflash.`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["DRAFTER_STYLES", "STYLE_OF_DRAFTER", "TARGET_STYLE", "Style", "architecture_style"]

_LAYER_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_PUBLISHED_PARTS = {gguf: published for published, gguf in _LAYER_PARTS.items()}
_PUBLISHED_LAYER = re.compile(r"layers\.(\d+)\.(.+)\.(weight|bias)")
_GGUF_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")


class Style(NamedTuple):
    """The names of one kind of model; `whole` are its tensors outside of layers."""

    prefix: str
    """What published names have before `layers`."""
    whole: dict[str, str]

    def to_gguf(self, name: str) -> str | None:
        """Returns the name in a GGUF file of a published name, or None if there is none."""
        if name in self.whole:
            return self.whole[name]
        found = _PUBLISHED_LAYER.fullmatch(name.removeprefix(self.prefix))
        if found is None or not name.startswith(self.prefix) or found[2] not in _LAYER_PARTS:
            return None
        return f"blk.{found[1]}.{_LAYER_PARTS[found[2]]}.{found[3]}"

    def to_published(self, name: str) -> str | None:
        """Returns the published name of a name in a GGUF file, or None if there is none."""
        found = _GGUF_LAYER.fullmatch(name)
        if found is not None and found[2] in _PUBLISHED_PARTS:
            return f"{self.prefix}layers.{found[1]}.{_PUBLISHED_PARTS[found[2]]}.{found[3]}"
        return next((published for published, own in self.whole.items() if own == name), None)


TARGET_STYLE = Style(
    "model.",
    {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
)
DRAFTER_STYLES = {
    "llama.cpp": Style(
        "",
        {
            "fc.weight": "fc.weight",
            "hidden_norm.weight": "enc.output_norm.weight",
            "norm.weight": "output_norm.weight",
        },
    ),
    "lucebox": Style(
        "",
        {
            "fc.weight": "dflash.fc.weight",
            "hidden_norm.weight": "dflash.hidden_norm.weight",
            "norm.weight": "output_norm.weight",
        },
    ),
}
STYLE_OF_DRAFTER = {"dflash": "llama.cpp", "dflash-draft": "lucebox", "qwen35-dflash-draft": "lucebox"}
"""The style of each architecture of drafters."""


def architecture_style(architecture: str) -> Style:
    """Returns the names that files of an architecture use."""
    if architecture in STYLE_OF_DRAFTER:
        return DRAFTER_STYLES[STYLE_OF_DRAFTER[architecture]]
    return TARGET_STYLE
