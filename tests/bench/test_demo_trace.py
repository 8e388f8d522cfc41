"""The trace that ships is made of whole texts, small, and read back by `wager simulate`."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench import demo_trace
from bench.demo_trace import coarse, first_sequences, main, tokens_of
from tests.equivalence.world import World
from tests.trace.recorded import made_up
from wager.errors import InputError
from wager.trace import load_costs, load_traces, replay


def test_texts_are_taken_until_there_are_enough_tokens() -> None:
    trace = made_up(shape=(4, 40, 5, 3), lengths=(9, 12, 30, 40), p1=True)
    assert [tokens_of(first_sequences(trace, n)) for n in (1, 20, 22, 51, 1000)] == [21, 21, 51, 51, 91]
    kept = first_sequences(trace, 20)
    assert kept.ranks.shape == (2, 12, 5) and [kept.length(i) for i in range(2)] == [9, 12]
    assert kept.target_p1 is not None and kept.target_p1.shape == (2, 12)


def test_rounding_keeps_order_and_a_hundredth() -> None:
    trace = made_up(3)
    trace.logprobs[0, 0] = -np.inf
    kept = coarse(trace).logprobs
    finite = np.isfinite(trace.logprobs)
    assert (np.isfinite(kept) == finite).all() and (kept[~finite] == -np.inf).all()
    assert (np.abs(kept[finite] / trace.logprobs[finite] - 1.0) < 0.01).all()
    whole = kept[np.isfinite(kept).all(axis=3)]
    assert (np.diff(whole, axis=1) <= 0).all()
    assert len(np.unique(kept)) < len(np.unique(trace.logprobs.astype(np.float16)))


@pytest.fixture
def flags(pair: World, tmp_path: Path) -> list[str]:
    texts = tmp_path / "texts.jsonl"
    rows = [{"category": kind, "text": f"{kind} {i} a b"} for kind in ("code", "prose") for i in range(4)]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        *("--texts", str(texts), "--model", pair.target, "--drafter", pair.block, "--threads", "1"),
        *("--tokens", "30", "--max-tokens", "20", "--out", str(tmp_path / "out.npz")),
    ]


def test_a_recording_from_end_to_end(flags: list[str], tmp_path: Path) -> None:
    assert main(flags) == 0
    file = load_traces(tmp_path / "out.npz")
    contents = [(trace.kind, trace.temperature) for trace in file.traces]
    assert contents == [("code", "t0"), ("code", "t08"), ("prose", "t0"), ("prose", "t08")]
    assert file.noised and file.meta["drafter"] == "block" and "/" not in json.dumps(file.meta)
    assert file.meta["tokens"] == sum(map(tokens_of, file.traces))
    for trace in file.traces:
        assert trace.num_sequences >= 2 and tokens_of(trace) >= 30
        assert replay(trace, load_costs("cpu"), "entropy+auto").tokens == tokens_of(trace)


def test_what_is_too_large_to_ship_is_refused(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_trace, "MOST_BYTES", 1000)
    with pytest.raises(InputError, match="too many to ship"):
        main(flags)
    assert not (tmp_path / "out.npz").exists()
