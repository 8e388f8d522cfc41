"""Top-k and top-p as a threshold on each row's scores, found without sorting.

Scores are converted to words with the same order, and the threshold is found four bits at a time. Each step
counts and weighs the tokens of the sixteen groups that the next four bits form, in all chunks of a row at
once. The next step adds up the chunks and selects the group with the limit. Both filters are one search: for
the lowest group above which less than a goal lies, which is k tokens, or the share top_p of the mass that
top-k leaves. Each step reads the scores once: 4 steps for bfloat16, 5 for float16, 8 for float32. The order
of sums is fixed, so the same scores always give the same set. `sample.py` uses this.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from wager.nn.kernels.device import INTERPRETED, order_key, power_of_two

CHUNK = 4096
"""Number of tokens that one program processes."""
# Tokens of a chunk that are grouped at a time: limited by the registers; all of them in the interpreter.
_PIECE = CHUNK if INTERPRETED.value else 256
NUM_STEPS = {torch.bfloat16: 4, torch.float16: 5, torch.float32: 8}
"""Number of four-bit steps that distinguish any two scores of a dtype."""
_GROUPS = tl.constexpr(16)


class SamplingRows(NamedTuple):
    """The sampling parameters of each judged position, each [rows] on the device.

    temperature, top_p, min_p are float32; top_k is int32; seeds and positions are int64. Temperature 0 is
    greedy; top_k 0, top_p 1 and min_p 0 switch the filters off.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    positions: Tensor


class ActiveFilters(NamedTuple):
    """The filters that any row of a call uses; the others are not computed."""

    top_k: bool = False
    top_p: bool = False
    min_p: bool = False

    @property
    def num_searches(self) -> int:
        return self.top_k + self.top_p


class ThresholdSearch(NamedTuple):
    """The state of the search of all rows before each step.

    settled [steps, rows, 2] int64: the bits found so far, and top-k's threshold. seen [steps, rows, 3]
    float32: tokens above, mass above, the goal. groups [2, rows, chunks, 2, 16] float32: counts and masses of
    the latest two steps. peaks [rows, chunks, 2]: each chunk's best score, and its mass relative to that
    score.
    """

    settled: Tensor
    seen: Tensor
    groups: Tensor
    peaks: Tensor


def new_search(logits: Tensor, filters: ActiveFilters) -> ThresholdSearch:
    """Allocates the memory of a search over these scores."""
    num_rows, chunks = logits.shape[0], triton.cdiv(logits.shape[1], CHUNK)
    steps = max(1, filters.num_searches * NUM_STEPS[logits.dtype])
    device = logits.device
    return ThresholdSearch(
        torch.empty((steps, num_rows, 2), dtype=torch.int64, device=device),
        torch.empty((steps, num_rows, 3), dtype=torch.float32, device=device),
        torch.empty((2, num_rows, chunks, 2, 16), dtype=torch.float32, device=device),
        torch.empty((num_rows, chunks, 2), dtype=torch.float32, device=device),
    )


def search_thresholds(
    logits: Tensor, asked: SamplingRows, filters: ActiveFilters, limits: ThresholdSearch
) -> None:
    """Runs all steps; the reader finishes the last one with `narrow_bucket`.

    Greedy rows and rows without a filter are skipped.
    """
    num_rows, vocab_size = logits.shape
    chunks, num_steps = triton.cdiv(vocab_size, CHUNK), NUM_STEPS[logits.dtype]
    grid = (num_rows, chunks)
    _peaks[grid](
        logits, asked.temperature, limits.peaks, logits.stride(0), vocab_size, CHUNK=CHUNK, num_warps=8
    )  # fmt: skip
    for step in range(filters.num_searches * num_steps):
        _narrow[grid](
            logits, asked.temperature, asked.top_k, asked.top_p, *limits,
            logits.stride(0), vocab_size, num_rows, chunks, step, step % num_steps,
            IS_FIRST=step % num_steps == 0, BY_MASS=not filters.top_k or step >= num_steps,
            HAS_TOP_K=filters.top_k, CHUNKS=power_of_two(chunks), CHUNK=CHUNK, PIECE=_PIECE, num_warps=4,
        )  # fmt: skip


@triton.jit
def _peaks(logits, temperature, peaks, stride, vocab_size, CHUNK: tl.constexpr):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heat = tl.load(temperature + row)
    if heat <= 0.0:
        return
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row * stride + at, mask=at < vocab_size, other=float("-inf")).to(tl.float32)
    best = tl.max(x, axis=0)
    base = tl.where(best > float("-inf"), best, 0.0)
    target = peaks + (row * tl.num_programs(1) + chunk) * 2
    tl.store(target, best)
    tl.store(target + 1, tl.sum(tl.exp(tl.div_rn(x, heat) - tl.div_rn(base, heat)), axis=0))


@triton.jit
def row_peak(peaks, row, chunks, heat, CHUNKS: tl.constexpr):
    """Returns a row's best score over the temperature (0 if there is none), and the row's mass relative to
    it.
    """
    chunk = tl.arange(0, CHUNKS)
    source = peaks + (row * chunks + chunk) * 2
    best = tl.load(source, mask=chunk < chunks, other=float("-inf"))
    top = tl.max(best, axis=0)
    base = tl.div_rn(tl.where(top > float("-inf"), top, 0.0), heat)
    masses = tl.load(source + 1, mask=chunk < chunks, other=0.0)
    return base, tl.sum(masses * tl.exp(tl.div_rn(best, heat) - base), axis=0)


@triton.jit
def narrow_bucket(
    settled, seen, groups, row, num_rows, chunks, step, BY_MASS: tl.constexpr, CHUNKS: tl.constexpr
):  # fmt: skip
    """Returns the search after `step`, computed from its groups.

    The result is (bits, top-k's threshold, tokens above, mass above, goal, mass of the group).
    """
    place = step * num_rows + row
    prefix, kept_from = tl.load(settled + place * 2), tl.load(settled + place * 2 + 1)
    num_above, mass_above = tl.load(seen + place * 3), tl.load(seen + place * 3 + 1)
    goal = tl.load(seen + place * 3 + 2)
    chunk, group = tl.arange(0, CHUNKS), tl.arange(0, _GROUPS)
    source = groups + (((step % 2) * num_rows + row) * chunks + chunk)[:, None] * (2 * _GROUPS)
    there = (chunk < chunks)[:, None]
    counts = tl.sum(tl.load(source + group[None, :], mask=there, other=0.0), axis=0)
    masses = tl.sum(tl.load(source + _GROUPS + group[None, :], mask=there, other=0.0), axis=0)
    # This sums what is above instead of subtracting totals, so that small masses keep their precision.
    higher = (group[:, None] > group[None, :]).to(tl.float32)
    counts_above = num_above + tl.sum(counts[:, None] * higher, axis=0)
    masses_above = mass_above + tl.sum(masses[:, None] * higher, axis=0)
    measure = masses_above if BY_MASS else counts_above
    within = (counts > 0.0) & (measure < goal)
    lowest = tl.min(tl.where(within, group, _GROUPS), axis=0)
    # The best token is always kept, whatever the goal.
    best = tl.max(tl.where(counts > 0.0, group, 0), axis=0)
    chosen = tl.where(lowest < _GROUPS, lowest, best)
    taken = group == chosen
    num_above = tl.sum(tl.where(taken, counts_above, 0.0), axis=0)
    mass_above = tl.sum(tl.where(taken, masses_above, 0.0), axis=0)
    mass = tl.sum(tl.where(taken, masses, 0.0), axis=0)
    return prefix * _GROUPS + chosen.to(tl.int64), kept_from, num_above, mass_above, goal, mass


@triton.jit(do_not_specialize=["num_rows", "step", "nibble"])
def _narrow(
    logits, temperature, top_k, top_p, settled, seen, groups, peaks,
    stride, vocab_size, num_rows, chunks, step, nibble,
    IS_FIRST: tl.constexpr, BY_MASS: tl.constexpr, HAS_TOP_K: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heat, count, share = tl.load(temperature + row), tl.load(top_k + row), tl.load(top_p + row)
    # Top-p needs the mass that top-k leaves, so a row with either takes part in the search for top-k.
    is_asked = share < 1.0
    if not BY_MASS:
        is_asked = is_asked | (count > 0)
    if (heat <= 0.0) | (is_asked == 0):
        return
    base, whole = row_peak(peaks, row, chunks, heat, CHUNKS)
    prefix, kept_from, num_above, mass_above = row * 0, row * 0, heat * 0.0, heat * 0.0
    if not IS_FIRST:
        prefix, kept_from, num_above, mass_above, goal, mass = narrow_bucket(
            settled, seen, groups, row, num_rows, chunks, step - 1, BY_MASS, CHUNKS
        )  # fmt: skip
    elif not BY_MASS:
        goal = tl.where(count > 0, count.to(tl.float32), float("inf"))
    elif HAS_TOP_K:
        kept_from, _, _, mass_kept, _, mass = narrow_bucket(
            settled, seen, groups, row, num_rows, chunks, step - 1, False, CHUNKS
        )  # fmt: skip
        goal = share * (mass_kept + mass)
    else:
        goal = share * whole
    if chunk == 0:
        place = step * num_rows + row
        tl.store(settled + place * 2, prefix)
        tl.store(settled + place * 2 + 1, kept_from)
        tl.store(seen + place * 3, num_above)
        tl.store(seen + place * 3 + 1, mass_above)
        tl.store(seen + place * 3 + 2, goal)
    group = tl.arange(0, _GROUPS)
    counts, masses = tl.zeros((_GROUPS,), tl.float32), tl.zeros((_GROUPS,), tl.float32)
    for piece in range(0, CHUNK, PIECE):
        at = chunk * CHUNK + piece + tl.arange(0, PIECE)
        x = tl.load(logits + row * stride + at, mask=at < vocab_size, other=0.0).to(tl.float32)
        key = order_key(x).to(tl.int64)
        among = at < vocab_size
        if not IS_FIRST:
            among = among & ((key >> (32 - 4 * nibble)) == prefix)
        if tl.max(among.to(tl.int32), axis=0) > 0:
            own = ((key >> (28 - 4 * nibble)) & 15).to(tl.int32)
            mine = among[:, None] & (own[:, None] == group[None, :])
            weight = tl.exp(tl.div_rn(x, heat) - base)
            counts += tl.sum(mine.to(tl.float32), axis=0)
            masses += tl.sum(tl.where(mine, weight[:, None], 0.0), axis=0)
    target = groups + (((step % 2) * num_rows + row) * chunks + chunk) * (2 * _GROUPS) + group
    tl.store(target, counts)
    tl.store(target + _GROUPS, masses)
