"""The DFlash network as a trainable module, whose state_dict has the published names.

It is plain and differentiable: batched context and block, masks as arguments, no cache and no fused weights.
`wager/train` trains it and writes its state_dict, which `dflash.py` loads. It knows no optimiser and no data.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wager.nn.models.dflash_spec import DFlashSpec
from wager.nn.rope import Rotary, Rotation


class Norm(nn.Module):
    """RMS norm whose weight has the published name."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class BlockAttention(nn.Module):
    """Attention with queries from the block, and keys and values from context and block by the same
    projections.
    """

    def __init__(self, spec: DFlashSpec) -> None:
        super().__init__()
        hidden, size, bias = spec.hidden_size, spec.head_dim, spec.attention_bias
        self.head_dim = size
        self.q_proj = nn.Linear(hidden, spec.num_heads * size, bias=bias)
        self.k_proj = nn.Linear(hidden, spec.num_kv_heads * size, bias=bias)
        self.v_proj = nn.Linear(hidden, spec.num_kv_heads * size, bias=bias)
        self.o_proj = nn.Linear(spec.num_heads * size, hidden, bias=bias)
        self.q_norm = Norm(size, spec.eps)
        self.k_norm = Norm(size, spec.eps)

    def forward(self, block: Tensor, context: Tensor, rotation: Rotation, mask: Tensor | None) -> Tensor:
        """Takes block [B, Q, H] (normed), context [B, C, H], the rotation of both, and mask [B, 1,
        Q, C + Q].
        """
        both = torch.cat((context, block), dim=1)
        start = context.shape[1]
        queries = self.q_norm(self._split(self.q_proj(block)))
        keys = self.k_norm(self._split(self.k_proj(both)))
        queries = _rotate_batch(queries, Rotation(rotation.cos[:, :, start:], rotation.sin[:, :, start:]))
        keys = _rotate_batch(keys, rotation)
        values = self._split(self.v_proj(both))
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """Reshapes [B, T, heads * head_dim] to [B, heads, T, head_dim]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class GatedMlp(nn.Module):
    """Computes down(silu(gate) * up)."""

    def __init__(self, spec: DFlashSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.down_proj = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DFlashLayer(nn.Module):
    """One drafter layer."""

    def __init__(self, spec: DFlashSpec) -> None:
        super().__init__()
        self.self_attn = BlockAttention(spec)
        self.mlp = GatedMlp(spec)
        self.input_layernorm = Norm(spec.hidden_size, spec.eps)
        self.post_attention_layernorm = Norm(spec.hidden_size, spec.eps)

    def forward(self, x: Tensor, context: Tensor, rotation: Rotation, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, rotation, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class DFlashNet(nn.Module):
    """The drafter for training: takes embeddings and raw target features, returns normed hidden states."""

    def __init__(self, spec: DFlashSpec) -> None:
        super().__init__()
        self.spec = spec
        self.fc = nn.Linear(spec.feature_size, spec.hidden_size, bias=False)
        self.hidden_norm = Norm(spec.hidden_size, spec.eps)
        self.layers = nn.ModuleList(DFlashLayer(spec) for _ in range(spec.num_layers))
        self.norm = Norm(spec.hidden_size, spec.eps)

    def forward(
        self,
        embeddings: Tensor,
        features: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        sliding_mask: Tensor | None = None,
    ) -> Tensor:
        """Returns [B, Q, hidden] from embeddings [B, Q, hidden] and features [B, C, feature_size].

        `positions` [B, C + Q] are those of the context, then of the block tokens. Masks are bool,
        broadcastable to [B, 1, Q, C + Q], and True where a query sees a key; None sees everything.
        `sliding_mask` is for layers with a window and defaults to `mask`. Many anchors train at once if their
        blocks are concatenated and masked.
        """
        context = self.hidden_norm(self.fc(features))
        rotation = _rotation_batch(self.spec, positions, embeddings.dtype)
        x = embeddings
        for layer, window in zip(self.layers, self.spec.windows, strict=True):
            windowed = window is not None and sliding_mask is not None
            x = layer(x, context, rotation, sliding_mask if windowed else mask)
        return self.norm(x)


def _rotation_batch(spec: DFlashSpec, positions: Tensor, dtype: torch.dtype) -> Rotation:
    """Returns cosines and sines [B, 1, T, head_dim]."""
    flat = Rotary(spec.rope, dtype, positions.device).compute(positions.flatten())
    shape = (*positions.shape, spec.head_dim)
    return Rotation(flat.cos.view(shape).unsqueeze(1), flat.sin.view(shape).unsqueeze(1))


def _rotate_batch(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotates [B, heads, T, head_dim]."""
    return x * rotation.cos + x.roll(x.shape[-1] // 2, -1) * rotation.sin
