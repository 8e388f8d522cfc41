"""The official `openai` client against the server: chat, streams, tools, schemas, thinking, errors."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.server.harness import Served, wait_until

MESSAGES: Any = [{"role": "user", "content": "The quick brown fox"}]
COLOURS = ["red", "green", "blue"]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "colour": {"enum": COLOURS}},
    "required": ["ok", "colour"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "function": {"name": "paint", "description": "Paints the wall.", "parameters": SCHEMA},
}
OTHER: Any = {"type": "function", "function": {"name": "wash", "parameters": {"type": "object"}}}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "wall", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def chat(client: OpenAI, **options: Any) -> Any:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 16, "temperature": 0, **options}
    return client.chat.completions.create(**body)


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "small"]
    assert client.models.retrieve("small").object == "model"


def test_chat_and_stream_return_the_same_text(client: OpenAI) -> None:
    whole = chat(client)
    streamed = list(chat(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
    assert text == whole.choices[0].message.content
    assert streamed[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert whole.metrics["speculative_decoding"]["mode"] == "auto"


def test_completions(client: OpenAI) -> None:
    body: Any = {"model": "tiny", "prompt": "The quick", "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**body)
    streamed = client.completions.create(**body, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_schema_is_followed(client: OpenAI, temperature: float) -> None:
    found = chat(client, response_format=FORM, temperature=temperature, seed=5, max_tokens=200)
    value = json.loads(found.choices[0].message.content)
    assert set(value) == {"ok", "colour"} and value["colour"] in COLOURS
    assert found.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"paint", "wash"}),
        ({"type": "function", "function": {"name": "paint"}}, {"paint"}),
    ],
    ids=["required", "named"],
)
def test_a_tool_is_called(client: OpenAI, choice: Any, names: set[str], stream: bool) -> None:
    options = {"tools": [TOOL, OTHER], "tool_choice": choice, "max_tokens": 200, "parallel_tool_calls": False}
    found = chat(client, stream=stream, reasoning_effort="none", **options)
    if stream:
        deltas = [chunk.choices[0].delta for chunk in found if chunk.choices]
        calls = [call for delta in deltas for call in delta.tool_calls or ()]
        assert not any(delta.content for delta in deltas)
    else:
        calls = found.choices[0].message.tool_calls
        assert found.choices[0].message.content is None
        assert found.choices[0].finish_reason == "tool_calls"
    [call] = calls
    assert call.function.name in names and call.id.startswith("call_")
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "wash" or arguments["colour"] in COLOURS


def test_a_strict_tool_leaves_the_text_free(client: OpenAI) -> None:
    strict: Any = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    found = chat(client, tools=[strict], reasoning_effort="none").choices[0]
    assert found.message.content and found.message.tool_calls is None and found.finish_reason == "length"
    broken: Any = {**strict["function"], "parameters": {"properties": {"ok": {"type": "wall"}}}}
    with pytest.raises(openai.BadRequestError, match="wall"):
        chat(client, tools=[{"type": "function", "function": broken}])


def test_no_tool_is_called_with_the_choice_none(client: OpenAI) -> None:
    free = chat(client)
    found = chat(client, tools=[TOOL], tool_choice="none")
    assert found.choices[0].message.tool_calls is None
    assert found.choices[0].message.content == free.choices[0].message.content


def test_a_conversation_with_tool_calls_is_accepted(client: OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "paint", "arguments": '{"ok": true}'}}
    conversation = [
        {"role": "developer", "content": "Be brief."},
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "done"}]},
    ]
    found = chat(client, messages=conversation, tools=[TOOL])
    assert found.usage.prompt_tokens > 20


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_thinking_is_separate_and_ends_at_its_budget(client: OpenAI, budget: int, stream: bool) -> None:
    extra = {"thinking": {"type": "enabled", "budget_tokens": budget}, "ignore_eos": True}
    options = {"extra_body": extra, "max_tokens": 24, "temperature": 1, "seed": 2}
    if budget == 0:
        extra["chat_template_kwargs"] = {"enable_thinking": True}
    found = chat(client, stream=stream, **options)
    if stream:
        chunks = [chunk for chunk in found if chunk.choices]
        deltas = [chunk.choices[0].delta for chunk in chunks]
        thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        text = "".join(delta.content or "" for delta in deltas)
        usage, details = chunks[-1].usage, chunks[-1].choices[0].finish_details
    else:
        message = found.choices[0].message
        thought, text = getattr(message, "reasoning_content", ""), message.content
        usage, details = found.usage, found.choices[0].finish_details
    assert usage.completion_tokens_details.reasoning_tokens == budget
    assert details["close_kind"] == "hard" and details["thinking_tokens"] == budget
    assert bool(thought.strip()) <= (budget > 0)
    assert text and "think>" not in thought + text


def test_the_effort_none_disables_thinking(client: OpenAI) -> None:
    found = chat(client, reasoning_effort="none")
    assert found.usage.completion_tokens_details.reasoning_tokens == 0


def test_errors_have_the_right_classes(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        chat(client, temperature=-1)
    assert bad.value.param == "temperature" and bad.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        chat(client, model="other")
    with pytest.raises(openai.BadRequestError) as schema:
        chat(client, response_format={"type": "json_schema", "json_schema": {"schema": {"type": "wall"}}})
    assert "schema" in str(schema.value)
    with pytest.raises(openai.BadRequestError) as long:
        chat(client, messages=[{"role": "user", "content": "word " * 3000}])
    assert long.value.code == "context_length_exceeded"


def test_closing_a_stream_frees_its_rows(client: OpenAI, server: Served) -> None:
    stream = chat(client, stream=True, max_tokens=900, extra_body={"ignore_eos": True}, n=3)
    next(iter(stream))
    assert server.service.bridge.num_open == 3
    stream.close()
    wait_until(lambda: not server.engine.scheduler.has_work and server.service.bridge.num_open == 0)


def test_responses(client: OpenAI) -> None:
    found = client.responses.create(
        model="tiny",
        instructions="Be brief.",
        input="The quick brown fox",
        max_output_tokens=8,
        temperature=0,
    )
    assert found.status == "incomplete" and found.incomplete_details.reason == "max_output_tokens"
    assert found.output[0].type == "message" and found.usage.output_tokens == 8
    items: Any = [{"role": "user", "content": [{"type": "input_text", "text": "The quick brown fox"}]}]
    with client.responses.stream(
        model="tiny", instructions="Be brief.", input=items, max_output_tokens=8, temperature=0
    ) as stream:
        events = list(stream)
        final = stream.get_final_response() if events[-1].type == "response.completed" else None
    assert [event.sequence_number for event in events if hasattr(event, "sequence_number")]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == found.output_text
    assert events[-1].type == "response.incomplete" and final is None


def test_responses_with_tools_schemas_and_thinking(client: OpenAI) -> None:
    flat: Any = [{"type": "function", "name": "paint", "parameters": SCHEMA, "strict": True}]
    called = client.responses.create(
        model="tiny", input="Paint it.", tools=flat, tool_choice="required", parallel_tool_calls=False
    )
    [item] = [part for part in called.output if part.type == "function_call"]  # it may think first
    assert json.loads(item.arguments)["colour"] in COLOURS
    back: Any = [
        {"role": "user", "content": "Paint it."},
        {"type": "function_call", "call_id": item.call_id, "name": "paint", "arguments": item.arguments},
        {"type": "function_call_output", "call_id": item.call_id, "output": "done"},
    ]
    form: Any = {"format": {"type": "json_schema", "name": "wall", "schema": SCHEMA}}
    found = client.responses.create(model="tiny", input=back, text=form)
    assert json.loads(found.output_text)["colour"] in COLOURS
    thought = client.responses.create(
        model="tiny",
        input="Think.",
        max_output_tokens=20,
        extra_body={"reasoning": {"effort": "low", "max_tokens": 5}, "seed": 3},
    )
    assert thought.usage.output_tokens_details.reasoning_tokens <= 5
    assert thought.output[0].type == "reasoning"
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="tiny", input="a", previous_response_id="resp_1")
