"""The block drafter after any history against the same network with the whole context ingested at once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.draft.pair import HIDDEN, VOCAB, Face, block_net
from tests.nn.tiny import save_drafter
from wager.draft.base import DraftRow, KeptTokens, PoolShape, Proposal
from wager.draft.block import BlockDrafter, BlockOptions
from wager.errors import ConfigError, ModelError
from wager.kvcache.pool import KVPool
from wager.nn import kernels
from wager.nn.batch import BlockBatch, BlockRow
from wager.nn.kernels import support
from wager.nn.models.dflash import DFlash, load_drafter
from wager.nn.noise import NoiseSource

PAGE, BLOCK, LENGTH = 4, 8, 70
SHAPE = PoolShape(200, PAGE)
FACE = Face()
NOISE = NoiseSource(VOCAB, dtype=torch.float64)
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 11}
CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding": SLIDING,
    "causal": SLIDING
    | {"dflash_config": {"mask_token_id": 96, "target_layer_ids": [0, 2], "block_causal_in_sliding": True}},
}


class Text:
    """A request whose every token and feature is known beforehand, in pages scattered over the pool."""

    def __init__(self, name: int, rng: np.random.Generator, temperature: float = 0.0) -> None:
        self.name, self.seed, self.temperature = name, 100 + name, temperature
        self.tokens = [int(token) for token in rng.integers(0, 90, LENGTH)]
        self.features = torch.from_numpy(rng.standard_normal((LENGTH, 2 * HIDDEN)))
        count = LENGTH // PAGE + 4
        self.pages = [int(page) for page in rng.permutation(count) + name * count]
        self.num_cached = 0

    def row(self, pending: int, spare: bool = True, depth: int = 0) -> DraftRow:
        count = len(self.pages) if spare else -(-self.num_cached // PAGE)
        return DraftRow(
            self.name,
            self.tokens[: self.num_cached + pending],
            pending,
            self.pages[:count],
            self.temperature,
            self.seed,
            depth,
        )

    def keep(self, count: int) -> KeptTokens:
        start = self.num_cached
        self.num_cached = start + count
        return KeptTokens(self.name, start, self.features[start : self.num_cached], self.pages)


def make(net: DFlash, **options: Any) -> BlockDrafter:
    drafter = BlockDrafter(net, FACE, SHAPE, BlockOptions(**({"known_tokens": 4} | options)))
    drafter.pool.store.fill_(float("nan"))
    return drafter


def from_scratch(net: DFlash, text: Text, row: DraftRow, length: int = BLOCK) -> Tensor:
    """The row's noised log-probabilities [guesses, vocab], with nothing but this row in a new pool."""
    context_len = len(row.tokens) - row.num_pending
    pool = KVPool(net.pool_spec(60, PAGE))
    pages = list(range(50))
    if context_len:
        slots = pool.slots(pages, 0, context_len)
        net.ingest(text.features[:context_len], torch.arange(context_len), slots, pool)
    known = list(row.tokens[context_len:])
    block = torch.tensor(known + [96] * (length - len(known)))
    positions = torch.arange(context_len, context_len + length)
    hidden = net.forward(
        BlockBatch(FACE.embed(block), positions, [BlockRow(0, length, context_len, pages)]), pool
    )
    scores = FACE.logits(hidden[len(known) :])
    if row.temperature:
        places = range(len(row.tokens), len(row.tokens) + len(scores))
        scores = scores / row.temperature + NOISE.rows([(row.seed, place) for place in places])
    return scores.log_softmax(dim=1)


def check(proposal: Proposal | None, want: Tensor, ranks: int = 8) -> None:
    assert proposal is not None and proposal.logprobs is not None and not proposal.spine_only
    logprobs, token_ids = want.topk(ranks, dim=1)
    assert proposal.token_ids.tolist() == token_ids.tolist()
    assert proposal.token_ids.dtype == np.int64 and proposal.logprobs.dtype == np.float32
    assert np.abs(proposal.logprobs - logprobs.numpy()).max() < 1e-4


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", list(CASES))
def test_any_history_gives_the_guesses_of_a_full_ingest(tmp_path: Path, case: str, seed: int) -> None:
    """Prompt chunks, zero bets, random verdicts, several pending tokens, rows coming and going."""
    rng = np.random.default_rng(seed)
    net = block_net(tmp_path, **CASES[case])
    drafter = make(net, max_waiting=int(rng.choice([3, 1000])))
    texts = [Text(name, rng, temperature) for name, temperature in enumerate((0.0, 0.8, 1.3))]
    for text in texts:
        drafter.adopt(text.name, 0)
    drafted = 0
    while any(text.num_cached + 14 <= LENGTH for text in texts):
        active = [text for text in texts if text.num_cached + 14 <= LENGTH]
        rows = [text.row(int(rng.integers(1, 5)), bool(rng.random() < 0.6)) for text in active]
        chosen = [(text, row) for text, row in zip(active, rows, strict=True) if rng.random() < 0.5]
        for (text, row), got in zip(chosen, drafter.propose([row for _, row in chosen], NOISE), strict=True):
            check(got, from_scratch(net, text, row))
            drafted += 1
        drafter.keep(
            [
                text.keep(row.num_pending + int(rng.integers(0, 6)))
                for text, row in zip(active, rows, strict=True)
            ]
        )
    assert drafted > 10


def test_rows_together_equal_rows_alone(tmp_path: Path) -> None:
    net, rng = block_net(tmp_path, **SLIDING), np.random.default_rng(7)
    texts = [Text(name, rng, temperature) for name, temperature in enumerate((0.9, 0.0, 0.5, 0.0))]
    together, alone = make(net), [make(net) for _ in texts]
    kept = [text.keep(count) for text, count in zip(texts, (9, 1, 30, 17), strict=True)]
    together.keep(kept)
    rows = [text.row(pending) for text, pending in zip(texts, (1, 2, 4, 3), strict=True)]
    for row, drafter, item, got in zip(rows, alone, kept, together.propose(rows, NOISE), strict=True):
        drafter.keep([item])
        want = drafter.propose([row], NOISE)[0]
        assert got is not None and want is not None and want.logprobs is not None
        assert got.token_ids.shape == (BLOCK - row.num_pending, 8)
        assert np.array_equal(got.token_ids, want.token_ids)
        assert got.logprobs is not None and np.abs(got.logprobs - want.logprobs).max() < 1e-5


def test_features_that_are_part_of_a_pass_are_copied(tmp_path: Path) -> None:
    net, text = block_net(tmp_path), Text(0, np.random.default_rng(1))
    drafter = make(net)
    item = text.keep(9)
    buffer = torch.cat((item.features, item.features))
    drafter.keep([KeptTokens(item.request_id, item.start, buffer[: len(item.features)], item.pages)])
    buffer.fill_(float("nan"))
    row = text.row(1)
    check(drafter.propose([row], NOISE)[0], from_scratch(net, text, row))


def test_a_smaller_depth_cuts_the_whole_block(tmp_path: Path) -> None:
    net, text = block_net(tmp_path), Text(0, np.random.default_rng(2))
    drafter = make(net)
    drafter.keep([text.keep(6)])
    row = text.row(2, depth=3)
    check(drafter.propose([row], NOISE)[0], from_scratch(net, text, row)[:3])
    assert drafter.propose([text.row(2, depth=99)], NOISE)[0].token_ids.shape == (6, 8)


def test_shorter_blocks_only_where_they_are_allowed(tmp_path: Path) -> None:
    net, text = block_net(tmp_path), Text(0, np.random.default_rng(3))
    drafter = make(net, block_lengths=(4, 6))
    drafter.keep([text.keep(5)])
    for depth, pending, length in ((3, 1, 4), (3, 2, 6), (5, 1, 6), (6, 1, 8), (0, 1, 8)):
        row = text.row(pending, depth=depth)
        want = from_scratch(net, text, row, length)
        check(drafter.propose([row], NOISE)[0], want[: depth or None])


def test_it_says_when_it_cannot_draft(tmp_path: Path) -> None:
    net, text = block_net(tmp_path), Text(0, np.random.default_rng(4))
    drafter = make(net, known_tokens=2)
    assert drafter.can_propose(text.row(1))
    drafter.keep([text.keep(5)])
    assert drafter.can_propose(text.row(2)) and not drafter.can_propose(text.row(3))
    assert not drafter.can_propose(text.row(0))
    assert not make(net, known_tokens=50).can_propose(Text(1, np.random.default_rng(0)).row(BLOCK))
    text.num_cached += 1
    assert not drafter.can_propose(text.row(1))
    assert drafter.propose([text.row(1)], NOISE) == [None]
    # Behind the gap nothing helps until the request is adopted anew.
    drafter.keep([text.keep(3)])
    assert not drafter.can_propose(text.row(1))
    drafter.adopt(text.name, text.num_cached)
    assert drafter.can_propose(text.row(1))
    drafter.forget(text.name)
    assert not drafter.can_propose(text.row(1))


def test_settled_pages_serve_another_request(tmp_path: Path) -> None:
    net, rng = block_net(tmp_path), np.random.default_rng(5)
    first, drafter = Text(0, rng), make(net)
    drafter.keep([first.keep(4), first.keep(7)])
    assert drafter.prepare_sharing(first.name, first.pages[:2], 8)
    assert not drafter.prepare_sharing(first.name, first.pages, 12)
    second = Text(1, rng)
    second.tokens[:8], second.features[:8], second.pages[:2] = (
        first.tokens[:8],
        first.features[:8],
        first.pages[:2],
    )
    drafter.adopt(second.name, 8)
    second.num_cached = 8
    drafter.keep([second.keep(3)])
    rows = [first.row(1), second.row(2)]
    for text, row, got in zip((first, second), rows, drafter.propose(rows, NOISE), strict=True):
        check(got, from_scratch(net, text, row))


def test_a_repeated_start_adds_only_what_is_new(tmp_path: Path) -> None:
    net, text = block_net(tmp_path), Text(0, np.random.default_rng(6))
    drafter = make(net)
    drafter.keep([text.keep(5)])
    text.num_cached = 2
    drafter.keep([text.keep(6)])
    row = text.row(1)
    check(drafter.propose([row], NOISE)[0], from_scratch(net, text, row))


def test_a_failed_pass_leaves_the_context_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, text = block_net(tmp_path), Text(0, np.random.default_rng(8))
    drafter = make(net)
    drafter.keep([text.keep(5)])
    with monkeypatch.context() as patch:
        patch.setattr(net, "ingest", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            drafter.propose([text.row(1)], NOISE)
    row = text.row(1)
    check(drafter.propose([row], NOISE)[0], from_scratch(net, text, row))


def test_a_misfit_is_refused_by_name(tmp_path: Path) -> None:
    net = block_net(tmp_path)
    narrow = Face()
    narrow.hidden_size = 32
    with pytest.raises(ModelError, match="hidden_size"):
        BlockDrafter(net, narrow, SHAPE)
    for values in ({"known_tokens": 0}, {"ranks": 0}, {"block_lengths": (9,)}, {"max_waiting": -1}):
        with pytest.raises(ConfigError, match=next(iter(values))):
            make(net, **values)
    described = make(net).describe()
    assert described["block_size"] == BLOCK and described["rope_theta"] == 10_000.0


@pytest.fixture
def kernel_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DFlash:
    """A network in float32 on a device that counts as one with kernels."""
    monkeypatch.setattr(kernels, "has_kernels", lambda device: True)
    save_drafter(tmp_path)
    return load_drafter(tmp_path, torch.float32, layout="out_in")


@pytest.mark.parametrize(
    ("limit", "options", "said"),
    [
        ("", {"ranks": 65}, "64 candidates per token, not 65"),
        ("MAX_VOCAB", {}, "3 tokens in a vocabulary"),
        ("MAX_POOL_VALUES", {}, "K/V pools of up to 0 tokens"),
    ],
)
def test_what_the_kernels_cannot_rank_or_address_runs_by_plain_torch(
    kernel_net: DFlash,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limit: str,
    options: dict[str, int],
    said: str,
) -> None:
    if limit:
        monkeypatch.setattr(support, limit, 3)
    with caplog.at_level("WARNING"):
        drafter = BlockDrafter(kernel_net, FACE, SHAPE, BlockOptions(**options))  # type: ignore[arg-type]
    assert drafter.device is None and said in drafter.kernel_refusal
    assert f"plain torch: {drafter.kernel_refusal}" in caplog.text
    assert drafter.describe()["kernel_refusal"] == drafter.kernel_refusal
    off = BlockDrafter(kernel_net, FACE, SHAPE, BlockOptions(kernels="off", **options))  # type: ignore[arg-type]
    assert off.device is None and not off.kernel_refusal


def test_narrow_weights_without_other_passes_are_refused(
    kernel_net: DFlash, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DFlash, "has_plain_passes", False)
    with pytest.raises(ModelError, match=r"few bits need kernels: .* 64 candidates"):
        BlockDrafter(kernel_net, FACE, SHAPE, BlockOptions(ranks=65))


def test_on_a_device_features_wait_until_somebody_drafts_or_there_are_too_many(
    tmp_path: Path,
) -> None:
    """Those of which most waits, once all together are too many."""

    class Device:
        max_waiting = 700

    drafter, read = make(block_net(tmp_path)), list[list[int]]()
    drafter.device = Device()  # type: ignore[assignment]
    drafter._read_in = lambda portions: read.append([p.stop for p in portions])  # type: ignore[method-assign, assignment]
    one = torch.zeros(1, 1)

    def keep(*tokens: tuple[str, int]) -> None:
        drafter.keep([KeptTokens(n, 0, one.expand(k, 1), []) for n, k in tokens])

    keep(("a", 100), ("b", 400), ("c", 150))
    assert not read
    keep(("a", 100), ("b", 400), ("d", 90))
    assert read == [[400, 100]], "740 wait: as many of the longest as one pass takes"


def test_on_a_device_that_shares_pages_features_are_read_in_for_many_requests_at_once(tmp_path: Path) -> None:
    """They have to be read in when their request ends, and many requests take little longer than one."""

    class Device:
        max_waiting = 100_000

    drafter, read = make(block_net(tmp_path)), list[list[int]]()
    drafter.device = Device()  # type: ignore[assignment]
    drafter._read_in = lambda portions: read.append([p.stop for p in portions])  # type: ignore[method-assign, assignment]
    one = torch.zeros(1, 1)

    def keep(*tokens: tuple[str, int], shared: str = "") -> None:
        drafter.keep([KeptTokens(n, 0, one.expand(k, 1), [], to_be_shared=n == shared) for n, k in tokens])

    keep(("a", 300), ("b", 200))
    assert not read
    keep(("c", 10), shared="c")
    assert read == [[10]], "the prompt that is shared next"
    read.clear()
    keep(("a", 300), ("d", 9))
    assert read == [[300, 9]], "519 wait, more than one pass takes: those that this pass has more of"
