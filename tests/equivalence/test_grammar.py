"""Constrained text is that of plain constrained decoding, token for token, whatever guesses; and it fits.

Plain constrained decoding is written a second time here: transformers' scores, a fresh matcher for every
token, loops. The models are random, so their own wish and the grammar part at nearly every token.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.equivalence.test_grid import CHOICES, run_case
from tests.equivalence.world import Job, Run, World, drive, is_clean, make_engine, make_world, prompt
from tests.target.reference import choice_of, raw_scores
from tests.text.conftest import train_byte_level
from wager.engine.engine import Engine
from wager.engine.sequence import Finish
from wager.errors import RequestError
from wager.llm import LLM
from wager.records import GrammarSpec, SamplingParams, ThinkingLimit
from wager.text.grammar import JSON_STYLE, json_spec
from wager.text.tokenizer import Tokenizer
from wager.text.tool_grammar import tool_grammar
from wager.text.tools import LINES, ToolParser

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "maxLength": 3},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["cat", "category", "dog"]},
        "ok": {"type": "array", "items": {"type": "boolean"}, "maxItems": 1},
    },
    "required": ["id", "age", "kind", "ok"],
    "additionalProperties": False,
}
OBJECT = json_spec(SCHEMA)
WORDS = GrammarSpec("regex", "(yes|yesterday|no)( [a-f]{1,3}){2,4}")
GRAMMARS = {"object": OBJECT, "words": WORDS}
VOCAB = 336  # a few more than the tokenizer has, as models do


@pytest.fixture(scope="module")
def worded(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A random target with a tokenizer, and its drafters."""
    folder: Path = tmp_path_factory.mktemp("worded")
    world = make_world(folder, vocab_size=VOCAB)
    train_byte_level().save(str(folder / "target" / "tokenizer.json"))
    (folder / "target" / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    world.reference.double()
    return world


@pytest.fixture(scope="module")
def tokenizer(worded: World) -> Tokenizer:
    return Tokenizer.from_folder(worded.target)


def jobs_of(choice: str) -> list[Job]:
    """Five requests: two grammars and a free one by turns; every second prompt repeats itself."""
    found = []
    for i in range(5):
        grammar = (OBJECT, WORDS, None)[i % 3]
        most = 16 if grammar is None else 80
        params = SamplingParams(max_tokens=most, seed=50 + i, grammar=grammar, **CHOICES[choice])
        found.append(Job(prompt(i, 8 + 2 * i, period=4 if i % 2 else 0, vocab=300), params))
    return found


def written_again(world: World, tokenizer: Tokenizer, job: Job) -> list[int]:
    """Plain constrained decoding from its definition."""
    import llguidance

    params, (end,) = job.params, tokenizer.eos_ids
    assert params.grammar is not None
    source = (
        llguidance.LLMatcher.grammar_from_json_schema(params.grammar.text, overrides=JSON_STYLE)
        if params.grammar.kind == "json_schema"
        else llguidance.LLMatcher.grammar_from_regex(params.grammar.text)
    )
    vocabulary = llguidance.LLTokenizer(tokenizer.backend.to_str(), n_vocab=VOCAB, eos_token=end)
    tokens = list(job.prompt)
    while len(tokens) < len(job.prompt) + params.max_tokens:
        matcher = llguidance.LLMatcher(vocabulary, source)
        assert matcher.consume_tokens(tokens[len(job.prompt) :])
        allowed = np.frombuffer(matcher.compute_logit_bias(), np.uint8)[:VOCAB] > 0
        raw = raw_scores(world.reference, tokens)
        tokens.append(choice_of(raw, tokens, len(job.prompt), params, allowed))
        if tokens[-1] == end:
            break
    return tokens[len(job.prompt) :]


@pytest.fixture(scope="module")
def plain(worded: World) -> dict[str, list[list[int]]]:
    """What plain decoding writes, each request alone."""
    engine = make_engine(worded, prefix_reuse=False)
    found = {}
    for choice in CHOICES:
        run = run_case(engine, jobs_of(choice), "alone")
        found[choice] = [run.tokens(number) for number in range(5)]
    return found


@pytest.mark.parametrize("choice", CHOICES)
def test_plain_decoding_is_the_definition(
    worded: World, tokenizer: Tokenizer, plain: dict[str, list[list[int]]], choice: str
) -> None:
    for job, tokens in list(zip(jobs_of(choice), plain[choice], strict=True))[:2]:
        assert tokens == written_again(worded, tokenizer, job)


def fits(text: str, spec: GrammarSpec) -> bool:
    if spec is WORDS:
        return text.split()[0] in ("yes", "yesterday", "no") and 3 <= len(text.split()) <= 5
    value = json.loads(text)
    assert list(value) == ["id", "age", "kind", "ok"]
    assert len(value["id"]) <= 3 and 0 <= value["age"] <= 99
    assert value["kind"] in ("cat", "category", "dog")
    return value["ok"] in ([], [True], [False])


CASES = [
    ("chain", "fixed:5", "greedy", "alone"),
    ("chain", "tree:12", "sampled", "crowd"),
    ("chain", "auto", "penalised", "tight"),
    ("block", "tree:16", "filtered", "crowd"),
    ("block", "fixed:4", "sampled", "tight"),
    ("block", "tree:16", "greedy", "alone"),
    ("lookup", "fixed:6", "greedy", "crowd"),
    ("lookup", "tree:8", "penalised", "alone"),
    ("none", "ar", "filtered", "tight"),
    ("chain", "bod:tree", "filtered", "alone"),
]
PLACES: dict[str, dict[str, Any]] = {
    "alone": {},
    "crowd": {"max_rows": 5, "prefill_chunk": 7, "max_step_tokens": 24},
    "tight": {"num_pages": 25, "page_size": 4, "prefill_chunk": 16},
}


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_same_tokens_with_guesses_and_in_company(
    worded: World, tokenizer: Tokenizer, plain: dict[str, list[list[int]]], case: tuple[str, str, str, str]
) -> None:
    drafter, policy, choice, place = case
    engine = make_engine(worded, drafter, policy, **PLACES[place])
    run = run_case(engine, jobs_of(choice), place)
    num_whole = 0
    for number, (job, want) in enumerate(zip(jobs_of(choice), plain[choice], strict=True)):
        assert run.tokens(number) == want
        if job.params.grammar is not None and run.last(number).finish is Finish.STOP:
            assert fits(tokenizer.decode(want), job.params.grammar)
            num_whole += 1
    assert num_whole >= 3
    assert is_clean(engine) and engine.telemetry.drafter_failures == 0
    assert engine.telemetry.failed_requests == 0
    assert (run.verified > 0) == (drafter != "none")
    if drafter == "chain":
        assert run.accepted > 10
    if place == "tight":
        assert engine.scheduler.num_preemptions > 0


def test_guesses_that_the_grammar_forbids_are_not_verified(worded: World) -> None:
    """The drafter knows nothing of the grammar: of its chain only what the grammar permits is in the pass."""
    engine = make_engine(worded, "chain", "fixed:5")
    seen: list[list[int]] = []
    run_pass = engine.runner.run

    def watched(rows: Any) -> Any:
        seen.extend(row.tree.token_ids.tolist() for row in rows)
        return run_pass(rows)

    engine.runner.run = watched  # type: ignore[method-assign]
    letters = GrammarSpec("regex", "[a-c]{1,40}")
    job = Job(prompt(1, 12, vocab=300), SamplingParams(max_tokens=40, grammar=letters))
    drive(engine, {0: [("letters", job)]}, {})
    assert engine.parts.tokenizer is not None
    text = engine.parts.tokenizer.decode([token for nodes in seen for token in nodes])
    assert set(text) <= set("abc")


@pytest.mark.parametrize("choice", ["greedy", "sampled"])
@pytest.mark.parametrize(
    ("drafter", "policy"), [("chain", "fixed:5"), ("block", "tree:12"), ("lookup", "fixed:4")]
)
@pytest.mark.parametrize("starts_open", [True, False])
def test_the_grammar_waits_for_the_thinking(
    worded: World, tokenizer: Tokenizer, drafter: str, policy: str, choice: str, starts_open: bool
) -> None:
    limit = ThinkingLimit(9, open_ids=(70,), close_ids=(71, 72), starts_open=starts_open)
    bias = None if starts_open else {70: 100.0}
    params = SamplingParams(
        max_tokens=80, seed=3, grammar=OBJECT, thinking=limit, logit_bias=bias, **CHOICES[choice]
    )
    job = Job(prompt(5, 10, period=3, vocab=300), params)
    want = drive(make_engine(worded), {0: [("plain", job)]}, {})
    run = drive(make_engine(worded, drafter, policy), {0: [("guessed", job)]}, {})
    tokens = run.tokens("guessed")
    assert tokens == want.tokens("plain")
    assert run.last("guessed").finish is Finish.STOP
    start = tokens.index(71)
    assert start == 9 + (not starts_open) and tokens[start : start + 2] == [71, 72]
    assert fits(tokenizer.decode(tokens[start + 2 :]), OBJECT)


def test_a_stop_inside_the_grammar_still_ends_the_text(worded: World, tokenizer: Tokenizer) -> None:
    params = SamplingParams(max_tokens=60, grammar=OBJECT, stop=('"kind"',))
    run = drive(make_engine(worded, "chain", "fixed:5"), {0: [("s", Job(prompt(2, 9), params))]}, {})
    sequence = run.last("s").sequence
    assert sequence is not None and sequence.matched_stop == '"kind"'
    assert sequence.text.startswith("{") and '"age"' in sequence.text and '"kind"' not in sequence.text


def test_a_grammar_that_fails_on_the_way_ends_its_request_alone(worded: World) -> None:
    engine = make_engine(worded, "chain", "fixed:3")
    jobs = [Job(prompt(i, 9), SamplingParams(max_tokens=30, grammar=OBJECT)) for i in range(2)]
    run = Run()
    broken = engine.add("broken", jobs[0].prompt, jobs[0].params)
    engine.add("whole", jobs[1].prompt, jobs[1].params)
    for step in range(200):
        if step == 3:
            assert broken.constraint is not None
            broken.constraint.problem = "too complex"
        run.events += engine.step()
        if not engine.has_work:
            break
    assert run.last("broken").finish is Finish.ERROR
    assert run.last("broken").error == "the grammar: too complex"
    assert run.last("whole").finish is not Finish.ERROR
    assert is_clean(engine) and engine.telemetry.failed_requests == 1


def test_a_bad_grammar_is_refused_before_it_runs(worded: World) -> None:
    engine = make_engine(worded)
    bad = SamplingParams(grammar=json_spec({"type": "dict"}))
    with pytest.raises(RequestError, match="grammar: the JSON schema is refused: Invalid type: dict"):
        engine.add("bad", [1, 2], bad)
    assert not engine.has_work


def test_a_model_without_a_tokenizer_refuses_grammars(world: World) -> None:
    with pytest.raises(RequestError, match="no tokenizer"):
        make_engine(world).add("bad", [1, 2], SamplingParams(grammar=WORDS))


def test_rows_without_a_grammar_are_not_masked(worded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Engine = make_engine(worded, "chain", "fixed:3")
    seen: list[Any] = []
    launch = engine.sampler.launch
    monkeypatch.setattr(engine.sampler, "launch", lambda *args: seen.extend(args[1]) or launch(*args))
    jobs = [
        Job(prompt(1, 9), SamplingParams(max_tokens=8)),
        Job(prompt(2, 9), SamplingParams(max_tokens=8, grammar=OBJECT)),
    ]
    drive(engine, {0: list(enumerate(jobs))}, {})
    assert {(row.params.grammar is None, row.allowed is None, row.bare) for row in seen} == {
        (True, True, True),
        (False, False, False),
    }


# -- the pair that ships

QUICK: dict[str, Any] = {"threads": 1, "layout": "out_in", "num_pages": 96, "max_rows": 4, "dtype": "float64"}
ASK = [{"role": "user", "content": "Describe a pet as JSON."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}, "metric": {"type": "boolean"}},
            "required": ["city", "metric"],
            "additionalProperties": False,
        },
    },
}


def test_the_demo_pair_writes_objects_and_calls_that_fit() -> None:
    plain = LLM("demo", None, "ar", **QUICK)
    guessing = LLM("demo", policy="tree:8", **QUICK)
    tokenizer = plain.engine.parts.tokenizer
    assert tokenizer is not None
    call = tool_grammar(LINES, [TOOL], tokenizer, parallel=False)
    params = [
        SamplingParams(max_tokens=90, grammar=OBJECT),
        SamplingParams(max_tokens=90, grammar=OBJECT, temperature=0.9, seed=7),
        SamplingParams(max_tokens=90, grammar=call),
    ]
    want, found = plain.generate([ASK] * 3, params), guessing.generate([ASK] * 3, params)
    assert [one.token_ids for one in found] == [one.token_ids for one in want]
    assert [one.finish_reason for one in found] == ["stop"] * 3
    assert fits(found[0].text, OBJECT) and fits(found[1].text, OBJECT)
    (read,) = ToolParser(LINES, [TOOL]).feed(found[2].text).calls
    assert read.name == "get_weather" and set(json.loads(read.arguments)) == {"city", "metric"}
    assert sum(one.stats.accepted for one in found) > 0
