"""Dialects turned into messages, wishes and blocks: pure functions, no server."""

from typing import Any

import pytest

from wager.errors import RequestError
from wager.server.answers import Piece
from wager.server.asks import ToolWish
from wager.server.blocks import Blocks, Change, Kind
from wager.server.chat import wish_of
from wager.server.doors import _host_name, allowed_hosts
from wager.server.messages import conversation_of
from wager.server.problems import place
from wager.server.reading import Call
from wager.server.responses_input import messages_of
from wager.server.schemas.chat import ChatBody
from wager.server.schemas.messages import CountBody
from wager.server.schemas.responses import ResponsesBody
from wager.server.thinking import Wish
from wager.server_config import ServerConfig

HELLO = {"role": "user", "content": "hello"}


def items(*given: dict[str, Any]) -> Any:
    return ResponsesBody.model_validate({"input": list(given)}).input


def test_responses_items_become_messages() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    found = messages_of(
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
    ],
    ids=str,
)
def test_other_items_are_refused_by_place(item: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"input\[1\]"):
        messages_of(items(HELLO, item), None)


def blocks_talk(*turns: Any, **rest: Any) -> Any:
    return conversation_of(CountBody.model_validate({"messages": list(turns), **rest}))


def test_messages_blocks_become_messages() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    talk = blocks_talk(
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
    assert talk.messages[0] == {"role": "system", "content": "be\nbrief"}
    assert talk.messages[1] == HELLO
    assert talk.messages[2] == {
        "role": "assistant",
        "content": "let me",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    assert talk.messages[3:] == [
        {"role": "tool", "tool_call_id": "t1", "content": ""},
        {"role": "user", "content": "so?"},
    ]
    assert talk.wish == Wish(enabled=False) and not talk.continue_final
    assert blocks_talk(HELLO, {"role": "assistant", "content": "I"}).continue_final


@pytest.mark.parametrize(
    "content",
    [[{"type": "image"}], [{"type": "text"}], [{"type": "tool_result"}], [{"type": "tool_use", "id": "a"}]],
    ids=str,
)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_other_blocks_are_refused(role: str, content: Any) -> None:
    with pytest.raises(RequestError):
        blocks_talk({"role": role, "content": content})


def test_tool_choices_of_messages() -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}}
    for choice, word in (("auto", "auto"), ("any", "required"), ("none", "none")):
        assert blocks_talk(HELLO, tools=[tool], tool_choice={"type": choice}).tools.choice == word
    named = blocks_talk(
        HELLO, tools=[tool], tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True}
    ).tools
    assert named.choice == "=f" and not named.parallel
    with pytest.raises(RequestError):
        blocks_talk(HELLO, tools=[tool], tool_choice={"type": "any", "name": "f"})


def test_which_tools_are_offered_and_forced() -> None:
    tools = [{"function": {"name": name}} for name in "ab"]
    assert ToolWish(tools).offered == tools and ToolWish(tools).forced is None
    assert ToolWish(tools, "none").offered == []
    assert ToolWish(tools, "required").forced == tools
    assert ToolWish(tools, "=b").forced == tools[1:]
    for wish in (ToolWish((), "required"), ToolWish(tools, "=c")):
        with pytest.raises(RequestError):
            _ = wish.forced


@pytest.mark.parametrize(
    ("said", "wish", "is_on"),
    [
        ({}, Wish(), None),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, Wish(True, 5), True),
        ({"thinking": {"type": "disabled"}}, Wish(False), False),
        ({"thinking": {"type": "adaptive"}, "reasoning_effort": "low"}, Wish(None, None, "low"), True),
        ({"thinking_budget": 9, "thinking_token_budget": 4}, Wish(None, 4), True),
        ({"thinking_budget": 0}, Wish(None, 0), None),
        ({"reasoning_effort": "none"}, Wish(None, None, "none"), False),
        ({"reasoning": {"effort": "high", "max_tokens": 7}}, Wish(None, 7, "high"), True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, Wish(True), True),
    ],
    ids=str,
)
def test_wishes(said: dict[str, Any], wish: Wish, is_on: bool | None) -> None:
    found = wish_of(ChatBody.model_validate({"messages": [HELLO], **said}))
    assert found == wish and found.is_on is is_on


@pytest.mark.parametrize(
    "said",
    [
        {"thinking": {"type": "disabled"}, "thinking_budget": 5},
        {"reasoning_effort": "none", "thinking_budget": 5},
        {"thinking": {"type": "enabled"}, "reasoning_effort": "none"},
        {"reasoning_effort": "low", "reasoning": {"effort": "high"}},
    ],
    ids=str,
)
def test_contradictory_wishes(said: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        _ = wish_of(ChatBody.model_validate({"messages": [HELLO], **said})).is_on


def test_blocks_open_and_close_in_turn() -> None:
    blocks, call = Blocks(), Call(0, "c1", "f", "{}")
    steps = [
        *blocks.take(Piece(0, reasoning="hm")),
        *blocks.take(Piece(0, reasoning="m", content="so")),
        *blocks.take(Piece(0, content=" it", calls=[call])),
        *blocks.close(),
    ]
    assert [(step.change, step.block.index, step.text) for step in steps] == [
        (Change.OPEN, 0, ""),
        (Change.DELTA, 0, "hm"),
        (Change.DELTA, 0, "m"),
        (Change.CLOSE, 0, ""),
        (Change.OPEN, 1, ""),
        (Change.DELTA, 1, "so"),
        (Change.DELTA, 1, " it"),
        (Change.CLOSE, 1, ""),
        (Change.OPEN, 2, ""),
        (Change.DELTA, 2, "{}"),
        (Change.CLOSE, 2, ""),
    ]
    assert [(block.kind, block.text) for block in blocks.all] == [
        (Kind.THINKING, "hmm"),
        (Kind.TEXT, "so it"),
        (Kind.CALL, "{}"),
    ]
    assert blocks.close() == []


def test_places_are_written_as_people_do() -> None:
    assert place(("body", "messages", 0, "content", "str")) == "messages[0].content"
    assert place(("body", "tool_choice", "NamedTool", "function")) == "tool_choice.function"
    assert place(("body",)) == ""


def test_host_names() -> None:
    names = ["localhost:8000", "LOCALHOST.", "127.0.0.1", "[::1]:8000", ""]
    assert [_host_name(name) for name in names] == ["localhost", "localhost", "127.0.0.1", "::1", ""]
    assert allowed_hosts(ServerConfig(host="0.0.0.0")) is None
    assert allowed_hosts(ServerConfig(host="127.8.8.8")) == {"localhost", "127.0.0.1", "::1", "127.8.8.8"}
    assert allowed_hosts(ServerConfig(host="0.0.0.0", allowed_host="A.example, b")) == {"a.example", "b"}
