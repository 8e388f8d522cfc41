"""Races of contenders: speeds, failures, the deadline, and texts that differ."""

from collections.abc import Sequence
from typing import Any

import pytest

from bench.gpu.grown import TINY_SHAPE, BenchSession
from bench.gpu.pair import auto_ratios
from bench.gpu.race import Race, speed_ratio, table
from wager.bench.figures import summarise
from wager.bench.plan import RunOptions
from wager.bench.records import Answer, Timing
from wager.bench.runs import Encoded
from wager.bench.suites import BenchPrompt
from wager.errors import ModelError
from wager.records import SamplingParams


class Runner:
    """A contender that takes `seconds` for every answer and fails from answer `fails_at` on."""

    compared = True

    def __init__(self, name: str, seconds: float, fails_at: int = 10**6, token: int = 1) -> None:
        self.name, self.seconds, self.fails_at, self.token = name, seconds, fails_at, token
        self.answers = 0

    def begin(self) -> None:
        pass

    def answer(self, prompt_ids: Sequence[int], params: SamplingParams) -> Answer:
        self.answers += 1
        if self.answers >= self.fails_at:
            raise ModelError(f"{self.name} failed")
        tokens = tuple([self.token] * params.max_tokens)
        return Answer(Timing(self.seconds + 1.0, 1.0, len(tokens)), tokens)


PROMPTS = [Encoded(BenchPrompt(kind, f"{kind}/0", "x"), [1, 2]) for kind in ("code", "prose")]


def race(*runners: Runner, warm: dict[str, list[Encoded]] | None = None) -> Race:
    return Race("greedy", {one.name: one for one in runners}, PROMPTS, warm or {}, RunOptions(5))


def session(tmp_path: Any) -> BenchSession:
    return BenchSession(TINY_SHAPE, True, tmp_path)


def test_speeds_are_relative_to_plain_decoding(tmp_path: Any) -> None:
    made, saved = race(Runner("ar", 8.0), Runner("auto", 2.0), Runner("fixed:2", 4.0)), []
    made.run(session(tmp_path), 1e9, lambda: saved.append(made.done))
    assert saved == [1, 2]
    data = made.as_dict()
    assert data["geometric_mean_behind_the_first_token"] == pytest.approx({"auto": 4.0, "fixed:2": 2.0})
    assert data["geometric_mean"] == pytest.approx({"auto": 3.0, "fixed:2": 9 / 5})
    assert data["by_kind"]["code"]["auto"]["decode_tokens_per_s"] == pytest.approx(4 / 2.0)
    assert data["texts_parted"] == {"ar": 0, "auto": 0, "fixed:2": 0}
    summary = summarise(made.measured)
    assert speed_ratio(summary, "auto", "fixed:2") == pytest.approx({"whole": 5 / 3, "decode": 2.0})
    found = auto_ratios({"greedy": summary})["greedy"]
    assert found["auto over ar"] == pytest.approx({"whole": 3.0, "decode": 4.0})
    assert found["best fixed on the mean"] == "fixed:2"
    assert found["slowest kind of auto"] == pytest.approx(4.0)
    assert len(table(summary)) == 4


def test_a_contender_that_fails_leaves_the_race_alone(tmp_path: Any) -> None:
    here = session(tmp_path)
    made = race(Runner("ar", 8.0), Runner("auto", 2.0, fails_at=3), Runner("fixed:2", 4.0))
    made.run(here, 1e9, lambda: None)
    assert list(made.contenders) == ["ar", "fixed:2"]
    assert [one["error"] for one in here.errors] == ["ModelError: auto failed"]
    data = made.as_dict()
    assert data["prompts_done"] == 2
    assert data["by_kind"]["prose"]["auto"]["speedup"] is None
    assert data["by_kind"]["prose"]["fixed:2"]["decode_speedup"] == pytest.approx(2.0)


def test_a_contender_whose_warm_up_fails_does_not_run(tmp_path: Any) -> None:
    here, peer = session(tmp_path), Runner("slow", 9.0, fails_at=1)
    made = race(Runner("ar", 8.0), peer, warm={"slow": PROMPTS[:1]})
    made.run(here, 1e9, lambda: None)
    assert peer.answers == 1 and list(made.contenders) == ["ar"]


def test_a_race_ends_when_plain_decoding_fails(tmp_path: Any) -> None:
    made = race(Runner("ar", 8.0, fails_at=2), Runner("auto", 2.0))
    with pytest.raises(ModelError, match="plain decoding failed"):
        made.run(session(tmp_path), 1e9, lambda: None)


def test_no_prompt_begins_after_the_deadline(tmp_path: Any) -> None:
    made = race(Runner("ar", 8.0), Runner("auto", 2.0))
    made.run(session(tmp_path), -1.0, lambda: None)
    assert made.done == 0 and made.measured.runs == []


def test_texts_that_differ_from_plain_decoding_are_counted(tmp_path: Any) -> None:
    made = race(Runner("ar", 8.0), Runner("auto", 2.0, token=2))
    made.run(session(tmp_path), 1e9, lambda: None)
    data = made.as_dict()
    assert data["texts_compared"] == {"ar": 4, "auto": 4}
    assert data["texts_parted"] == {"ar": 0, "auto": 4}
    assert {one["position"] for one in data["partings"]} == {0}
