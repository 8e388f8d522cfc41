"""What answers contain: several per prompt, chats, prompts of every kind, log-probabilities of prompts."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.test_endings import load
from tests.equivalence.world import World, is_clean
from wager.errors import ConfigError, ModelError, RequestError, WagerError
from wager.llm import LLM
from wager.records import SamplingParams
from wager.text.chat import ChatTemplate
from wager.tree import derive_seed

TEXT = "The quick brown fox"
SAMPLED = SamplingParams(max_tokens=16, temperature=0.9, seed=5, ignore_eos=True)
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def said(llm: LLM, prompt: Any, params: SamplingParams = SAMPLED) -> list[int]:
    return llm.generate(prompt, params)[0].token_ids


# -- several answers


@pytest.mark.parametrize("seed", [5, 0, -3])
def test_n_answers_are_n_requests_with_derived_seeds(llm: LLM, seed: int) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=seed, n=3)
    outputs = llm.generate([TEXT, "42"], params)
    assert [len(output.outputs) for output in outputs] == [3, 3]
    for text, output in zip([TEXT, "42"], outputs, strict=True):
        assert output.outputs[0] is output
        for choice, one in enumerate(output.outputs):
            own = SamplingParams(max_tokens=12, temperature=1.0, seed=derive_seed(seed, choice))
            assert (one.choice, one.index) == (choice, output.index)
            assert one.token_ids == said(llm, text, own)
    assert len({tuple(one.token_ids) for one in outputs[0].outputs}) > 1
    (first,) = llm.generate(TEXT, SamplingParams(max_tokens=12, temperature=1.0, seed=seed))
    assert first.token_ids == outputs[0].token_ids


def test_n_answers_in_a_stream(llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=2, n=2)
    (want,) = llm.generate(TEXT, params)
    found: dict[int, list[int]] = {0: [], 1: []}
    for event in llm.stream(TEXT, params):
        found[event.choice] += event.token_ids
    assert list(found.values()) == [one.token_ids for one in want.outputs]


def test_n_without_a_seed_differs(llm: LLM) -> None:
    (output,) = llm.generate(TEXT, SamplingParams(max_tokens=12, temperature=1.5, n=4))
    assert len({tuple(one.token_ids) for one in output.outputs}) > 1


def test_the_engine_itself_makes_one_answer(llm: LLM) -> None:
    with pytest.raises(RequestError, match="n:"):
        llm._calls.ask(lambda engine: engine.add("x", [1], SamplingParams(n=2)))
    with pytest.raises(RequestError, match="n:"):
        llm.record_trace(TEXT, SamplingParams(n=2), "trace.npz")
    with pytest.raises(RequestError, match="n:"):
        SamplingParams(n=0)


# -- prompts


def test_every_kind_of_ids(llm: LLM) -> None:
    ids = llm.encode(TEXT)
    want = said(llm, ids)
    kinds: list[Any] = [
        tuple(ids),
        np.array(ids),
        np.array(ids, np.int16),
        torch.tensor(ids),
        list(np.array(ids)),
        list(torch.tensor(ids)),
        {"prompt_token_ids": ids},
        {"prompt_token_ids": torch.tensor(ids), "prompt": None},
    ]
    for kind in kinds:
        assert said(llm, kind) == want
        assert said(llm, [kind]) == want
    for batch in (np.array([ids, ids]), torch.tensor([ids, ids]), [np.array(ids), torch.tensor(ids)]):
        assert [output.token_ids for output in llm.generate(batch, SAMPLED)] == [want, want]
    assert llm.generate(ids, SAMPLED)[0].prompt is None


def test_texts_in_dicts(llm: LLM) -> None:
    want = said(llm, TEXT)
    (output,) = llm.generate({"prompt": TEXT}, SAMPLED)
    assert (output.token_ids, output.prompt) == (want, TEXT)
    mixed = [{"prompt": TEXT}, TEXT, {"prompt_token_ids": llm.encode(TEXT), "prompt": "shown"}]
    outputs = llm.generate(mixed, SAMPLED)
    assert [one.token_ids for one in outputs] == [want] * 3
    assert [one.prompt for one in outputs] == [TEXT, TEXT, "shown"]


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        ([], "empty"),
        ([[]], "empty"),
        (7, "neither"),
        (None, "neither"),
        (b"bytes", "neither"),
        ([1.5, 2.5], "neither"),
        ([True, False], "neither"),
        ([1, "two"], "neither"),
        (np.array([1.0, 2.0]), "neither"),
        (np.zeros((2, 2, 2), np.int64), "neither"),
        ({"text": "x"}, "'text'"),
        ({}, "none of its keys"),
        ({"prompt": 5}, "'prompt'"),
        ({"prompt_token_ids": "abc"}, "list of ids"),
        ({"prompt": "x", "multi_modal_data": {"image": 1}}, "multi_modal_data"),
        ([{"role": "user", "content": "hello"}], "no chat template"),
    ],
    ids=str,
)
def test_prompts_that_are_none(llm: LLM, prompt: Any, word: str) -> None:
    with pytest.raises(RequestError) as error:
        llm.generate(prompt, SAMPLED)
    assert word in str(error.value) and str(error.value).startswith("prompt")
    assert is_clean(llm.engine)


def test_both_names_of_params(llm: LLM) -> None:
    want = said(llm, TEXT)
    assert llm.generate(TEXT, sampling_params=SAMPLED)[0].outputs[0].token_ids == want
    assert [t for e in llm.stream(TEXT, sampling_params=[SAMPLED]) for t in e.token_ids] == want
    with pytest.raises(RequestError, match="sampling_params"):
        llm.generate(TEXT, SAMPLED, sampling_params=SAMPLED)
    with pytest.raises(RequestError, match="params"):
        llm.generate(TEXT, {"temperature": 1.0})  # type: ignore[arg-type]


def test_paths(speaking: World) -> None:
    llm = LLM(
        Path(speaking.target),
        Path(speaking.chain),
        "fixed:3",
        torch.float64,
        torch.device("cpu"),
        num_pages=64,
    )
    assert llm.config.model.model == speaking.target and "chain" in llm.engine.drafters
    assert (llm.config.model.dtype, llm.config.model.device) == ("float64", "cpu")


def test_a_progress_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    (want, _) = llm.generate([TEXT, TEXT], SAMPLED)
    assert capsys.readouterr().err == ""
    (output, _) = llm.generate([TEXT, TEXT], SAMPLED, use_tqdm=True)
    shown = capsys.readouterr()
    assert output.token_ids == want.token_ids
    assert "2/2" in shown.err and "32 tokens" in shown.err and shown.out == ""


# -- chats


def test_chat_is_generate_with_the_rendered_prompt(chat_llm: LLM) -> None:
    (output,) = chat_llm.chat(CHAT, SAMPLED)
    assert output.prompt == "system: Be brief.\nuser: Hello there\nassistant: "
    assert output.token_ids == said(chat_llm, CHAT) == said(chat_llm, output.prompt_ids)
    other = [{"role": "user", "content": "Another"}]
    both = chat_llm.chat([CHAT, other], [SAMPLED, SAMPLED])
    assert [one.token_ids for one in both] == [output.token_ids, said(chat_llm, other)]


def test_what_the_template_is_given(chat_llm: LLM) -> None:
    def prompt(**options: Any) -> str:
        return str(chat_llm.chat(CHAT, SAMPLED, **options)[0].prompt)

    assert prompt(enable_thinking=True).endswith("assistant: <think>")
    assert prompt(enable_thinking=False).endswith("assistant: ")
    assert prompt(chat_template_kwargs={"enable_thinking": True}).endswith("<think>")
    assert prompt(add_generation_prompt=False).endswith("Hello there\n")
    assert prompt(tools=[TOOL]).startswith("tools [") and '"add"' in prompt(tools=[TOOL])
    assert prompt(continue_final_message=True).endswith("Hello there")
    with_tools = chat_llm.encode(CHAT, {"enable_thinking": True}, tools=[TOOL])
    options: dict[str, Any] = {"tools": [TOOL], "enable_thinking": True}
    assert with_tools == chat_llm.chat(CHAT, SAMPLED, **options)[0].prompt_ids


def test_tool_marks_are_in_the_text(chat_llm: LLM) -> None:
    tokenizer = chat_llm.engine.parts.tokenizer
    assert tokenizer is not None
    mark = tokenizer.token_id("<tool_call>")
    assert mark is not None
    forced = SamplingParams(max_tokens=2, logit_bias={mark: 100.0}, ignore_eos=True)
    assert "<tool_call>" in chat_llm.chat(CHAT, forced, tools=[TOOL])[0].text
    assert "<tool_call>" not in chat_llm.chat(CHAT, forced)[0].text


def test_chats_that_are_refused(llm: LLM, chat_llm: LLM, chatting: World, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        llm.chat(CHAT)
    for bad in ([], "hello", [{"content": "no role"}], [[]]):
        with pytest.raises(RequestError, match="messages"):
            chat_llm.chat(bad)  # type: ignore[arg-type]
    folder = Path(shutil.copytree(chatting.target, tmp_path / "plain"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    plain = load(World(str(folder), chatting.chain, chatting.block, None))
    with pytest.raises(RequestError, match="tools"):
        plain.chat(CHAT, tools=[TOOL])


def test_another_template_can_be_set(llm: LLM) -> None:
    llm.chat_template = ChatTemplate("{% for message in messages %}<{{ message.content }}>{% endfor %}")
    try:
        assert llm.chat(CHAT, SAMPLED)[0].prompt == "<Be brief.><Hello there>"
    finally:
        llm.chat_template = None


# -- log-probabilities of the prompt


@pytest.mark.parametrize("length", [2, 3, 65, 130, 200])
def test_prompt_logprobs_are_those_of_the_target(world: World, length: int) -> None:
    llm = load(world, "chain", "fixed:4")
    ids = np.random.default_rng(length).integers(0, 64, length).tolist()
    params = SamplingParams(max_tokens=6, prompt_logprobs=3)
    (output,) = llm.generate(ids, params)
    assert output.token_ids == said(llm, ids, SamplingParams(max_tokens=6))
    with torch.no_grad():
        table = world.reference.double()(torch.tensor([ids])).logits[0].log_softmax(-1)
    world.reference.float()
    found = output.prompt_logprobs
    assert found is not None and len(found) == length and found[0] is None
    for place, entry in enumerate(found[1:], 1):
        assert entry is not None
        assert entry.chosen == pytest.approx(table[place - 1, ids[place]].item(), abs=1e-4)
        best = table[place - 1].topk(3)
        assert entry.token_ids == best.indices.tolist()
        assert entry.logprobs == pytest.approx(best.values.tolist(), abs=1e-4)
    assert is_clean(llm.engine)
    llm.engine.check()


def test_prompt_logprobs_agree_with_logprobs(llm: LLM) -> None:
    """An answer that is read as a prompt has the log-probabilities with which it was chosen."""
    (answer,) = llm.generate(TEXT, SamplingParams(max_tokens=30, logprobs=2, ignore_eos=True))
    ids = [*answer.prompt_ids, *answer.token_ids]
    (read,) = llm.generate(ids, SamplingParams(max_tokens=1, prompt_logprobs=2))
    assert read.prompt_logprobs is not None and answer.logprobs is not None
    for own, again in zip(answer.logprobs, read.prompt_logprobs[len(answer.prompt_ids) :], strict=True):
        assert own is not None and again is not None
        assert again.token_ids == own.token_ids
        assert again.chosen == pytest.approx(own.chosen, abs=1e-9)


def test_prompt_logprobs_between_the_steps_of_others(llm: LLM) -> None:
    want = said(llm, TEXT)
    (alone,) = llm.generate("42 pages", SamplingParams(max_tokens=3, prompt_logprobs=0))
    found: list[int] = []
    for number, event in enumerate(llm.stream(TEXT, SAMPLED)):
        found += event.token_ids
        if number == 1:
            (among,) = llm.generate("42 pages", SamplingParams(max_tokens=3, prompt_logprobs=0))
            assert (among.prompt_logprobs, among.token_ids) == (alone.prompt_logprobs, alone.token_ids)
    assert found == want and llm.generate(TEXT, SAMPLED)[0].prompt_logprobs is None


def test_prompt_logprobs_without_room_are_refused(world: World) -> None:
    llm = load(world, num_pages=6)
    stream = llm.stream([1] * 20, SamplingParams(max_tokens=20))
    next(stream)
    with pytest.raises(WagerError, match="prompt_logprobs"):
        llm.generate([2] * 40, SamplingParams(max_tokens=1, prompt_logprobs=1))
    stream.close()
    assert is_clean(llm.engine)


# -- parameters that the model recommends


def recommending(speaking: World, tmp_path: Path, text: str, **settings: Any) -> LLM:
    folder = Path(shutil.copytree(speaking.target, tmp_path / "recommending"))
    (folder / "generation_config.json").write_text(text)
    return LLM(str(folder), None, "ar", "float64", layout="out_in", num_pages=64, threads=1, **settings)


def test_calls_without_params_do_what_the_model_recommends(speaking: World, tmp_path: Path) -> None:
    stated = '{"do_sample": true, "temperature": 0.7, "top_k": 9, "max_new_tokens": 11, "eos_token_id": 2}'
    llm = recommending(speaking, tmp_path, stated)
    assert llm.default_params == SamplingParams(temperature=0.7, top_k=9, max_tokens=11)
    value = {"temperature": 0.7, "top_k": 9, "max_tokens": 11}
    assert llm.notes["default_params"] == {"value": value, "source": "generation_config.json"}
    assert len(llm.generate(TEXT)[0].token_ids) <= 11
    assert said(llm, TEXT, SamplingParams(max_tokens=20)) == said(
        load(speaking), TEXT, SamplingParams(max_tokens=20, stop_token_ids=[2])
    )


@pytest.mark.parametrize("name", ["off", "vllm"])
def test_the_recommendation_can_be_switched_off(speaking: World, tmp_path: Path, name: str) -> None:
    llm = recommending(speaking, tmp_path, '{"temperature": 0.7}', generation_config=name)
    assert llm.default_params == SamplingParams()


def test_a_model_without_a_recommendation_is_greedy(llm: LLM, speaking: World) -> None:
    card = llm.card()
    assert llm.default_params == SamplingParams(**card.sampling.value)
    assert LLM("demo", None, "ar", num_pages=16).default_params == SamplingParams()
    with pytest.raises(ConfigError, match="generation_config"):
        load(speaking, generation_config="on")


@pytest.mark.parametrize("text", ['{"temperature": "hot"}', "[]", "{", '{"top_k": 1.5}', '{"top_p": 7}'])
def test_a_damaged_recommendation_is_named(speaking: World, tmp_path: Path, text: str) -> None:
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        recommending(speaking, tmp_path, text)


# -- values that were silently wrong


def test_stop_texts_need_a_tokenizer(world: World) -> None:
    llm = load(world)
    with pytest.raises(RequestError, match="stop"):
        llm.generate([1, 2], SamplingParams(stop="x"))


@pytest.mark.parametrize("temperature", [1e-40, 1e-37, 9e-7])
def test_temperatures_that_are_too_small(temperature: float) -> None:
    with pytest.raises(RequestError, match="temperature"):
        SamplingParams(temperature=temperature)


def test_the_least_temperature_is_nearly_greedy(llm: LLM) -> None:
    cold = SamplingParams(max_tokens=16, temperature=1e-6, seed=1, ignore_eos=True)
    assert said(llm, TEXT, cold) == said(llm, TEXT, SamplingParams(max_tokens=16, ignore_eos=True))


def test_a_context_beyond_the_models_positions(world: World) -> None:
    with pytest.raises(ConfigError, match="max_context = 513: expected at most 512"):
        load(world, max_context=513)
