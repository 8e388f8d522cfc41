"""Request bodies turned into messages, options and content blocks: pure functions, no server."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from wager.errors import RequestError
from wager.records import SamplingParams
from wager.server.api_errors import ApiError, field_path, to_api_error
from wager.server.chat import thinking_options
from wager.server.generation import BlockChange, BlockKind, Choice, ContentBlocks, ToolCall
from wager.server.generation_request import GenerationRequest, ThinkingOptions, ToolOptions
from wager.server.messages import prompt_request
from wager.server.middleware import _host_name, allowed_hosts
from wager.server.response_queue import EngineUpdate
from wager.server.responses import chat_messages
from wager.server.schemas.chat import ChatBody
from wager.server.schemas.messages import CountBody
from wager.server.schemas.responses import ResponsesBody
from wager.server_config import ServerConfig
from wager.text.reasoning import ReasoningMarks

HELLO = {"role": "user", "content": "hello"}


def items(*given: dict[str, Any]) -> Any:
    return ResponsesBody.model_validate({"input": list(given)}).input


def refused(function: Callable[[], Any]) -> ApiError:
    """The error that a client gets."""
    try:
        function()
    except ValidationError as error:
        located = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]  # as FastAPI does
        return to_api_error(RequestValidationError(located))
    except RequestError as error:
        return to_api_error(error)
    raise AssertionError("the request was not refused")


def test_responses_items_become_messages() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    found = chat_messages(
        items(
            HELLO,
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me"}]},
            call,
            {**call, "call_id": "c2"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
            {
                "type": "function_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "2"}],
            },
        ),
        "be brief",
    )
    assert [message["role"] for message in found] == ["system", "user", "assistant", "tool", "tool"]
    assistant = found[2]
    assert assistant["content"] == "let me" and assistant["reasoning_content"] == "hm"
    assert [call["id"] for call in assistant["tool_calls"]] == ["c1", "c2"]
    assert found[3] == {"role": "tool", "tool_call_id": "c1", "content": "1"} and found[4]["content"] == "2"


@pytest.mark.parametrize(
    "item",
    [
        {"type": "web_search_call"},
        {"type": "message", "content": "x"},
        {"role": "user"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
        {"type": "function_call", "name": "f"},
        {"type": "function_call_output", "call_id": 3, "output": ""},
        {**HELLO, "unknown": 1},
        {**HELLO, "arguments": "{}"},
        {"role": "user", "content": [{"type": "input_text", "text": "x", "unknown": 1}]},
    ],
    ids=str,
)
def test_a_refused_item_is_named(item: dict[str, Any]) -> None:
    error = refused(lambda: chat_messages(items(HELLO, item), None))
    assert error.status == 400 and error.param is not None and error.param.startswith("input[1]")


def test_items_of_an_answer_can_be_sent_back() -> None:
    part = {"type": "output_text", "text": "let me", "annotations": [], "logprobs": []}
    message = {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }
    assert chat_messages(items({**message, "phase": None, "unknown": None}), None) == [
        {"role": "assistant", "content": "let me"}
    ]


def messages_request(*turns: Any, **fields: Any) -> Any:
    return prompt_request(CountBody.model_validate({"messages": list(turns), **fields}))


def test_messages_blocks_become_messages() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    request = messages_request(
        {
            "role": "user",
            "content": [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}],
        },
        {"role": "assistant", "content": [thought, {"type": "text", "text": "let me"}, use]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1"}, {"type": "text", "text": "so?"}],
        },
        system=[{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}],
    )
    assert request.messages[0] == {"role": "system", "content": "be\nbrief"}
    assert request.messages[1] == HELLO
    assert request.messages[2] == {
        "role": "assistant",
        "content": "let me",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    assert request.messages[3:] == [
        {"role": "tool", "tool_call_id": "t1", "content": ""},
        {"role": "user", "content": "so?"},
    ]
    assert request.thinking == ThinkingOptions(enabled=False) and not request.continue_final
    assert messages_request(HELLO, {"role": "assistant", "content": "I"}).continue_final


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "image"}],
        [{"type": "text"}],
        [{"type": "tool_result"}],
        [{"type": "tool_use", "id": "a"}],
        [{"type": "text", "text": "a", "unknown": 1}],
        [{"type": "text", "text": "a", "input": {}}],
    ],
    ids=str,
)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_other_blocks_are_refused(role: str, content: Any) -> None:
    error = refused(lambda: messages_request({"role": role, "content": content}))
    assert error.status == 400 and error.param is not None and error.param.startswith("messages")


def test_tool_choices_of_messages() -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}}
    for choice, word in (("auto", "auto"), ("any", "required"), ("none", "none")):
        assert messages_request(HELLO, tools=[tool], tool_choice={"type": choice}).tools.choice == word
    named = messages_request(
        HELLO, tools=[tool], tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True}
    ).tools
    assert named.choice == "=f" and not named.parallel
    with pytest.raises(RequestError):
        messages_request(HELLO, tools=[tool], tool_choice={"type": "any", "name": "f"})


def test_which_tools_are_offered_and_forced() -> None:
    tools = [{"function": {"name": name}} for name in "ab"]
    assert ToolOptions(tools).offered == tools and ToolOptions(tools).forced is None
    assert ToolOptions(tools, "none").offered == []
    assert ToolOptions(tools, "required").forced == tools
    assert ToolOptions(tools, "=b").forced == tools[1:]
    for options in (ToolOptions((), "required"), ToolOptions(tools, "=c")):
        with pytest.raises(RequestError):
            _ = options.forced


@pytest.mark.parametrize(
    ("fields", "options", "is_on"),
    [
        ({}, ThinkingOptions(), None),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, ThinkingOptions(True, 5), True),
        ({"thinking": {"type": "disabled"}}, ThinkingOptions(False), False),
        (
            {"thinking": {"type": "adaptive"}, "reasoning_effort": "low"},
            ThinkingOptions(None, None, "low"),
            True,
        ),
        ({"thinking_budget": 9, "thinking_token_budget": 4}, ThinkingOptions(None, 4), True),
        ({"thinking_budget": 0}, ThinkingOptions(None, 0), None),
        ({"reasoning_effort": "none"}, ThinkingOptions(None, None, "none"), False),
        ({"reasoning": {"effort": "high", "max_tokens": 7}}, ThinkingOptions(None, 7, "high"), True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, ThinkingOptions(True), True),
    ],
    ids=str,
)
def test_thinking_options(fields: dict[str, Any], options: ThinkingOptions, is_on: bool | None) -> None:
    found = thinking_options(ChatBody.model_validate({"messages": [HELLO], **fields}))
    assert found == options and found.is_on is is_on


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "disabled"}, "thinking_budget": 5},
        {"reasoning_effort": "none", "thinking_budget": 5},
        {"thinking": {"type": "enabled"}, "reasoning_effort": "none"},
        {"reasoning_effort": "low", "reasoning": {"effort": "high"}},
    ],
    ids=str,
)
def test_contradictory_thinking_options(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        _ = thinking_options(ChatBody.model_validate({"messages": [HELLO], **fields})).is_on


def test_blocks_open_and_close_in_turn() -> None:
    blocks, call = ContentBlocks(), ToolCall(0, "c1", "f", "{}")
    events = [
        *blocks.add(BlockKind.THINKING, "hm"),
        *blocks.add(BlockKind.THINKING, "m"),
        *blocks.add(BlockKind.TEXT, "so", ["x"]),
        *blocks.add(BlockKind.TEXT, " it"),
        *blocks.add_call(call),
        *blocks.close(),
    ]
    assert [(event.change, event.block.index, event.text) for event in events] == [
        (BlockChange.OPEN, 0, ""),
        (BlockChange.DELTA, 0, "hm"),
        (BlockChange.DELTA, 0, "m"),
        (BlockChange.CLOSE, 0, ""),
        (BlockChange.OPEN, 1, ""),
        (BlockChange.DELTA, 1, "so"),
        (BlockChange.DELTA, 1, " it"),
        (BlockChange.CLOSE, 1, ""),
        (BlockChange.OPEN, 2, ""),
        (BlockChange.DELTA, 2, "{}"),
        (BlockChange.CLOSE, 2, ""),
    ]
    assert [(block.kind, block.text) for block in blocks.all] == [
        (BlockKind.THINKING, "hmm"),
        (BlockKind.TEXT, "so it"),
        (BlockKind.TOOL_CALL, "{}"),
    ]
    assert blocks.all[1].logprobs == ["x"] and blocks.close() == []


def test_a_choice_splits_thinking_from_the_answer() -> None:
    request = GenerationRequest(
        "tiny", [[1]], SamplingParams(), reasoning_marks=ReasoningMarks("<t>", "</t>")
    )
    choice = Choice(request, 0, None)
    pieces = [choice.feed(EngineUpdate("<t>hm</t>s")), choice.feed(EngineUpdate("o", finish="stop"))]
    assert (choice.reasoning, choice.content, choice.finish) == ("hm", "so", "stop")
    changes = [(event.change, event.text) for piece in pieces for event in piece.events]
    assert changes[0] == (BlockChange.OPEN, "") and changes[-1] == (BlockChange.CLOSE, "")
    assert "".join(text for change, text in changes if change is BlockChange.DELTA) == "hmso"
    with pytest.raises(ApiError, match="broken"):
        Choice(request, 0, None).feed(EngineUpdate(finish="error", error="broken"))


def test_field_paths() -> None:
    assert field_path(("body", "messages", 0, "content", "str")) == "messages[0].content"
    assert field_path(("body", "tool_choice", "NamedTool", "function")) == "tool_choice.function"
    assert field_path(("body",)) == ""


def test_host_names() -> None:
    names = ["localhost:8000", "LOCALHOST.", "127.0.0.1", "[::1]:8000", ""]
    assert [_host_name(name) for name in names] == ["localhost", "localhost", "127.0.0.1", "::1", ""]
    assert allowed_hosts(ServerConfig(host="0.0.0.0")) is None
    assert allowed_hosts(ServerConfig(host="127.8.8.8")) == {"localhost", "127.0.0.1", "::1", "127.8.8.8"}
    assert allowed_hosts(ServerConfig(host="0.0.0.0", allowed_host="A.example, b")) == {"a.example", "b"}
