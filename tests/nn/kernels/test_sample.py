"""Choices against plain torch: greedy, noised, filtered, tied, broken; and the set that filters keep."""

import math

import pytest
import torch
from torch import Tensor

from tests.nn.kernels.interpreter import DTYPES, random, tl, triton
from wager.nn.kernels.filter import (
    CHUNK,
    NUM_STEPS,
    ActiveFilters,
    SamplingRows,
    new_search,
    search_thresholds,
)
from wager.nn.kernels.sample import kept_scores, kept_tokens, sample_tokens, sample_tokens_reference
from wager.nn.kernels.staging import signed_seed
from wager.records import SamplingParams
from wager.target import sampler

VOCABS = [1, 7, 4096, 4097, 9001]
SLACK = 4e-6


def ask(
    rows: int,
    device: torch.device,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> SamplingRows:
    """The same for all rows, at different positions of different seeds."""

    def all_rows(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((rows,), value, dtype=dtype, device=device)

    places = torch.arange(rows)
    seeds = torch.tensor([signed_seed(2**63 + 77 * (row % 5)) for row in range(rows)], dtype=torch.int64)
    return SamplingRows(
        all_rows(temperature, torch.float32), all_rows(top_k, torch.int32), all_rows(top_p, torch.float32),
        all_rows(min_p, torch.float32), seeds.to(device), (places * 3 + 10).to(device),
    )  # fmt: skip


def on_host(asked: SamplingRows) -> SamplingRows:
    return SamplingRows(*(one.cpu() for one in asked))


def check(logits: Tensor, asked: SamplingRows, filters: ActiveFilters | None = None) -> list[int]:
    """The kernel's tokens, equal to the reference's."""
    got, want = sample_tokens(logits, asked, filters), sample_tokens_reference(logits.cpu(), on_host(asked))
    assert got.token_ids.tolist() == want.token_ids.tolist()
    assert torch.equal(got.highest.cpu(), want.highest)
    return got.token_ids.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_greedy_and_noised(device: torch.device, dtype: torch.dtype, vocab: int, temperature: float) -> None:
    logits = random(3, vocab, dtype=dtype, device=device) * 3
    check(logits, ask(3, device, temperature))


@triton.jit
def _mark(
    logits, temperature, top_k, top_p, min_p, settled, seen, groups, peaks, marks,
    vocab_size, num_rows, chunks,
    NUM_STEPS: tl.constexpr, HAS_TOP_K: tl.constexpr, HAS_TOP_P: tl.constexpr, HAS_MIN_P: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = at < vocab_size
    x = tl.load(logits + row * vocab_size + at, mask=inside, other=0.0).to(tl.float32)
    kept = kept_tokens(
        x, inside, tl.load(temperature + row), top_k, top_p, min_p, settled, seen, groups, peaks, row, chunk,
        num_rows, chunks, NUM_STEPS, HAS_TOP_K, HAS_TOP_P, HAS_MIN_P, CHUNKS,
    )  # fmt: skip
    tl.store(marks + row * vocab_size + at, kept.to(tl.int8), mask=inside)


def kept_by_kernel(logits: Tensor, asked: SamplingRows, filters: ActiveFilters) -> Tensor:
    """[rows, vocab]: the set itself, by the functions that `choose` uses."""
    (num_rows, vocab), limits = logits.shape, new_search(logits, filters)
    for part in limits:
        part.fill_(-7)
    search_thresholds(logits, asked, filters, limits)
    marks = torch.full(logits.shape, 3, dtype=torch.int8, device=logits.device)
    chunks = triton.cdiv(vocab, CHUNK)
    _mark[(num_rows, chunks)](
        logits, *asked[:4], *limits, marks, vocab, num_rows, chunks, NUM_STEPS=NUM_STEPS[logits.dtype],
        HAS_TOP_K=filters.top_k, HAS_TOP_P=filters.top_p, HAS_MIN_P=filters.min_p,
        CHUNKS=triton.next_power_of_2(chunks), CHUNK=CHUNK,
    )  # fmt: skip
    assert int(marks.max()) <= 1, "a token was passed over"
    return marks.cpu()


def _slackened(asked: SamplingRows, by: float) -> SamplingRows:
    return asked._replace(top_p=torch.where(asked.top_p < 1.0, asked.top_p * (1.0 + by), asked.top_p))


def check_kept(logits: Tensor, asked: SamplingRows) -> None:
    """The kernel's set lies between those of a top-p that is smaller and larger by a rounding of its sums."""
    filters = ActiveFilters(
        *(bool((part > 0).any()) for part in (asked.top_k, 1.0 - asked.top_p, asked.min_p))
    )
    got, host = kept_by_kernel(logits, asked, filters).bool(), on_host(asked)
    for row, scores in enumerate(logits.cpu().double()):
        scaled = scores / host.temperature[row].double()
        least, most = (kept_scores(scaled, _slackened(host, by), row) > -math.inf for by in (-SLACK, SLACK))
        assert bool((least <= got[row]).all()), f"row {row} lacks {(least & ~got[row]).nonzero().tolist()}"
        assert bool((got[row] <= most).all()), f"row {row} keeps {(got[row] & ~most).nonzero().tolist()}"
        assert int(most.sum() - least.sum()) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (1, 1.0, 0.0),
        (5, 1.0, 0.0),
        (0, 0.9, 0.0),
        (0, 0.05, 0.0),
        (20, 0.83, 0.0),
        (0, 1.0, 0.2),
        (50, 0.97, 0.01),
    ],
)
def test_filters(device: torch.device, dtype: torch.dtype, top_k: int, top_p: float, min_p: float) -> None:
    logits = random(1, 4400, dtype=dtype, device=device) * 2
    check_kept(logits, ask(1, device, 1.5, top_k, top_p, min_p))


@pytest.mark.parametrize("top_p", [0.11, 0.62, 0.9])
@pytest.mark.parametrize("top_k", [0, 30])
def test_ties_at_the_edge_are_kept_by_token_id(device: torch.device, top_p: float, top_k: int) -> None:
    """Only four different scores, so that every edge falls among equals, over several chunks."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randint(-2, 2, (1, 9000), generator=generator).to(device, torch.bfloat16)
    check_kept(logits, ask(1, device, 0.9, top_k, top_p))


def test_the_best_token_stays_whatever_is_asked(device: torch.device) -> None:
    logits = random(2, 300, dtype=torch.float32, device=device)
    logits[1] = -0.0
    kept = kept_by_kernel(logits, ask(2, device, 1.0, top_p=0.0), ActiveFilters(top_p=True))
    assert kept.sum(dim=1).tolist() == [1, 1] and kept[1, 0] == 1


def test_exactly_half_of_equal_tokens(device: torch.device) -> None:
    """Where the sums are exact, so is the edge: of four equal tokens the first two."""
    logits = torch.full((1, 300), -100.0, device=device)
    logits[:, [5, 90, 91, 299]] = 2.0
    kept = kept_by_kernel(logits, ask(1, device, 1.0, top_p=0.5), ActiveFilters(top_p=True))
    assert kept[0].nonzero().flatten().tolist() == [5, 90]


def test_rows_of_all_kinds_in_one_call(device: torch.device) -> None:
    logits = random(6, 5000, dtype=torch.bfloat16, device=device) * 2
    parts = [
        ask(6, device), ask(6, device, 0.8), ask(6, device, 0.8, top_k=4), ask(6, device, 0.8, top_p=0.6),
        ask(6, device, 1.2, 40, 0.7, 0.05), ask(6, device, 0.0, 3, 0.5, 0.5),
    ]  # fmt: skip
    asked = SamplingRows(
        *(torch.stack([one[row] for row, one in enumerate(field)]) for field in zip(*parts, strict=True))
    )
    together = check(logits, asked, ActiveFilters(True, True, True))
    alone = [
        sample_tokens(
            logits[row : row + 1],
            SamplingRows(*(one[row : row + 1] for one in asked)),
            ActiveFilters(True, True, True),
        )
        for row in range(6)
    ]
    assert together == [int(one.token_ids) for one in alone]


def test_tokens_at_minus_infinity_are_never_chosen(device: torch.device) -> None:
    """A grammar's mask: only three tokens are allowed."""
    logits = torch.full((6, 4500), -torch.inf, device=device)
    logits[:, [0, 4200, 4499]] = torch.tensor([0.0, 1.0, -1.0], device=device)
    for filters, asked in (
        (None, ask(6, device, 2.0)),
        (ActiveFilters(top_k=True), ask(6, device, 2.0, top_k=100)),
        (ActiveFilters(top_p=True), ask(6, device, 2.0, top_p=0.999)),
    ):
        assert set(check(logits, asked, filters)) <= {0, 4200, 4499}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_rows_are_known_by_their_highest_score(device: torch.device, value: float) -> None:
    logits = random(3, 5000, dtype=torch.float32, device=device)
    logits[1, 4800] = value
    asked = ask(3, device, 0.9, 5, 0.9)
    got = sample_tokens(logits, asked, ActiveFilters(True, True))
    assert [math.isfinite(one) for one in got.highest.tolist()] == [True, False, True]
    want = sample_tokens_reference(logits.cpu()[::2], SamplingRows(*(one.cpu()[::2] for one in asked)))
    assert got.token_ids.tolist()[::2] == want.token_ids.tolist()
    assert 0 <= int(got.token_ids[1]) < 5000


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_row_that_is_broken_throughout_still_gives_a_word(device: torch.device, value: float) -> None:
    """A pass that runs ahead reads its embedding before anybody knows."""
    logits = torch.full((2, 4500), value, device=device)
    got = sample_tokens(logits, ask(2, device))
    assert all(0 <= token < 4500 for token in got.token_ids.tolist())
    assert not any(math.isfinite(one) for one in got.highest.tolist())


def test_rows_may_have_a_stride_and_may_be_none(device: torch.device) -> None:
    wide = random(4, 300, dtype=torch.float32, device=device)
    check(wide[:, :200], ask(4, device, 0.5))
    assert sample_tokens(wide[:0], ask(0, device)).token_ids.shape == (0,)


@pytest.mark.parametrize("params", [(0, 0.7, 0.0), (3, 1.0, 0.0), (9, 0.8, 0.1)])
def test_the_reference_is_the_targets_own_rule(params: tuple[int, float, float]) -> None:
    top_k, top_p, min_p = params
    scores = random(4, 60, dtype=torch.float32, device=torch.device("cpu"))
    want = sampler._filtered(scores, SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p))
    asked = ask(4, torch.device("cpu"), 1.0, top_k, top_p, min_p)
    assert torch.equal(torch.stack([kept_scores(row, asked, i) for i, row in enumerate(scores)]), want)


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [151_936, 262_144])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_large_vocabularies_on_the_device(device: torch.device, vocab: int, dtype: torch.dtype) -> None:
    if device.type != "cuda":
        pytest.skip("too large for the interpreter")
    logits = random(16, vocab, dtype=dtype, device=device) * 4
    for asked, filters in (
        (ask(16, device), None),
        (ask(16, device, 0.8), None),
        (ask(16, device, 0.8, 20, 0.95), ActiveFilters(True, True)),
        (ask(16, device, 1.0, 0, 0.9), ActiveFilters(top_p=True)),
        (ask(16, device, 1.0, 5000, 1.0, 0.001), ActiveFilters(True, False, True)),
    ):
        check(logits, asked, filters)
