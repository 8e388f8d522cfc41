"""The official `anthropic` client against the server: messages, streams, tools, thinking, errors."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.server.harness import Served, wait_until

MESSAGES: Any = [{"role": "user", "content": "The quick brown fox"}]
COLOURS = ["red", "green", "blue"]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": COLOURS}},
    "required": ["colour"],
    "additionalProperties": False,
}
TOOL: Any = {"name": "paint", "description": "Paints the wall.", "input_schema": SCHEMA}


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def create(client: Anthropic, **options: Any) -> Any:
    return client.messages.create(**message_body(**options))


def message_body(**options: Any) -> dict[str, Any]:
    """The client has no temperature argument, so it goes into the extra body."""
    extra = {"temperature": 0, **options.pop("extra_body", {})}
    return {"model": "tiny", "messages": MESSAGES, "max_tokens": 16, "extra_body": extra, **options}


def test_a_message(client: Anthropic) -> None:
    found = create(client, system="Be brief.", metadata={"user_id": "u"})
    assert found.role == "assistant" and found.type == "message" and found.model == "tiny"
    [block] = found.content
    assert block.type == "text" and block.text
    assert found.usage.output_tokens <= 16 and found.stop_reason in ("max_tokens", "end_turn")
    assert found.metrics["speculative_decoding"]["mode"] == "auto"


def test_a_stream_has_the_same_text(client: Anthropic) -> None:
    whole = create(client)
    with client.messages.stream(**message_body()) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens


def test_a_stop_sequence(client: Anthropic) -> None:
    text = create(client).content[0].text
    found = create(client, stop_sequences=[text[2:4]])
    assert found.stop_reason == "stop_sequence" and found.stop_sequence == text[2:4]


def test_an_answer_is_continued(client: Anthropic) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "jumps over"}]
    assert create(client, messages=begun).content[0].type == "text"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "paint"}], ids=str)
def test_a_tool_is_called(client: Anthropic, choice: Any, stream: bool) -> None:
    one = {**choice, "disable_parallel_tool_use": True}
    options: Any = {"tools": [TOOL], "tool_choice": one, "max_tokens": 200}
    if stream:
        with client.messages.stream(**message_body(**options)) as running:
            found = running.get_final_message()
    else:
        found = create(client, **options)
    [use] = found.content
    assert found.stop_reason == "tool_use" and use.type == "tool_use" and use.name == "paint"
    assert use.input["colour"] in COLOURS
    back = [
        *MESSAGES,
        {"role": "assistant", "content": [use.model_dump()]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "done"}]},
                {"type": "text", "text": "Thanks."},
            ],
        },
    ]
    assert create(client, messages=back, tools=[TOOL]).usage.input_tokens > found.usage.input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_followed(client: Anthropic, stream: bool) -> None:
    form: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    options: Any = {"output_config": form, "max_tokens": 200}
    if stream:
        with client.messages.stream(**message_body(**options)) as running:
            found = running.get_final_message()
    else:
        found = create(client, **options)
    [block] = found.content
    assert json.loads(block.text)["colour"] in COLOURS and found.stop_reason == "end_turn"


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_a_separate_block(client: Anthropic, stream: bool) -> None:
    options: Any = {
        "thinking": {"type": "enabled", "budget_tokens": 6},
        "max_tokens": 24,
        "extra_body": {"seed": 7, "temperature": 1},
    }
    if stream:
        with client.messages.stream(**message_body(**options)) as running:
            found = running.get_final_message()
    else:
        found = create(client, **options)
    assert found.content[0].type == "thinking"
    assert found.content[0].signature
    assert found.usage.output_tokens_details.thinking_tokens == 6
    back = [*MESSAGES, {"role": "assistant", "content": [b.model_dump() for b in found.content]}, *MESSAGES]
    assert create(client, messages=back).content


def test_the_model_does_not_think_by_default(client: Anthropic) -> None:
    assert {block.type for block in create(client, max_tokens=40).content} == {"text"}


def test_token_counts(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model="tiny", messages=MESSAGES, system="Be brief.", tools=[TOOL])
    assert counted.input_tokens == create(client, system="Be brief.", tools=[TOOL]).usage.input_tokens


def test_errors_have_the_right_classes(client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        create(client, extra_body={"temperature": -1})
    assert bad.value.body["type"] == "error" and bad.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError) as missing:
        create(client, model="other")
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError):
        create(client, messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}])
    with pytest.raises(anthropic.BadRequestError):
        create(client, tools=[TOOL], tool_choice={"type": "tool", "name": "wash"})


def test_closing_a_stream_frees_its_row(client: Anthropic, server: Served) -> None:
    with client.messages.stream(**message_body(max_tokens=900)) as stream:
        next(iter(stream))
    wait_until(lambda: not server.engine.scheduler.has_work and server.service.bridge.num_open == 0)
