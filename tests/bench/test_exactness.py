"""The comparison of texts: what it finds, what it lists, and that an interrupted run goes on where it was."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.exactness import Case, Comparer, Options, main, read_cases, resumed, run
from bench.partings import Comparison, Parting, Progress
from tests.equivalence.world import World
from wager.errors import ConfigError, InputError
from wager.llm import LLM
from wager.records import SamplingParams

OPTIONS = Options(max_tokens=12, rows=3, plain_rows=4, control_rows=2, control_every=2, batch=3)
FLAGS = ["--max-tokens", "12", "--rows", "3", "--plain-rows", "4", "--batch", "3", "--threads", "1"]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "seven.jsonl"
    texts = ["a b c", "the cat", "one two one two one", "x" * 2000, "def f(x):", "hello there", "why"]
    rows = [{"bench": f"bench{i % 2}", "id": f"p{i}", "prompt": text} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def llm(pair: World) -> LLM:
    return LLM(pair.target, pair.chain, dtype="float64", layout="out_in", prefix_reuse=False, threads=1)


@pytest.fixture(scope="module")
def cases(llm: LLM, prompts: Path) -> list[Case]:
    return read_cases(llm, prompts, OPTIONS.max_tokens)


def finished(llm: LLM, cases: list[Case], policy: str = "fixed:3") -> Progress:
    progress = Progress(len(cases))
    run(Comparer(llm, Options(policy, *_rest(OPTIONS))), cases, progress, lambda found: None)
    return progress


def _rest(options: Options) -> list[int]:
    names = ("max_tokens", "rows", "plain_rows", "control_rows", "control_every", "batch")
    return [getattr(options, name) for name in names]


def test_in_float64_every_text_is_the_same(llm: LLM, cases: list[Case]) -> None:
    before = llm.engine.controller, llm.engine.drafters, llm.engine.scheduler.config
    found = finished(llm, cases)
    assert found.guessed.total.prompts == found.guessed.total.identical == 7
    assert found.guessed.total.tokens > 7 and found.guessed.verified > found.guessed.accepted > 0
    assert {bench: tally.prompts for bench, tally in found.guessed.by_bench.items()} == {
        "bench0": 4,
        "bench1": 3,
    }
    assert found.control.total.prompts == found.control.total.identical == 5, "places 0, 2 of 3, 3 and 1"
    assert (llm.engine.controller, llm.engine.drafters, llm.engine.scheduler.config) == before


def test_a_prompt_that_is_too_long_is_cut_from_the_left(llm: LLM, cases: list[Case]) -> None:
    assert [case.encoded.cut > 0 for case in cases] == [i == 3 for i in range(7)]
    assert len(cases[3].encoded.token_ids) == llm.engine.parts.max_context - OPTIONS.max_tokens


def test_a_limit_is_spread_over_the_file(llm: LLM, prompts: Path) -> None:
    def ids(limit: int | None) -> list[str]:
        return [case.encoded.prompt.id for case in read_cases(llm, prompts, 12, limit)]

    assert ids(3) == ["p0", "p2", "p4"]
    assert ids(99) == ids(None) == [f"p{i}" for i in range(7)]
    with pytest.raises(ConfigError, match="limit"):
        ids(0)


class Forger(Comparer):
    """Changes one token of what the policy wrote."""

    def answers(self, cases: Any, controller: Any, rows: int) -> Any:
        outputs = super().answers(cases, controller, rows)
        if controller.policy.name != "ar":
            for case, output in zip(cases, outputs, strict=True):
                if case.encoded.prompt.id == "p4":
                    output.token_ids[2] = (output.token_ids[2] + 1) % 300
        return outputs


def forged(llm: LLM, cases: list[Case], near: float | None) -> Progress:
    comparer, progress = Forger(llm, Options("fixed:3", *_rest(OPTIONS))), Progress(len(cases))
    comparer.near = near
    run(comparer, cases, progress, lambda found: None)
    return progress


def test_a_difference_is_listed_with_both_tokens_and_the_gap(llm: LLM, cases: list[Case]) -> None:
    found = forged(llm, cases, 1e-9)
    assert (found.guessed.total.identical, found.guessed.total.different) == (6, 1)
    [parting] = found.guessed.partings
    assert (parting.id, parting.bench, parting.position) == ("p4", "bench0", 2)
    (output,) = llm.generate(cases[4].encoded.token_ids, SamplingParams(max_tokens=3, logprobs=2))
    assert output.logprobs is not None
    scores: Any = output.logprobs[2]
    assert parting.plain_token == scores.token_ids[0] == output.token_ids[2]
    assert parting.own_token == (output.token_ids[2] + 1) % 300
    assert parting.gap == pytest.approx(scores.logprobs[0] - scores.logprobs[1], abs=1e-6)
    assert not parting.near_tie


def test_the_near_tie_rule_excuses_what_is_nearer(llm: LLM, cases: list[Case]) -> None:
    total = forged(llm, cases, 100.0).guessed.total
    assert (total.identical, total.near_ties, total.different) == (6, 1, 0)
    assert forged(llm, cases, None).guessed.total.different == 1, "without a rule nothing is excused"


def test_an_interrupted_run_goes_on(
    pair: World, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    flags = ["--prompts", str(prompts), "--model", pair.target, "--drafter", pair.chain, *FLAGS]
    out = tmp_path / "part.json"
    compare = Comparer.compare

    def stop_at_the_second(self: Comparer, some: Any, progress: Progress) -> None:
        if progress.done:
            raise KeyboardInterrupt
        compare(self, some, progress)

    monkeypatch.setattr(Comparer, "compare", stop_at_the_second)
    assert main([*flags, "--json", str(out)]) == 130
    left = json.loads(out.read_text())["data"]
    assert (left["done"], left["finished"]) == (3, False)
    monkeypatch.setattr(Comparer, "compare", compare)
    assert main([*flags, "--json", str(out), "--resume"]) == 0
    record = json.loads(out.read_text())
    assert record["data"]["finished"] and record["data"]["guessed"]["total"]["prompts"] == 7
    assert record["config"]["cut_from_the_left"] == 1 and record["config"]["prompts"] == "seven.jsonl"
    assert "7 texts" in capsys.readouterr().out
    with pytest.raises(InputError, match="max_tokens = 12, not 9"):
        main([*flags, "--max-tokens", "9", "--json", str(out), "--resume"])


def test_progress_comes_back_equal() -> None:
    guessed = Comparison(verified=5, accepted=2)
    guessed.enter("a", 12, None)
    guessed.enter("b", 9, Parting("b", "b/1", 3, 7, 8, "x", "y", 0.5, False))
    progress = Progress(10, 2, 1.5, guessed)
    assert Progress.from_dict(json.loads(json.dumps(progress.as_dict()))) == progress


@pytest.mark.parametrize("text", ["", "{", "[]", '{"config": {}, "data": {"done": 1}}'])
def test_a_file_without_a_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InputError, match="resume"):
        resumed(tmp_path / "bad.json", {})


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="rows = 0"):
        Options(rows=0)
