"""The choice at every judged position: argmax of scores / temperature + Gumbel noise, after the filters.

All rows and all chunks of the vocabulary are processed at once: each program finds the best token of its
chunk, and a second small kernel the best of the chunks. Noise is computed where a kept score is read
(`noise.py`) and a filter is a threshold (`filter.py`), so nothing of the size of the vocabulary is written
and nothing is sorted. The speed is limited by reading the scores once, with noise by its logarithms. Ties go
to the lower token id; equal scores at top-p's threshold are kept by token id, as a stable sort would.
Penalties and grammars change the scores before this; this module knows no requests and no trees.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from wager.nn.kernels.device import is_rows, key_value, order_key, power_of_two
from wager.nn.kernels.filter import (
    CHUNK,
    NUM_STEPS,
    ActiveFilters,
    SamplingRows,
    narrow_bucket,
    new_search,
    row_peak,
    search_thresholds,
)
from wager.nn.kernels.noise import scored
from wager.nn.kernels.support import MAX_VOCAB
from wager.nn.noise import NoiseSource


class SampledTokens(NamedTuple):
    """token_ids [rows] int64, and highest [rows] float32: the best plain score, NaN if any score is NaN."""

    token_ids: Tensor
    highest: Tensor


def sample_tokens(
    logits: Tensor,
    asked: SamplingRows,
    filters: ActiveFilters | None = None,
    out: SampledTokens | None = None,
) -> SampledTokens:
    """Returns one token per row of logits [rows, vocab]; `filters` is None if no row uses any; `out` is the
    destination.

    A row whose highest score is not finite is broken: its token id is valid but has no meaning.
    """
    num_rows, vocab_size = logits.shape
    assert logits.dtype in NUM_STEPS and is_rows(logits), f"scores in {logits.dtype}"
    assert 0 < vocab_size <= MAX_VOCAB, f"{vocab_size} words"
    assert all(one.shape == (num_rows,) and one.is_contiguous() for one in asked), "one entry per row"
    chosen = out or SampledTokens(
        torch.empty(num_rows, dtype=torch.int64, device=logits.device),
        torch.empty(num_rows, dtype=torch.float32, device=logits.device),
    )
    assert all(one.shape == (num_rows,) and one.is_contiguous() for one in chosen), "room for every row"
    if num_rows == 0:
        return chosen
    filters = filters or ActiveFilters()
    limits = new_search(logits, filters)
    if any(filters):
        search_thresholds(logits, asked, filters, limits)
    chunks = triton.cdiv(vocab_size, CHUNK)
    found = logits.new_empty((num_rows, chunks, 2), dtype=torch.float32)
    where = torch.empty((num_rows, chunks), dtype=torch.int32, device=logits.device)
    steps = NUM_STEPS[logits.dtype]
    _pick[(num_rows, chunks)](
        logits, *asked, *limits, found, where, logits.stride(0), vocab_size, num_rows, chunks,
        NUM_STEPS=steps, HAS_TOP_K=filters.top_k, HAS_TOP_P=filters.top_p, HAS_MIN_P=filters.min_p,
        CHUNKS=power_of_two(chunks), CHUNK=CHUNK, num_warps=8,
    )  # fmt: skip
    _best[(num_rows,)](found, where, *chosen, chunks, CHUNKS=power_of_two(chunks), num_warps=1)
    return chosen


def sample_tokens_reference(logits: Tensor, asked: SamplingRows) -> SampledTokens:
    """Computes the same in plain torch, row by row."""
    noise = NoiseSource(logits.shape[1], capacity=0)
    tokens = []
    for index, row in enumerate(logits):
        scores = row if row.dtype == torch.float64 else row.float()
        heat = float(asked.temperature[index])
        if heat > 0.0:
            scores = kept_scores(scores / heat, asked, index)
            key = (int(asked.seeds[index]), int(asked.positions[index]))
            scores = scores + noise.rows([key])[0].to(scores.device)
        tokens.append(int(scores.argmax()))
    highest = logits.max(dim=1).values.float() if len(logits) else logits.new_empty(0).float()
    return SampledTokens(torch.tensor(tokens, dtype=torch.int64, device=logits.device), highest)


def kept_scores(scores: Tensor, asked: SamplingRows, index: int) -> Tensor:
    """Returns scaled scores [vocab] of one row; -inf for tokens that its filters drop."""
    top_k, top_p, min_p = int(asked.top_k[index]), float(asked.top_p[index]), float(asked.min_p[index])
    if 0 < top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(top_k).values[-1], -torch.inf)
    if top_p < 1.0:
        ordered, places = scores.sort(descending=True, stable=True)
        probs = ordered.softmax(dim=0)
        drop = probs.cumsum(dim=0) - probs >= top_p
        drop[0] = False
        scores = scores.masked_fill(drop.scatter(0, places, drop), -torch.inf)
    if min_p > 0.0:
        probs = scores.softmax(dim=0)
        scores = scores.masked_fill(probs < min_p * probs.max(), -torch.inf)
    return scores


@triton.jit(do_not_specialize=["num_rows"])
def _pick(
    logits, temperature, top_k, top_p, min_p, seeds, positions, settled, seen, groups, peaks, found, where,
    stride, vocab_size, num_rows, chunks,
    NUM_STEPS: tl.constexpr, HAS_TOP_K: tl.constexpr, HAS_TOP_P: tl.constexpr, HAS_MIN_P: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = at < vocab_size
    x = tl.load(logits + row * stride + at, mask=inside, other=float("-inf")).to(tl.float32)
    heat = tl.load(temperature + row)
    kept = kept_tokens(
        x, inside, heat, top_k, top_p, min_p, settled, seen, groups, peaks, row, chunk, num_rows, chunks,
        NUM_STEPS, HAS_TOP_K, HAS_TOP_P, HAS_MIN_P, CHUNKS,
    )  # fmt: skip
    scores = tl.full((CHUNK,), float("-inf"), tl.float32)
    if tl.max(kept.to(tl.int32), axis=0) > 0:
        noised = scored(x, at, heat, tl.load(seeds + row), tl.load(positions + row))
        scores = tl.where(kept, noised, float("-inf"))
    best, place = tl.max(scores, axis=0, return_indices=True)
    broken = tl.max((x != x).to(tl.int32), axis=0) > 0
    cell = row * chunks + chunk
    tl.store(found + cell * 2, best)
    tl.store(found + cell * 2 + 1, tl.where(broken, float("nan"), tl.max(x, axis=0)))
    # A broken row's token has no meaning, but a prelaunched pass embeds it, so it must be a valid id.
    tl.store(where + cell, tl.minimum(chunk * CHUNK + place, vocab_size - 1))


@triton.jit
def kept_tokens(
    x, inside, heat, top_k, top_p, min_p, settled, seen, groups, peaks, row, chunk, num_rows, chunks,
    NUM_STEPS: tl.constexpr, HAS_TOP_K: tl.constexpr, HAS_TOP_P: tl.constexpr, HAS_MIN_P: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """Returns which tokens of a chunk with scores `x` a row's filters keep."""
    kept = inside
    if HAS_TOP_K or HAS_TOP_P:
        edge, allowed, ties_before = _edge(
            heat, top_k, top_p, settled, seen, groups, peaks, row, chunk, num_rows, chunks,
            NUM_STEPS, HAS_TOP_K, HAS_TOP_P, CHUNKS,
        )  # fmt: skip
        key = order_key(x).to(tl.int64) >> (32 - 4 * NUM_STEPS)
        tie = (key == edge) & inside
        rank = ties_before + tl.cumsum(tie.to(tl.int32), axis=0) - 1
        kept = inside & ((key > edge) | (tie & (rank < allowed)))
    if HAS_MIN_P:  # noqa: SIM102
        if heat > 0.0:
            base, _ = row_peak(peaks, row, chunks, heat, CHUNKS)
            kept = kept & (tl.exp(tl.div_rn(x, heat) - base) >= tl.load(min_p + row))
    return kept


@triton.jit
def _edge(
    heat, top_k, top_p, settled, seen, groups, peaks, row, chunk, num_rows, chunks,
    NUM_STEPS: tl.constexpr, HAS_TOP_K: tl.constexpr, HAS_TOP_P: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Returns the lowest kept bits, the number of tokens with exactly these bits, and how many are in earlier
    chunks.

    Without a filter every token is above the threshold.
    """
    edge, allowed, ties_before = row * 0 - 1, heat * 0.0, chunk * 0
    if heat > 0.0:
        if HAS_TOP_K:  # noqa: SIM102
            if tl.load(top_k + row) > 0:
                edge, _, _, _, _, _ = narrow_bucket(
                    settled, seen, groups, row, num_rows, chunks, NUM_STEPS - 1, False, CHUNKS
                )  # fmt: skip
                allowed = heat * 0.0 + float("inf")
        if HAS_TOP_P:
            share = tl.load(top_p + row)
            if share < 1.0:
                step = NUM_STEPS * 2 - 1 if HAS_TOP_K else NUM_STEPS - 1
                edge, _, _, above, goal, _ = narrow_bucket(
                    settled, seen, groups, row, num_rows, chunks, step, True, CHUNKS
                )  # fmt: skip
                base, _ = row_peak(peaks, row, chunks, heat, CHUNKS)
                score = key_value((edge << (32 - 4 * NUM_STEPS)).to(tl.uint32))
                weight = tl.exp(tl.div_rn(score, heat) - base)
                # The i-th of equal scores stays while what is above it, i of its equals included, misses the
                # goal.
                fit = tl.where(weight > 0.0, tl.ceil((goal - above) / weight), float("inf"))
                allowed = tl.maximum(fit, 1.0)
                earlier = tl.arange(0, CHUNKS)
                lines = (((step % 2) * num_rows + row) * chunks + earlier) * 32 + (edge & 15)
                counts = tl.load(groups + lines, mask=earlier < chunk, other=0.0)
                ties_before = tl.sum(counts, axis=0).to(tl.int32)
    return edge, allowed, ties_before


@triton.jit
def _best(found, where, token_ids, highest, chunks, CHUNKS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    there = chunk < chunks
    cell = row * chunks + chunk
    scores = tl.load(found + cell * 2, mask=there, other=float("-inf"))
    _, first = tl.max(scores, axis=0, return_indices=True)
    tokens = tl.load(where + cell, mask=there, other=0)
    tl.store(token_ids + row, tl.sum(tl.where(chunk == first, tokens, 0), axis=0).to(tl.int64))
    tops = tl.load(found + cell * 2 + 1, mask=there, other=float("-inf"))
    broken = tl.max((tops != tops).to(tl.int32), axis=0) > 0
    tl.store(highest + row, tl.where(broken, float("nan"), tl.max(tops, axis=0)))
