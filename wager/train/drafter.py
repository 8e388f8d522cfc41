"""What a block drafter learns from: many blocks per row, each seeing the context strictly before it.

A row of tokens, the target's features and distributions over it, and random anchors. The block of an anchor
is [known tokens, MASK ...]; it sees the features before the anchor and itself, and is asked for the tokens
behind the known ones. Block lengths and the number of known tokens vary, so that both are options at run
time. The loss weighs near depths more; its labels are the tokens and the target's own distribution there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from wager.errors import ConfigError, InputError
from wager.nn.models.dflash_net import DFlashNet
from wager.nn.models.dflash_spec import read_spec


@dataclass(frozen=True)
class DrafterShape:
    """A drafter's own sizes; hidden size and vocabulary are the target's."""

    num_layers: int = 2
    intermediate_size: int = 768
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    layer_ids: tuple[int, ...] = ()
    """Target layers to look at; empty: five spread by the published rule."""


@dataclass(frozen=True)
class Lesson:
    """How blocks are cut and weighed."""

    anchors: int = 48
    """Blocks per row."""
    shortest: int = 4
    full_share: float = 0.6
    """Blocks of full length; the others are shorter, evenly."""
    most_known: int = 7
    one_known_share: float = 0.7
    """Blocks with one known token, the usual case."""
    fade: float = 7.0
    """Depth k weighs exp(-(k - 1) / fade)."""
    soft: float = 0.5
    """Part of the loss against the target's distribution; the rest is against its tokens."""


class Teacher(Protocol):
    """The target as training sees it."""

    def observe(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, T, F] and logits [B, T, V] of rows; no gradient."""
        ...

    def embed(self, tokens: Tensor) -> Tensor: ...

    def head(self, hidden: Tensor) -> Tensor: ...


class HFTeacher:
    """A transformers model as the teacher."""

    def __init__(self, model: Any, layer_ids: tuple[int, ...]) -> None:
        self.model = model.eval().requires_grad_(False)
        self.layer_ids = layer_ids
        self._taken: dict[int, Tensor] = {}
        for index in layer_ids:
            model.model.layers[index].register_forward_hook(self._hook(index))

    def _hook(self, index: int) -> Any:
        def take(_module: Any, _inputs: Any, output: Any) -> None:
            self._taken[index] = output[0] if isinstance(output, tuple) else output

        return take

    @torch.no_grad()
    def observe(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(tokens, use_cache=False).logits
        return torch.cat([self._taken[index] for index in self.layer_ids], dim=-1), logits

    def embed(self, tokens: Tensor) -> Tensor:
        return self.model.get_input_embeddings()(tokens)

    def head(self, hidden: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(hidden)


class GraphedTeacher:
    """A teacher whose `observe` is captured once as a CUDA graph and replayed: a small target's pass is
    mostly kernel launches. Rows must keep one shape; results are overwritten by the next call.
    """

    def __init__(self, teacher: HFTeacher) -> None:
        self.teacher = teacher
        self._graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def observe(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if self._graph is None:
            self._capture(tokens)
        assert self._graph is not None
        self._tokens.copy_(tokens)
        self._graph.replay()
        return self._seen

    def _capture(self, tokens: Tensor) -> None:
        self._tokens = tokens.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.teacher.observe(self._tokens)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._seen = self.teacher.observe(self._tokens)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.teacher.embed(tokens)

    def head(self, hidden: Tensor) -> Tensor:
        return self.teacher.head(hidden)


class Blocks(NamedTuple):
    """Blocks of a batch, all of full width; what lies beyond a block's own length is masked out."""

    starts: Tensor
    """[B, A]: position of the first known token."""
    lengths: Tensor
    known: Tensor


def spread_layers(num_target_layers: int, count: int = 5) -> tuple[int, ...]:
    """Target layers for features, spread from the second to the third last."""
    if count == 1:
        return (num_target_layers // 2,)
    last = max(num_target_layers - 3, 1)
    return tuple(sorted({round(1 + i * (last - 1) / (count - 1)) for i in range(count)}))


def drafter_config(shape: DrafterShape, target: Any, mask_id: int, lesson: Lesson) -> dict[str, Any]:
    """The published config.json for a drafter of this target (its transformers config)."""
    layer_ids = list(shape.layer_ids or spread_layers(target.num_hidden_layers))
    lengths = (
        list(range(lesson.shortest, shape.block_size + 1)) if lesson.full_share < 1 else [shape.block_size]
    )
    rope = getattr(target, "rope_parameters", None) or {}
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": target.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": target.rms_norm_eps,
        "rope_theta": rope.get("rope_theta") or getattr(target, "rope_theta", None),
        "max_position_embeddings": target.max_position_embeddings,
        "vocab_size": target.vocab_size,
        "attention_bias": False,
        "layer_types": ["full_attention"] * shape.num_layers,
        "block_size": shape.block_size,
        "num_target_layers": target.num_hidden_layers,
        "dflash_config": {
            "mask_token_id": mask_id,
            "target_layer_ids": layer_ids,
            "max_known_tokens": lesson.most_known,
            "block_lengths": lengths,
        },
    }


def build_drafter(config: dict[str, Any], seed: int = 0) -> DFlashNet:
    """A fresh drafter of this config."""
    torch.manual_seed(seed)
    net = DFlashNet(read_spec(config))
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.ndim == 2:
                weight.normal_(std=0.02)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_((2 * net.spec.num_layers) ** -0.5)
    return net


def cut_blocks(num_rows: int, length: int, block: int, lesson: Lesson, generator: torch.Generator) -> Blocks:
    """Random anchors, lengths and numbers of known tokens for a batch, from the generator alone.

    Raises InputError where rows are too short for a block with context before and a token behind it.
    """
    if length < block + 2:
        raise InputError(f"has rows of {length} tokens, too short for blocks of {block}", field="corpus")
    if not 2 <= lesson.shortest <= block:
        raise ConfigError("shortest", lesson.shortest, f"lengths from 2 to {block}")
    shape = (num_rows, lesson.anchors)
    starts = torch.randint(1, length - block, shape, generator=generator)
    full = torch.rand(shape, generator=generator) < lesson.full_share
    shorter = torch.randint(lesson.shortest, block + 1, shape, generator=generator)
    lengths = torch.where(full, block, shorter)
    one = torch.rand(shape, generator=generator) < lesson.one_known_share
    several = torch.randint(1, lesson.most_known + 1, shape, generator=generator)
    known = torch.where(one, 1, torch.minimum(several, lengths - 1))
    return Blocks(starts, lengths, known)


def block_mask(blocks: Blocks, length: int, block: int) -> Tensor:
    """Who sees what, [B, 1, A * block, length + A * block]: context before the anchor, and the own block."""
    starts, lengths = blocks.starts, blocks.lengths
    num_rows, anchors = starts.shape
    device = starts.device
    context = torch.arange(length, device=device) < starts[:, :, None]  # [B, A, T]
    context = context[:, :, None, :].expand(-1, -1, block, -1).reshape(num_rows, anchors * block, length)
    inside = torch.arange(block, device=device) < lengths[:, :, None]  # [B, A, block] real places
    same = torch.eye(anchors, dtype=torch.bool, device=device)[None, :, None, :, None]
    own = (same & inside[:, None, None, :, :]).expand(-1, -1, block, -1, -1)
    own = own.reshape(num_rows, anchors * block, anchors * block)
    return torch.cat((context, own), dim=-1).unsqueeze(1)


def block_loss(
    net: DFlashNet, teacher: Teacher, tokens: Tensor, lesson: Lesson, generator: torch.Generator
) -> Tensor:
    """The loss of a batch of rows [B, T]."""
    num_rows, length = tokens.shape
    block = net.spec.block_size
    blocks = Blocks(
        *(part.to(tokens.device) for part in cut_blocks(num_rows, length, block, lesson, generator))
    )
    features, logits = teacher.observe(tokens)
    places = torch.arange(block, device=tokens.device)
    at = blocks.starts[:, :, None] + places  # [B, A, block] absolute positions
    truth = tokens.gather(1, at.flatten(1)).view_as(at)
    visible = places < blocks.known[:, :, None]
    ids = torch.where(visible, truth, net.spec.mask_token_id)
    positions = torch.cat(
        (torch.arange(length, device=tokens.device).expand(num_rows, -1), at.flatten(1)), dim=1
    )
    mask = block_mask(blocks, length, block)
    hidden = net(teacher.embed(ids.flatten(1)), features, positions, mask)
    # Only places behind the known tokens and within the block are asked for.
    asked = (~visible & (places < blocks.lengths[:, :, None])).flatten(1)
    depth = (places - blocks.known[:, :, None] + 1).flatten(1)[asked]
    weight = torch.exp(-(depth.float() - 1.0) / lesson.fade)
    scores = teacher.head(hidden[asked]).float()
    wanted = truth.flatten(1)[asked]
    loss = F.cross_entropy(scores, wanted, reduction="none") * (1.0 - lesson.soft)
    if lesson.soft > 0:
        row = torch.arange(num_rows, device=tokens.device)[:, None].expand(-1, asked.shape[1])[asked]
        teaching = logits[row, at.flatten(1)[asked] - 1].float().softmax(dim=-1)
        loss = loss + lesson.soft * -(teaching * scores.log_softmax(dim=-1)).sum(dim=-1)
    return (loss * weight).sum() / weight.sum()


def save_drafter(
    net: DFlashNet, config: dict[str, Any], folder: Path, dtype: torch.dtype = torch.bfloat16
) -> None:
    """The published folder: config.json and one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: weight.detach().to("cpu", dtype).contiguous() for name, weight in net.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    stated = config | {"dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(stated, indent=1), encoding="utf-8")
