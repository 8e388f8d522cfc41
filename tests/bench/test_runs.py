"""Contenders on a tiny pair: the same text, clocks and counts that fit, nobody learns from another."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.equivalence.world import STRICT, World
from wager.bench.peers import Peer, PeerSource, assistant_beside, load_peers
from wager.bench.plan import RunOptions
from wager.bench.records import Answer, Difference, Timing
from wager.bench.runs import Encoded, PolicyContender, difference, encode, measure
from wager.bench.suites import BenchPrompt
from wager.bench.ties import gap_at, judged
from wager.errors import ConfigError, ModelError
from wager.llm import LLM
from wager.records import SamplingParams

OPTIONS = RunOptions(max_tokens=10, warmup_tokens=4, seed=3)
PROMPTS = [
    BenchPrompt("code", "code/0", "def f(x):"),
    BenchPrompt("prose", "prose/0", "the cat sat on the mat, the cat sat"),
]


@pytest.fixture(scope="module")
def llm(pair: World) -> LLM:
    return LLM(pair.target, drafter=pair.chain, num_pages=256, page_size=8, prefix_reuse=False, **STRICT)


@pytest.fixture(scope="module")
def prompts(llm: LLM) -> list[Encoded]:
    return encode(llm, PROMPTS, OPTIONS.max_tokens)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_whole_run(llm: LLM, prompts: list[Encoded], temperature: float) -> None:
    contenders = [PolicyContender(llm, name) for name in ("ar", "auto", "fixed:3")]
    seen: list[tuple[int, int, str]] = []
    found = measure(
        contenders, prompts, replace(OPTIONS, temperature=temperature, rounds=2), lambda *a: seen.append(a)
    )
    assert found.finished and found.differences == []
    assert len(found.runs) == 2 * 2 * 6 and found.compared == {"ar": 8, "auto": 8, "fixed:3": 8}
    assert seen[0] == (0, 4, "warm-up") and seen[-1] == (4, 4, "done")
    assert [label for _, _, label in seen[1:-1]] == ["code/0", "prose/0"] * 2
    for run in found.runs:
        clock = run.timing
        assert clock.num_tokens == 10 and 0.0 < clock.first_s <= clock.wall_s and clock.num_first >= 1
    plain, fixed = found.counts["ar", "code"], found.counts["fixed:3", "prose"]
    assert set(plain.bets) == {0} and plain.steps == plain.emitted == 4 * 9 and not plain.accepted
    assert set(plain.drafters) == {""} and plain.plain_ms == pytest.approx(plain.spent_ms)
    assert (
        max(fixed.bets) == 3
        and fixed.drafters["chain"] > 0
        and sum(fixed.accepted.values()) == fixed.steps - fixed.bets[0]
    )
    assert fixed.emitted + fixed.prompt_steps == 40 and fixed.emitted > fixed.steps


def test_policies_start_cold_and_learn_alone(llm: LLM, prompts: list[Encoded]) -> None:
    contenders = [PolicyContender(llm, name) for name in ("ar", "fixed:3", "fixed:2")]
    cold = contenders[1].controller
    measure(contenders, prompts, OPTIONS)
    stats = [contender.controller.experience.stats for contender in contenders]
    assert contenders[1].controller is not cold, "what the warm-up taught is forgotten"
    # 2 prompts, each answered twice; the warm-up's tokens are not among them.
    assert [one.emitted >= 40 for one in stats] == [True] * 3 and all(one.emitted < 60 for one in stats)
    assert stats[0].drafted == 0 and stats[1].drafted > 0 and stats[2].drafted > 0
    assert len({id(contender.controller.experience) for contender in contenders}) == 3


def test_no_drafter_does_anything_for_plain_decoding(
    llm: LLM, prompts: list[Encoded], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = llm.engine
    controller = engine.controller
    seen: list[object] = []
    calls: list[str] = []
    step = engine.step

    def watched() -> Any:
        seen.append(engine.controller)
        return step()

    monkeypatch.setattr(engine, "step", watched)
    for name, drafter in engine.drafters.items():
        keep = drafter.keep
        monkeypatch.setattr(
            drafter, "keep", lambda kept, name=name, keep=keep: (calls.append(name), keep(kept))
        )
    plain, fixed = PolicyContender(llm, "ar"), PolicyContender(llm, "fixed:2")
    one = plain.answer(prompts[0].token_ids, OPTIONS.params(0))
    assert set(map(id, seen)) == {id(plain.controller)} and not calls
    other = fixed.answer(prompts[0].token_ids, OPTIONS.params(0))
    assert set(calls) == {"chain", "lookup"}
    assert one.token_ids == other.token_ids
    assert engine.controller is controller and engine.telemetry.listener is None


def test_interrupted_it_keeps_what_is_whole(llm: LLM, prompts: list[Encoded]) -> None:
    class Interrupted(PolicyContender):
        answers = 0

        def answer(self, prompt_ids: Sequence[int], params: SamplingParams) -> Answer:
            self.answers += 1
            if self.answers == 6:  # two in the warm-up, two to the first prompt, then the second of the next
                raise KeyboardInterrupt
            return super().answer(prompt_ids, params)

    found = measure([PolicyContender(llm, "ar"), Interrupted(llm, "fixed:2")], prompts, OPTIONS)
    assert not found.finished and {run.prompt for run in found.runs} == {0}
    assert len(found.runs) == 4 and found.kinds == ["code"]


class Liar:
    """Answers with plain decoding's text, but for one token of the second prompt."""

    name, compared = "liar", True

    def __init__(self, plain: PolicyContender, spoilt: list[int]) -> None:
        self.plain, self.spoilt = plain, spoilt

    def begin(self) -> None:
        pass

    def answer(self, prompt_ids: Sequence[int], params: SamplingParams) -> Answer:
        found = self.plain.answer(prompt_ids, params)
        tokens = list(found.token_ids)
        if list(prompt_ids) == self.spoilt and len(tokens) > 4:
            tokens[4] += 1
        return Answer(Timing(1.0, 0.1, len(tokens)), tuple(tokens))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_wrong_text_is_found_and_not_excused(llm: LLM, prompts: list[Encoded], temperature: float) -> None:
    options = replace(OPTIONS, temperature=temperature)
    plain = PolicyContender(llm, "ar")
    found = measure([plain, Liar(plain, prompts[1].token_ids)], prompts, options)
    (one,) = found.differences
    assert (one.contender, one.prompt, one.position) == (
        "liar",
        1,
        4,
    ) and one.own_token == one.plain_token + 1  # type: ignore[operator]
    (told,) = judged(llm, found.differences, prompts, options)
    assert told.gap is not None and told.gap > 1e-6 and not told.excused


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_gap_is_that_of_the_scores(
    pair: World, llm: LLM, prompts: list[Encoded], temperature: float
) -> None:
    """Against transformers' scores of plain decoding's own text, with the noise of tree/noise."""
    from wager.tree.noise import gumbel

    params = replace(OPTIONS, temperature=temperature).params(0)
    ids = prompts[0].token_ids
    text = PolicyContender(llm, "ar").answer(ids, params).token_ids
    with torch.inference_mode():
        logits = pair.reference.double()(torch.tensor([[*ids, *text]])).logits[0]
    for position in (0, 1, 7):
        scores = logits[len(ids) + position - 1]
        if temperature:
            noise = gumbel(params.seed, len(ids) + position, len(scores))
            scores = scores / temperature + torch.from_numpy(noise)
        assert int(scores.argmax()) == text[position]
        best = scores.topk(2).values
        assert gap_at(llm, ids, params, position) == pytest.approx(
            float(best[0] - best[1]), rel=1e-4, abs=1e-6
        )


def test_where_texts_part() -> None:
    assert difference("x", 0, (1, 2, 3), [1, 2, 3]) is None
    assert difference("x", 0, (1, 2, 3), (1, 4, 3)) == Difference("x", 0, 1, 2, 4)
    assert difference("x", 0, (1, 2, 3), (1, 2)) == Difference("x", 0, 2, 3, None)


def test_long_prompts_lose_their_beginning(llm: LLM) -> None:
    long = BenchPrompt("code", "code/9", "word " * 2000)
    (found,) = encode(llm, [long], 12)
    assert len(found.token_ids) == llm.engine.parts.max_context - 12 and found.cut > 0
    assert found.token_ids == llm.encode(long.text)[-len(found.token_ids) :]
    with pytest.raises(ConfigError, match="max_tokens"):
        encode(llm, [long], llm.engine.parts.max_context)


def test_a_question_is_put_as_a_chat_where_there_is_a_template(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Template:
        def render(self, messages: list[dict[str, str]], **_options: object) -> str:
            return f"Q: {messages[0]['content']} A:"

    question = BenchPrompt("gsm8k", "g/0", "How many?", True)
    assert encode(llm, [question], 4)[0].token_ids == llm.encode("How many?")
    monkeypatch.setattr(llm, "chat_template", Template())
    wanted = llm.encode([{"role": "user", "content": "How many?"}])
    assert encode(llm, [question], 4)[0].token_ids == wanted
    assert encode(llm, [replace(question, as_chat=False)], 4)[0].token_ids == llm.encode("How many?")


@pytest.fixture(scope="module")
def source(pair: World, llm: LLM) -> PeerSource:
    folder = llm.engine.parts.folder
    return PeerSource(folder, assistant_beside(folder, "auto"), torch.float64, torch.device("cpu"), 1)


def test_peers_write_the_same_text(llm: LLM, prompts: list[Encoded], source: PeerSource) -> None:
    names = ["transformers", "assisted", "prompt-lookup"]
    contenders: list[Any] = [PolicyContender(llm, "ar"), *load_peers(names, source, greedy=True)]
    found = measure(contenders, prompts, OPTIONS)
    assert found.differences == [] and found.compared["assisted"] == 4
    assert all(run.timing.num_tokens == 10 and run.timing.num_first >= 1 for run in found.runs)
    assert all(0.0 < run.timing.first_s <= run.timing.wall_s for run in found.runs)
    assert ("assisted", "code") not in found.counts


def test_sampled_peers_are_not_compared(llm: LLM, prompts: list[Encoded], source: PeerSource) -> None:
    (peer,) = load_peers(["assisted"], source, greedy=False)
    found = measure([PolicyContender(llm, "ar"), peer], prompts, replace(OPTIONS, temperature=0.9))
    assert found.finished and "assisted" not in found.compared and found.differences == []
    params = OPTIONS.params(0)
    sampled = replace(params, temperature=0.9)
    assert (
        peer.answer(prompts[0].token_ids, sampled).token_ids
        == peer.answer(prompts[0].token_ids, sampled).token_ids
    )


def test_the_end_of_text_is_ignored_by_peers(
    pair: World, llm: LLM, prompts: list[Encoded], source: PeerSource
) -> None:
    """Whatever the model calls its end: the text is plain decoding's, that token included."""
    plain = PolicyContender(llm, "ar").answer(prompts[0].token_ids, OPTIONS.params(0))
    (peer,) = load_peers(["transformers"], source, greedy=True)
    peer.model.config.eos_token_id = plain.token_ids[2]
    assert peer.answer(prompts[0].token_ids, OPTIONS.params(0)).token_ids == plain.token_ids


def test_peers_that_cannot_be_had(source: PeerSource, tmp_path: Any) -> None:
    assert load_peers([], source, greedy=True) == []
    with pytest.raises(ConfigError, match="assistant"):
        load_peers(["assisted"], source._replace(assistant=None), greedy=True)
    with pytest.raises(ConfigError, match="vllm"):
        load_peers(["vllm"], source, greedy=True)
    with pytest.raises(ModelError, match="transformers cannot load"):
        load_peers(["transformers"], source._replace(folder=tmp_path), greedy=True)


def test_a_peer_that_fails_is_one_line(source: PeerSource, prompts: list[Encoded]) -> None:
    class Broken:
        device = torch.device("cpu")

        def generate(self, *_args: Any, **_named: Any) -> None:
            raise RuntimeError("no\nmemory")

    (peer,) = load_peers(["transformers"], source, greedy=True)
    broken = Peer("transformers", Broken(), peer.assistance, compared=True)
    with pytest.raises(ModelError, match="peer transformers: no memory"):
        broken.answer(prompts[0].token_ids, OPTIONS.params(0))


def test_whom_assisted_generation_asks(pair: World, llm: LLM, tmp_path: Any) -> None:
    folder = llm.engine.parts.folder
    assert str(assistant_beside(folder, pair.chain)) == pair.chain
    assert assistant_beside(folder, "auto") == folder.resolve().parent / "chain"
    assert assistant_beside(folder, pair.block) == folder.resolve().parent / "chain"
    assert assistant_beside(tmp_path / "target", "lookup") is None
