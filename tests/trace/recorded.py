"""Small made-up traces for the tests of this room: random drafts whose hits follow their confidence."""

from dataclasses import replace

import numpy as np

from wager.trace import PADDING, Trace


def made_up(
    seed: int = 0,
    shape: tuple[int, int, int, int] = (3, 40, 5, 3),
    *,
    kind: str = "code",
    temperature: str = "t0",
    p1: bool = False,
    lengths: tuple[int, ...] = (),
) -> Trace:
    """A trace [sequences, positions, depths, ranks]; `lengths` cuts sequences short."""
    random = np.random.default_rng(seed)
    sequences, positions, _, ranks = shape
    logits = random.normal(size=shape) * 2.0
    logits = -np.sort(-logits, axis=3)
    logprobs = logits - np.log(np.exp(logits).sum(axis=3, keepdims=True) + 0.5)
    logprobs = logprobs.astype(np.float32)
    uniform = random.random(shape[:3])[..., None]
    hit = (np.cumsum(np.exp(logprobs), axis=3) < uniform).sum(axis=3)
    truth = np.where(hit < ranks, hit, -1).astype(np.int16)
    for sequence, length in enumerate(lengths):
        truth[sequence, length:] = PADDING
    confidence = random.random((sequences, positions)).astype(np.float32) if p1 else None
    return Trace(kind, temperature, logprobs, truth, confidence)


def cut_at_its_limit(trace: Trace) -> Trace:
    """As an engine records texts that end at the most tokens allowed: nothing is offered for the last."""
    logprobs, ranks = trace.logprobs.copy(), trace.ranks.copy()
    for i in range(trace.num_sequences):
        last = trace.length(i) - 1
        logprobs[i, last] = -np.inf
        ranks[i, last] = -1
    return replace(trace, logprobs=logprobs, ranks=ranks)
