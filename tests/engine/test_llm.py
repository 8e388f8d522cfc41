"""The offline face: streams and batches, closing early, changing the policy on the way."""

import pytest

from tests.engine.test_endings import load
from tests.equivalence.world import World, is_clean, prompt
from wager.errors import ConfigError, RequestError
from wager.llm import LLM
from wager.records import SamplingParams

TEXTS = ["The quick", "brown fox jumps over", "def main(argv):", "42 pages"]
SAMPLED = SamplingParams(max_tokens=30, temperature=0.9, seed=3)


@pytest.fixture(scope="module")
def llm(speaking: World) -> LLM:
    return load(speaking, "chain", "fixed:5")


def test_a_stream_is_what_generate_returns(llm: LLM) -> None:
    outputs = llm.generate(TEXTS, SAMPLED)
    texts, ids = ["" for _ in TEXTS], [[] for _ in TEXTS]
    last = {}
    for event in llm.stream(TEXTS, SAMPLED):
        assert event.index not in last
        texts[event.index] += event.text
        ids[event.index] += event.token_ids
        assert len(event.token_ids) == len(event.origins)
        if event.finished:
            last[event.index] = event.output
    assert texts == [output.text for output in outputs]
    assert ids == [output.token_ids for output in outputs]
    assert sorted(last) == list(range(len(TEXTS)))


def test_a_batch_is_what_each_says_alone(llm: LLM) -> None:
    each = [SamplingParams(max_tokens=10 + i, temperature=0.3 * i, seed=i) for i in range(len(TEXTS))]
    together = llm.generate(TEXTS, each)
    for text, params, output in zip(TEXTS, each, together, strict=True):
        (own,) = llm.generate(text, params)
        assert (own.token_ids, own.text) == (output.token_ids, output.text)


@pytest.mark.parametrize("after", [0, 1, 4])
def test_closing_a_stream_ends_its_requests(llm: LLM, after: int) -> None:
    stream = llm.stream(TEXTS, SAMPLED)
    for _ in range(after):
        next(stream)
    stream.close()
    assert is_clean(llm.engine) and not llm.engine.has_work
    llm.engine.check()


def test_the_policy_may_change_in_mid_stream(llm: LLM) -> None:
    (want,) = llm.generate(TEXTS[0], SAMPLED)
    found, bets = [], []
    policies = iter(["ar", "tree:9", "entropy+fixed:4", "auto", "ema+tree:3", "bod", "fixed:2"] * 9)
    for event in llm.stream(TEXTS[0], SAMPLED):
        found += event.token_ids
        bets.append(event.bet)
        llm.set_policy(next(policies))
    llm.set_policy("fixed:5")
    assert found == want.token_ids and len(set(bets)) > 2


def test_a_bad_policy_is_refused_and_the_old_one_stays(llm: LLM) -> None:
    with pytest.raises(ConfigError):
        llm.set_policy("guess:everything")
    assert llm.engine.controller.policy.name == "fixed:5"


def test_params_must_fit_the_prompts(llm: LLM) -> None:
    with pytest.raises(RequestError):
        llm.generate(TEXTS, [SAMPLED])
    with pytest.raises(RequestError):
        llm.generate([])


def test_settings_reach_the_engine_and_unknown_ones_are_refused(world: World) -> None:
    llm = load(world, page_size=4, num_pages=12, max_rows=2, order="fair", prefix_reuse=False)
    assert llm.engine.scheduler.config.max_rows == 2 and llm.engine.scheduler.memory.index is None
    with pytest.raises(ConfigError, match="page_size"):
        load(world, page_sise=4)


def test_streams_may_alternate(world: World) -> None:
    llm = load(world, "chain", "fixed:3")
    params = SamplingParams(max_tokens=12)
    want = [llm.generate(prompt(i, 8), params)[0].token_ids for i in range(2)]
    streams = [llm.stream(prompt(i, 8), params) for i in range(2)]
    found: list[list[int]] = [[], []]
    open_streams = {0, 1}
    while open_streams:
        for i in sorted(open_streams):
            event = next(streams[i], None)
            if event is None:
                open_streams.discard(i)
            else:
                found[i] += event.token_ids
    assert found == want
