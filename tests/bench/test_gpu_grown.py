"""The grown pair without weight files: the engine and every peer write the demo pair's text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu.grown import BenchSession, load_llm, plan_assistant, plan_pair, write_folder_without_weights
from bench.gpu.peers import COMPILED, PEERS, Peers
from wager.bench.runs import PolicyContender
from wager.errors import ConfigError
from wager.llm import LLM
from wager.pairs import DEMO
from wager.records import SamplingParams

SHAPE = "hidden=288,layers=21"
PARAMS = SamplingParams(max_tokens=14, ignore_eos=True)
SETTINGS: dict[str, Any] = {"threads": 1, "num_pages": 64, "native": "off"}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BenchSession]:
    made = BenchSession(SHAPE, True, tmp_path_factory.mktemp("out"))
    made.device = torch.device("cpu")
    # In float64 rounding does not change texts, so only an error could.
    made.plan = plan_pair(SHAPE, torch.float64)
    made.llm = load_llm(made.plan, made.folder, made.device, **SETTINGS)
    yield made


@pytest.fixture(scope="module")
def prompt(session: BenchSession) -> list[int]:
    return session.llm.encode(session.prompts[0].text)


@pytest.fixture(scope="module")
def text(session: BenchSession, prompt: list[int]) -> tuple[int, ...]:
    return PolicyContender(session.llm, "ar").answer(prompt, PARAMS).token_ids


def test_the_grown_pair_writes_the_demo_pairs_text(prompt: list[int], text: tuple[int, ...]) -> None:
    demo = LLM(DEMO, dtype="float64", prefix_reuse=False, **SETTINGS)
    (output,) = demo.generate(prompt, PARAMS)
    assert tuple(output.token_ids) == text


def test_the_grown_drafters_guesses_are_accepted(
    session: BenchSession, prompt: list[int], text: tuple[int, ...]
) -> None:
    answer = PolicyContender(session.llm, "fixed:15").answer(prompt, PARAMS)
    assert answer.token_ids == text
    assert answer.counts is not None and answer.counts.emitted > 1.3 * answer.counts.steps


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_writes_the_same_text(
    session: BenchSession, prompt: list[int], text: tuple[int, ...], name: str
) -> None:
    peers = session.__dict__.setdefault("peers", Peers(session))
    answer = peers.make(name, greedy=True).answer(prompt, PARAMS)
    assert answer.token_ids == text, name
    assert answer.timing.num_tokens == PARAMS.max_tokens
    if answer.counts is not None:
        assert answer.counts.emitted > 1.3 * answer.counts.steps, "the loop's drafts are accepted, too"
    assert COMPILED in PEERS
    with pytest.raises(ConfigError, match="peers"):
        peers.make("nobody", greedy=True)


def test_an_assistant_has_the_targets_vocabulary_size() -> None:
    small = plan_assistant(8192, torch.float32).big
    large = plan_assistant(20_000, torch.float32).big
    assert (small.vocab_size, large.vocab_size) == (8192, 20_000)
    assert small.target == large.target and large.hidden_size == small.hidden_size + 64


def test_a_hollow_folder_has_everything_but_weights(tmp_path: Path) -> None:
    write_folder_without_weights(plan_pair(SHAPE, torch.float32), tmp_path / "pair")
    names = {path.relative_to(tmp_path / "pair").as_posix() for path in (tmp_path / "pair").rglob("*.*")}
    assert {"config.json", "tokenizer.json", "drafter/config.json"} <= names
    assert not any("safetensors" in name for name in names)


def test_a_failing_case_is_noted_and_costs_nothing_else(session: BenchSession) -> None:
    with session.case("the first"):
        raise ValueError("no\nluck")
    assert session.errors.pop() == {"case": "the first", "error": "ValueError: no"}
