"""The quality of a drafter: what it would offer at every position of its target's own output.

One pass of the teacher over finished rows gives features. The drafter then drafts at every position, in
chunks, and the candidates of each depth are compared with the actual tokens. The result is a trace: tokens
per step of a full block, acceptance by depth, and the file that `wager simulate` replays. Sampled rows use
the target's own noise, as the drafter does at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.nn.models.dflash_net import DFlashNet
from wager.nn.noise import NoiseSource
from wager.train.drafter import Teacher


@dataclass(frozen=True)
class Offered:
    """Candidates at every position: log-probabilities [rows, positions, depths, ranks], and the ranks of the
    actual tokens.
    """

    logprobs: npt.NDArray[np.float16]
    ranks: npt.NDArray[np.int8]


@dataclass(frozen=True)
class Rows:
    """Finished rows [B, T], padded at the end; each has its own prompt length and number of output tokens."""

    tokens: Tensor
    num_prompt: Tensor
    num_output: int
    temperature: float = 0.0
    seeds: Sequence[int] = ()


@torch.no_grad()
def offered(net: DFlashNet, teacher: Teacher, rows: Rows, num_ranks: int = 8) -> Offered:
    """Returns what the drafter offers at each output position; its root is the token before that position.

    The rank is -1 at depths whose token is beyond the row.
    """
    tokens, block = rows.tokens, net.spec.block_size
    num_rows = tokens.shape[0]
    features, states = teacher.observe(tokens)
    vocab_size = teacher.head(states[:1, 0]).shape[-1]
    noise = _noise(rows, block, vocab_size) if rows.temperature > 0 else None
    logprobs = np.zeros((num_rows, rows.num_output, block - 1, num_ranks), np.float16)
    ranks = np.full((num_rows, rows.num_output, block - 1), -1, np.int8)
    ends = rows.num_prompt + rows.num_output
    depths = torch.arange(1, block, device=tokens.device)
    for place in range(rows.num_output):
        roots = rows.num_prompt - 1 + place
        scores = _draft(net, teacher, tokens, features, roots).float()  # [B, block - 1, V]
        if noise is not None:
            scores = scores / rows.temperature + noise[:, place : place + block - 1].to(scores)
        top = scores.log_softmax(dim=-1).topk(num_ranks, dim=-1)
        at = roots[:, None] + depths
        truth = tokens.gather(1, at.clamp(max=tokens.shape[1] - 1))
        hit = (top.indices == truth[:, :, None]) & (at < ends[:, None])[:, :, None]
        found = torch.where(hit.any(dim=-1), hit.int().argmax(dim=-1), -1)
        logprobs[:, place] = top.values.cpu().numpy()
        ranks[:, place] = found.cpu().numpy()
    return Offered(logprobs, ranks)


def _noise(rows: Rows, block: int, vocab_size: int) -> Tensor:
    """Returns the target's noise at every position from the first output on: [B, num_output + block
    - 1, V].
    """
    starts = rows.num_prompt.tolist()
    span = rows.num_output + block - 1
    keys = [(seed, start + i) for seed, start in zip(rows.seeds, starts, strict=True) for i in range(span)]
    source = NoiseSource(vocab_size, rows.tokens.device)
    return source.rows(keys).view(len(starts), span, vocab_size)


def _draft(net: DFlashNet, teacher: Teacher, tokens: Tensor, features: Tensor, roots: Tensor) -> Tensor:
    """Returns scores [B, block - 1, V] of the full block after each row's root."""
    num_rows, block = tokens.shape[0], net.spec.block_size
    longest = int(roots.max())
    ids = torch.full((num_rows, block), net.spec.mask_token_id, device=tokens.device)
    ids[:, 0] = tokens.gather(1, roots[:, None])[:, 0]
    context = torch.arange(longest, device=tokens.device)
    behind = roots[:, None] + torch.arange(block, device=tokens.device)
    positions = torch.cat((context.expand(num_rows, -1), behind), dim=1)
    seen = torch.cat((context < roots[:, None], torch.ones_like(ids, dtype=torch.bool)), dim=1)
    hidden = net(teacher.embed(ids), features[:, :longest], positions, seen[:, None, None, :])
    return teacher.head(hidden[:, 1:])


def tokens_per_step(ranks: npt.NDArray[np.int8], counted: npt.NDArray[np.bool_] | None = None) -> float:
    """Returns mean tokens per step if the whole block is verified as a chain; ranks are [rows, positions,
    depths].

    With `counted` [rows, positions], only steps that begin at such a position count.
    """
    steps = total = 0
    runs = np.cumprod(ranks == 0, axis=-1).sum(axis=-1)
    for row, run in enumerate(runs):
        place = 0
        while place < len(run):
            taken = min(int(run[place]) + 1, len(run) - place)
            if counted is None or counted[row, place]:
                steps += 1
                total += taken
            place += taken
    return total / max(steps, 1)


def acceptance_by_depth(ranks: npt.NDArray[np.int8]) -> list[float]:
    """Returns P(depth d accepted | all before accepted) over all positions, for a chain of rank 0."""
    stands = ranks == 0
    alive = np.ones(stands.shape[:-1], bool)
    rates = []
    for depth in range(stands.shape[-1]):
        reached = int(alive.sum())
        rates.append(float((alive & stands[..., depth]).sum() / reached) if reached else 0.0)
        alive &= stands[..., depth]
    return rates
