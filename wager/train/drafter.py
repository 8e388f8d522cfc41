"""The training loss of a block drafter: many blocks per row, each with the context strictly before it.

The input is a row of tokens, the target's features and distributions, and random anchors. The block of an
anchor is [known tokens, MASK ...]; it sees the features before the anchor and itself, and predicts the tokens
after the known ones. Block lengths and the number of known tokens vary, so that both are options at run time.
Near depths have a higher weight. The labels are the tokens and the target's own distributions. A row is a
part of a stream of text, or it has texts of any length, whose ends the blocks respect.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from wager.errors import ConfigError, InputError
from wager.nn.models.dflash_net import DFlashNet
from wager.nn.models.dflash_spec import read_spec
from wager.nn.saving import save_tensors


@dataclass(frozen=True)
class DrafterShape:
    """The drafter's own sizes; hidden size and vocabulary are the target's."""

    num_layers: int = 2
    intermediate_size: int = 768
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    layer_ids: tuple[int, ...] = ()
    """The target's layers that give features; empty: five layers spread by the published rule."""


@dataclass(frozen=True)
class BlockSampling:
    """How blocks are sampled and weighted."""

    anchors: int = 48
    """Number of blocks per row."""
    shortest: int = 4
    full_share: float = 0.6
    """Share of blocks with full length; the lengths of the others are uniform."""
    most_known: int = 7
    one_known_share: float = 0.7
    """Share of blocks with one known token, which is the usual case."""
    fade: float = 7.0
    """Depth k has the weight exp(-(k - 1) / fade)."""
    soft: float = 0.5
    """Share of the loss against the target's distribution; the rest is against its tokens."""


class Teacher(Protocol):
    """The target, as training uses it."""

    def observe(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Returns features [B, T, F] and final hidden states [B, T, H] of rows, without gradient."""
        ...

    def embed(self, tokens: Tensor) -> Tensor: ...

    def head(self, hidden: Tensor) -> Tensor:
        """Returns the logits [..., V] of hidden states [..., H]."""
        ...


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
        hidden = self.model.model(tokens, use_cache=False).last_hidden_state
        return torch.cat([self._taken[index] for index in self.layer_ids], dim=-1), hidden

    def embed(self, tokens: Tensor) -> Tensor:
        return self.model.get_input_embeddings()(tokens)

    def head(self, hidden: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(hidden)


class GraphedTeacher:
    """A teacher whose `observe` is captured once as a CUDA graph and replayed.

    A small target's pass is mostly kernel launches. All rows must have one shape, and the next call
    overwrites the results.
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
    """The blocks of a batch, all of full width; positions beyond a block's own length are masked."""

    starts: Tensor
    """Position of the first known token, [B, A]."""
    lengths: Tensor
    known: Tensor
    stops: Tensor
    """Position at which the block's text ends; nothing is predicted from there on."""


class WeightedLoss(NamedTuple):
    """The weighted sum of the losses of all predicted tokens, and the sum of their weights."""

    total: Tensor
    weight: Tensor


def spread_layers(num_target_layers: int, count: int = 5) -> tuple[int, ...]:
    """Returns target layers for features, spread from the second to the third last."""
    if count == 1:
        return (num_target_layers // 2,)
    last = max(num_target_layers - 3, 1)
    return tuple(sorted({round(1 + i * (last - 1) / (count - 1)) for i in range(count)}))


def drafter_config(shape: DrafterShape, target: Any, mask_id: int, sampling: BlockSampling) -> dict[str, Any]:
    """Returns the published config.json of a drafter of this target (a transformers config)."""
    layer_ids = list(shape.layer_ids or spread_layers(target.num_hidden_layers))
    lengths = (
        list(range(sampling.shortest, shape.block_size + 1))
        if sampling.full_share < 1
        else [shape.block_size]
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
            "max_known_tokens": sampling.most_known,
            "block_lengths": lengths,
        },
    }


def build_drafter(config: dict[str, Any], seed: int = 0) -> DFlashNet:
    """Returns a newly initialised drafter of this config."""
    torch.manual_seed(seed)
    net = DFlashNet(read_spec(config))
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.ndim == 2:
                weight.normal_(std=0.02)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_((2 * net.spec.num_layers) ** -0.5)
    return net


def cut_blocks(
    num_rows: int, length: int, block: int, sampling: BlockSampling, generator: torch.Generator
) -> Blocks:
    """Samples the blocks of a batch of rows that are full of text; all blocks lie inside their rows.

    Raises InputError if rows are too short for a block with context before it and a token after it.
    """
    if length < block + 2:
        raise InputError(f"has rows of {length} tokens, too short for blocks of {block}", field="corpus")
    starts = torch.randint(1, length - block, (num_rows, sampling.anchors), generator=generator)
    return _cut_at(starts, torch.full_like(starts, length), block, sampling, generator)


def cut_text_blocks(stops: Tensor, block: int, sampling: BlockSampling, generator: torch.Generator) -> Blocks:
    """Samples the blocks of a batch of texts.

    `stops` [B, T] is, at every position where a block may start, the position at which its text ends, and
    elsewhere 0. A start has at least one token after it. Raises InputError if a row has no start.
    """
    if not bool((stops > 0).any(dim=1).all()):
        raise InputError("has a text without a token to predict", field="own_text")
    starts = torch.multinomial((stops > 0).float(), sampling.anchors, replacement=True, generator=generator)
    return _cut_at(starts, stops.gather(1, starts), block, sampling, generator)


def _cut_at(
    starts: Tensor, stops: Tensor, block: int, sampling: BlockSampling, generator: torch.Generator
) -> Blocks:
    """Samples lengths and numbers of known tokens; every block has a token of its text to predict."""
    if not 2 <= sampling.shortest <= block:
        raise ConfigError("shortest", sampling.shortest, f"lengths from 2 to {block}")
    full = torch.rand(starts.shape, generator=generator) < sampling.full_share
    shorter = torch.randint(sampling.shortest, block + 1, starts.shape, generator=generator)
    lengths = torch.where(full, block, shorter)
    one = torch.rand(starts.shape, generator=generator) < sampling.one_known_share
    several = torch.randint(1, sampling.most_known + 1, starts.shape, generator=generator)
    most = torch.minimum(lengths - 1, stops - starts - 1)
    known = torch.where(one, 1, torch.minimum(several, most))
    return Blocks(starts, lengths, known, stops)


def block_mask(blocks: Blocks, length: int, block: int) -> Tensor:
    """Returns the mask [B, 1, A * block, length + A * block]: the context before the anchor, and the own
    block.
    """
    starts, lengths = blocks.starts, blocks.lengths
    num_rows, anchors = starts.shape
    device = starts.device
    context = torch.arange(length, device=device) < starts[:, :, None]  # [B, A, T]
    context = context[:, :, None, :].expand(-1, -1, block, -1).reshape(num_rows, anchors * block, length)
    inside = (
        torch.arange(block, device=device) < lengths[:, :, None]
    )  # [B, A, block] positions within the block's length
    same = torch.eye(anchors, dtype=torch.bool, device=device)[None, :, None, :, None]
    own = (same & inside[:, None, None, :, :]).expand(-1, -1, block, -1, -1)
    own = own.reshape(num_rows, anchors * block, anchors * block)
    return torch.cat((context, own), dim=-1).unsqueeze(1)


def block_loss(
    net: DFlashNet,
    teacher: Teacher,
    tokens: Tensor,
    sampling: BlockSampling,
    generator: torch.Generator,
    stops: Tensor | None = None,
) -> Tensor:
    """Returns the loss of a batch of rows [B, T].

    Without `stops` the rows are full of text; with them, [B, T] on the CPU, they have texts (see
    `cut_text_blocks`).
    """
    block = net.spec.block_size
    if stops is None:
        blocks = cut_blocks(tokens.shape[0], tokens.shape[1], block, sampling, generator)
    else:
        blocks = cut_text_blocks(stops, block, sampling, generator)
    found = loss_of_blocks(net, teacher, tokens, blocks, sampling)
    return found.total / found.weight


def loss_of_blocks(
    net: DFlashNet, teacher: Teacher, tokens: Tensor, blocks: Blocks, sampling: BlockSampling
) -> WeightedLoss:
    """Returns the loss of these blocks of a batch of rows [B, T]."""
    blocks = Blocks(*(part.to(tokens.device) for part in blocks))
    num_rows, length = tokens.shape
    block = net.spec.block_size
    features, states = teacher.observe(tokens)
    places = torch.arange(block, device=tokens.device)
    at = blocks.starts[:, :, None] + places  # [B, A, block] absolute positions
    truth = tokens.gather(1, at.flatten(1).clamp(max=length - 1)).view_as(at)
    visible = places < blocks.known[:, :, None]
    ids = torch.where(visible, truth, net.spec.mask_token_id)
    positions = torch.cat(
        (torch.arange(length, device=tokens.device).expand(num_rows, -1), at.flatten(1)), dim=1
    )
    mask = block_mask(blocks, length, block)
    hidden = net(teacher.embed(ids.flatten(1)), features, positions, mask)
    # Only positions after the known tokens, within the block and within its text are predicted.
    within = (places < blocks.lengths[:, :, None]) & (at < blocks.stops[:, :, None])
    asked = (~visible & within).flatten(1)
    depth = (places - blocks.known[:, :, None] + 1).flatten(1)[asked]
    weight = torch.exp(-(depth.float() - 1.0) / sampling.fade)
    scores = teacher.head(hidden[asked]).float()
    wanted = truth.flatten(1)[asked]
    loss = F.cross_entropy(scores, wanted, reduction="none") * (1.0 - sampling.soft)
    if sampling.soft > 0:
        row = torch.arange(num_rows, device=tokens.device)[:, None].expand(-1, asked.shape[1])[asked]
        with torch.no_grad():
            logits = teacher.head(states[row, at.flatten(1)[asked] - 1])
            teaching = logits.float().softmax(dim=-1)
        loss = loss + sampling.soft * -(teaching * scores.log_softmax(dim=-1)).sum(dim=-1)
    return WeightedLoss((loss * weight).sum(), weight.sum())


def save_drafter(
    net: DFlashNet, config: dict[str, Any], folder: Path, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Writes the published folder: config.json and one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: weight.detach().to("cpu", dtype).contiguous() for name, weight in net.state_dict().items()
    }
    save_tensors(weights, folder / "model.safetensors")
    stated = config | {"dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(stated, indent=1), encoding="utf-8")
