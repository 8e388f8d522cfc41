"""From a draft network's scores to candidates: temperature, the shared noise, the best ranks of each depth.

If a row samples, its candidates' log-probabilities are those of the scaled scores with the target's own
noise, so that a guess agrees with the target's draw as often as possible. If it is greedy, they are those of
the plain scores. Used by the drafters that have a network; knows neither networks nor requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.nn.native.top import NativeTop
from wager.nn.noise import NoiseSource


class Span(NamedTuple):
    """Consecutive rows of scores that belong to one request; the first row is for position `position`."""

    temperature: float
    seed: int
    position: int
    num_rows: int


class Top(NamedTuple):
    """Candidates on the device, each tensor [rows, ranks], the best first."""

    logprobs: Tensor
    token_ids: Tensor


class HostTop(NamedTuple):
    """Candidates in host memory, each array [rows, ranks], the best first."""

    logprobs: npt.NDArray[np.float32]
    token_ids: npt.NDArray[np.int64]


def noised(logits: Tensor, spans: Sequence[Span], noise: NoiseSource) -> Tensor:
    """Returns logits / temperature + noise for the spans that sample, and the plain logits for the others.

    The result may be the argument, changed in place.
    """
    scores = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    sampling = [span for span in spans if span.temperature > 0]
    if not sampling:
        return scores
    keys = [(span.seed, span.position + step) for span in sampling for step in range(span.num_rows)]
    gumbel = noise.rows(keys)[:, : scores.shape[1]]
    if len(spans) == 1:
        return scores.div_(spans[0].temperature).add_(gumbel)
    scales = [
        span.temperature if span.temperature > 0 else 1.0 for span in spans for _ in range(span.num_rows)
    ]
    scores.div_(torch.tensor(scales, dtype=scores.dtype, device=scores.device)[:, None])
    if len(sampling) == len(spans):
        return scores.add_(gumbel)
    rows = [span.temperature > 0 for span in spans for _ in range(span.num_rows)]
    index = torch.tensor(np.flatnonzero(rows), device=scores.device)
    return scores.index_add_(0, index, gumbel.to(scores.dtype))


def best(scores: Tensor, ranks: int, native: NativeTop | None = None) -> Top:
    """Returns the `ranks` best tokens of every row with their log-probabilities; scores are [rows, vocab]."""
    ranks = min(ranks, scores.shape[1])
    if native is not None and native.fits(scores, ranks):
        return Top(*native(scores, ranks))
    token_ids = _top(scores, ranks)
    # NOTE: on a CPU log_softmax is faster than logsumexp, and unlike exp it is not slow where results
    # underflow.
    return Top(torch.log_softmax(scores, dim=1).gather(1, token_ids), token_ids)


def _top(scores: Tensor, ranks: int) -> Tensor:
    """Returns the indices of topk; on a CPU in two stages if the vocabulary can be folded.

    Each row is folded into 32 lines: the `ranks` best scores lie in the `ranks` columns with the largest
    maxima. That is three to six times as fast.
    """
    count, vocab_size = scores.shape
    lines, columns = 32, vocab_size // 32
    if scores.device.type != "cpu" or columns * lines != vocab_size or columns <= 2 * ranks:
        return torch.topk(scores, ranks, dim=1).indices
    folded = scores.view(count, lines, columns)
    chosen = folded.amax(dim=1).topk(ranks, dim=1, sorted=False).indices
    inside = folded.gather(2, chosen[:, None, :].expand(count, lines, ranks))
    at = inside.reshape(count, lines * ranks).topk(ranks, dim=1).indices
    return at // ranks * columns + chosen.gather(1, at % ranks)


def to_host(top: Top) -> HostTop:
    """Copies candidates to the host at once: token ids are small enough to be exact as floats."""
    if top.token_ids.device.type == "cpu":
        return HostTop(top.logprobs.float().numpy(), top.token_ids.numpy())
    both = torch.stack((top.logprobs.float(), top.token_ids.float())).cpu().numpy()
    return HostTop(both[0], both[1].astype(np.int64))
