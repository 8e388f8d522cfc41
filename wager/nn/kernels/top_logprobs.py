"""A draft's candidates: the best tokens of every row of scores with their log-probabilities, in one read.

Each program takes a chunk of the vocabulary. It scales the scores and adds noise (`noise.py`), finds its best
few by repeated maximum over words of score and token id, and stores the chunk's mass; a small kernel merges
the chunks. The log-softmax of the whole row is never written. The speed is limited by reading the scores,
with noise by its logarithms; it is meant for a few dozen ranks at most. Ties go to the lower token id.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from wager.nn.kernels.device import is_rows, key_value, order_key, power_of_two
from wager.nn.kernels.filter import CHUNK
from wager.nn.kernels.noise import scored
from wager.nn.kernels.support import MAX_RANKS
from wager.nn.noise import NoiseSource

_LOWEST = tl.constexpr(-(2**63))


class RowSampling(NamedTuple):
    """How each row is sampled, each [rows]: temperature float32 (0: no noise), seeds and positions int64."""

    temperature: Tensor
    seeds: Tensor
    positions: Tensor


class TopTokens(NamedTuple):
    """The best tokens of each row, best first: logprobs [rows, ranks] float32, token_ids int64."""

    logprobs: Tensor
    token_ids: Tensor


def top_logprobs(logits: Tensor, ranks: int, heat: RowSampling) -> TopTokens:
    """Returns candidates of logits [rows, vocab]: the best of log-softmax(logits / T + noise), or without
    noise.
    """
    num_rows, vocab_size = logits.shape
    ranks = min(ranks, vocab_size)
    assert 0 < ranks <= MAX_RANKS and is_rows(logits), f"{ranks} ranks"
    assert all(one.shape == (num_rows,) and one.is_contiguous() for one in heat), "one entry per row"
    device = logits.device
    top = TopTokens(
        torch.empty((num_rows, ranks), dtype=torch.float32, device=device),
        torch.empty((num_rows, ranks), dtype=torch.int64, device=device),
    )
    if num_rows:
        chunks = triton.cdiv(vocab_size, CHUNK)
        found = torch.empty((num_rows, chunks, ranks), dtype=torch.int64, device=device)
        masses = torch.empty((num_rows, chunks, 2), dtype=torch.float32, device=device)
        _top_chunk[(num_rows, chunks)](
            logits, *heat, found, masses, logits.stride(0), vocab_size, ranks, CHUNK=CHUNK, num_warps=8
        )  # fmt: skip
        _top_row[(num_rows,)](
            found, masses, *top, chunks, ranks,
            CHUNKS=power_of_two(chunks), FOUND=power_of_two(chunks * ranks), num_warps=4,
        )  # fmt: skip
    return top


def top_logprobs_reference(logits: Tensor, ranks: int, heat: RowSampling) -> TopTokens:
    """Computes the same in plain torch."""
    scores = logits if logits.dtype == torch.float64 else logits.float()
    noise = NoiseSource(logits.shape[1], capacity=0)
    rows = []
    for index, row in enumerate(scores):
        temperature = float(heat.temperature[index])
        if temperature > 0.0:
            key = (int(heat.seeds[index]), int(heat.positions[index]))
            row = row / temperature + noise.rows([key])[0].to(row.device)
        rows.append(row)
    noised = torch.stack(rows) if rows else scores
    token_ids = noised.sort(dim=1, descending=True, stable=True).indices[:, :ranks]
    return TopTokens(noised.log_softmax(dim=1).gather(1, token_ids), token_ids)


@triton.jit
def _top_chunk(
    logits, temperature, seeds, positions, found, masses, stride, vocab_size, ranks, CHUNK: tl.constexpr
):  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = at < vocab_size
    x = tl.load(logits + row * stride + at, mask=inside, other=float("-inf")).to(tl.float32)
    heat = tl.load(temperature + row)
    scores = scored(x, at, heat, tl.load(seeds + row), tl.load(positions + row))
    best = tl.max(scores, axis=0)
    base = tl.where(best > float("-inf"), best, 0.0)
    cell = row * tl.num_programs(1) + chunk
    tl.store(masses + cell * 2, best)
    tl.store(masses + cell * 2 + 1, tl.sum(tl.exp(scores - base), axis=0))
    # One word per token: its score in the high half; the low half makes the lower id the larger word.
    words = ((order_key(scores).to(tl.int64) - 0x80000000) << 32) + (0xFFFFFFFF - at.to(tl.int64))
    words = tl.where(inside, words, _LOWEST)
    for rank in range(ranks):
        word = tl.max(words, axis=0)
        tl.store(found + cell * ranks + rank, word)
        words = tl.where(words == word, _LOWEST, words)


@triton.jit
def _top_row(
    found, masses, logprobs, token_ids, chunks, ranks, CHUNKS: tl.constexpr, FOUND: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    chunk, at = tl.arange(0, CHUNKS), tl.arange(0, FOUND)
    source = masses + (row * chunks + chunk) * 2
    tops = tl.load(source, mask=chunk < chunks, other=float("-inf"))
    parts = tl.load(source + 1, mask=chunk < chunks, other=0.0)
    best = tl.max(tops, axis=0)
    base = tl.where(best > float("-inf"), best, 0.0)
    whole = tl.log(tl.sum(parts * tl.exp(tops - base), axis=0))
    words = tl.load(found + row * chunks * ranks + at, mask=at < chunks * ranks, other=_LOWEST)
    for rank in range(ranks):
        word = tl.max(words, axis=0)
        score = key_value(((word >> 32) + 0x80000000).to(tl.uint32))
        tl.store(logprobs + row * ranks + rank, score - base - whole)
        tl.store(token_ids + row * ranks + rank, 0xFFFFFFFF - (word & 0xFFFFFFFF))
        words = tl.where(words == word, _LOWEST, words)
