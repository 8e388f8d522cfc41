"""Tool calls are read from every format, whatever the pieces, and their text never becomes content."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.pieces import CUTS, cut
from wager.text.tokenizer import Tokenizer
from wager.text.tools import (
    HERMES,
    LINES,
    LLAMA,
    MISTRAL,
    XML,
    ToolCall,
    ToolFormat,
    ToolParser,
    find_format,
    for_template,
)

WEATHER = {
    "name": "get.weather",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["c", "f"]},
            "where": {"type": "object"},
        },
        "required": ["city"],
    },
}
TOOLS = [{"type": "function", "function": WEATHER}, {"name": "stop"}]
FORMATS = [HERMES, XML, MISTRAL, LLAMA, LINES]


def read(form: ToolFormat, pieces: list[str]) -> tuple[str, list[ToolCall], list[str]]:
    parser = ToolParser(form, TOOLS)
    found = [*(parser.feed(piece) for piece in pieces), parser.flush()]
    calls = [call for one in found for call in one.calls]
    assert [call.index for call in calls] == list(range(len(calls)))
    assert parser.has_calls == bool(calls)
    return "".join(one.content for one in found), calls, parser.malformed


def names(calls: list[ToolCall]) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in calls]


def written(form: ToolFormat, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Calls as a model of this format writes them."""
    if form is MISTRAL:
        return form.open + json.dumps([{"name": n, "arguments": a} for n, a in calls])
    if form is XML:
        return "\n".join(f"<tool_call>\n{_xml(*call)}\n</tool_call>" for call in calls)
    texts = [form.write(*call) for call in calls]
    return "\n".join(f"{form.open}\n{one}\n{form.close}" if form.open else one for one in texts)


def _xml(name: str, arguments: dict[str, Any]) -> str:
    parts = [
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>"
        for key, value in arguments.items()
    ]
    return "\n".join([f"<function={name}>", *parts, "</function>"])


ROME = ("get.weather", {"city": "Rome", "days": 3, "where": {"x": [1, {"y": "}"}]}})
STOP = ("stop", {})


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_one_call_and_several(form: ToolFormat) -> None:
    for wanted in ([ROME], [ROME, STOP, ROME]):
        content, calls, malformed = read(form, [written(form, wanted)])
        assert (content, names(calls), malformed) == ("", wanted, [])
        assert all(call.complete for call in calls)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_content_around_calls_keeps_its_text_and_loses_the_blanks_next_to_them(form: ToolFormat) -> None:
    text = f" Let me look.\n\n{written(form, [ROME])}\n"
    assert read(form, [text])[0] == " Let me look."
    content, calls, _ = read(form, [f"{text}\nThat was it. \n"])
    assert content == " Let me look.That was it. \n"
    assert names(calls) == [ROME]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize(
    "text", ["", "Hello there.\n", " \n", 'a {"name": "stop"} b', '{"x": 1}\n[2]', "1 < 2"]
)
def test_text_without_calls_is_content_as_it_is(form: ToolFormat, text: str) -> None:
    assert read(form, [text]) == (text, [], [])


def test_content_is_given_out_as_it_comes() -> None:
    parser = ToolParser(HERMES, TOOLS)
    assert parser.feed("Let me").content == "Let me"
    assert parser.feed(" look. \n").content == " look."
    assert parser.feed("<tool").content == ""
    assert parser.feed("s>").content == " \n<tools>"


SNIPPETS = [
    *("{", "}", '"', '"name"', ":", " ", "\n", '"stop"', ",", '"arguments"', "<tool_call>", "</tool_call>"),
    *('{"name": "stop", "arguments": {}}', "<function=stop>", "</function>", "[TOOL_CALLS]", "[", "]", "a"),
    *('{"name": "stop", "parameters": {"a": "\\""}}', "<parameter=city>", "</parameter>", "<", "\\"),
]


@settings(max_examples=400, deadline=None)
@given(form=st.sampled_from(FORMATS), parts=st.lists(st.sampled_from(SNIPPETS), max_size=16), cuts=CUTS)
def test_the_pieces_do_not_matter(form: ToolFormat, parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    assert read(form, cut(text, cuts)) == read(form, [text])
    assert read(form, list(text)) == read(form, [text])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    form=st.sampled_from([HERMES, MISTRAL, LLAMA, LINES]),
    arguments=st.dictionaries(st.text(max_size=6), VALUES, max_size=3),
    cuts=CUTS,
)
def test_any_arguments_come_through_and_none_of_them_leaks(
    form: ToolFormat, arguments: dict[str, Any], cuts: list[int]
) -> None:
    wanted = [("stop", arguments), ROME]
    content, calls, malformed = read(form, cut(f"Sure.\n{written(form, wanted)}", cuts))
    assert (content, names(calls), malformed) == ("Sure.", wanted, [])


def test_a_close_mark_inside_a_text_does_not_close() -> None:
    wanted = [("stop", {"text": "</tool_call> <tool_call>{"})]
    assert read(HERMES, [written(HERMES, wanted)])[:2] == (
        "",
        [ToolCall(0, "stop", json.dumps(wanted[0][1]))],
    )


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_call_that_is_cut_short(form: ToolFormat) -> None:
    """At every place: no content; the call as soon as its name is known; never one that seems complete."""
    text = written(form, [ROME])
    begin = len(form.open) or 2
    for stop in range(begin, len(text)):
        content, calls, malformed = read(form, [text[:stop]])
        assert content == ""
        assert len(calls) + len(malformed) == 1
        if calls and calls[0].complete:
            assert form is not XML and names(calls) == [ROME]  # only blanks or the close mark are missing
    name_known = text.index("get.weather") + len('get.weather",')
    content, calls, malformed = read(form, [text[: name_known + 1]])
    assert [(call.name, call.complete) for call in calls] == [("get.weather", False)]


def test_the_arguments_of_a_call_cut_short_are_what_there_was() -> None:
    _, calls, _ = read(LINES, ['{"name": "stop", "arguments": {"a": [1, "tw'])
    assert calls == [ToolCall(0, "stop", '{"a": [1, "tw', complete=False)]
    _, calls, _ = read(HERMES, ['<tool_call>\n{"name": "stop", "arguments": {"a": 1}'])
    assert calls == [ToolCall(0, "stop", '{"a": 1}', complete=False)]


BROKEN = [
    (HERMES, "a <tool_call>\nnot a call\n</tool_call> b", "ab"),
    (HERMES, '<tool_call>{"name": "stop", "arguments": {"a": 1}</tool_call>after', "after"),
    (HERMES, '<tool_call>{"name": 3}</tool_call>', ""),
    (HERMES, '<tool_call>{"name": "stop", "arguments": [1]}</tool_call>', ""),
    (HERMES, '<tool_call>{"name": "stop", "arguments": "[1]"}</tool_call>', ""),
    (XML, "<tool_call>\n<parameter=a>\n1\n</parameter>\n</tool_call>", ""),
    (MISTRAL, '[TOOL_CALLS][{"name": "stop"}, 3]', ""),
    (LINES, '{"name": "stop", "arguments": {"a": nothing}}', ""),
]


@pytest.mark.parametrize(("form", "text", "content"), BROKEN)
def test_a_call_that_cannot_be_read_is_kept_out_of_the_content(
    form: ToolFormat, text: str, content: str
) -> None:
    found, calls, malformed = read(form, [text])
    assert (found, calls, len(malformed)) == (content, [], 1)


def test_a_line_is_a_call_only_of_a_known_tool_and_only_where_a_line_begins() -> None:
    other = '{"name": "other", "arguments": {}}'
    assert read(LINES, [other]) == (other, [], [])
    inside = 'The object {"name": "stop", "arguments": {}} is one.'
    assert read(LINES, [inside]) == (inside, [], [])
    assert names(read(LINES, ['Look:\n  {"name": "stop", "arguments": {}}'])[1]) == [STOP]


def test_values_of_tags_are_read_by_their_schema() -> None:
    text = _xml("get.weather", {"city": "12", "days": 3, "unit": "c", "where": {"x": 1}, "more": "4"})
    _, calls, _ = read(XML, [f"<tool_call>\n{text}\n</tool_call>"])
    wanted = {"city": "12", "days": 3, "unit": "c", "where": {"x": 1}, "more": "4"}
    assert names(calls) == [("get.weather", wanted)]
    text = "<function=get.weather>\n<parameter=days>\nthree\n</parameter>\n</function>"
    _, calls, _ = read(XML, [f"<tool_call>\n{text}\n</tool_call>"])
    assert names(calls) == [("get.weather", {"days": "three"})]


def test_arguments_as_text_and_under_another_name() -> None:
    text = '{"name": "stop", "arguments": "{\\"a\\": 1}"}\n{"name": "stop", "parameters": {"b": 2}}'
    assert names(read(LINES, [text])[1]) == [("stop", {"a": 1}), ("stop", {"b": 2})]


# -- formats and prompts


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("{{ messages }}", None),
        ("{% if tools %}{{ tools | tojson }}{% endif %}", LINES),
        ("{% if tools %}<tool_call>\\n{'name': ...}</tool_call>{% endif %}", HERMES),
        ("{% if tools %}<tool_call>\\n<function=example>{% endif %}", XML),
        ("{% if tools %}[AVAILABLE_TOOLS] [TOOL_CALLS]{% endif %}", MISTRAL),
        ('{% if tools %}{"name": function name, "parameters": dictionary}{{ tool_calls }}{% endif %}', LLAMA),
        ("{% if tools %}{{ message.tool_calls }}{% endif %}", ToolFormat("lines")),
    ],
)
def test_the_format_is_found_in_the_template(source: str, wanted: ToolFormat | None) -> None:
    assert find_format({"default": source}) == wanted


def test_the_template_for_tools_decides_where_there_is_one() -> None:
    assert find_format({"default": "", "tool_use": "{{ tools }} <tool_call>"}) == HERMES
    assert find_format({}) is None


def test_a_template_that_knows_no_calls_finds_them_in_the_content() -> None:
    messages = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                {"id": "1", "function": {"name": "get.weather", "arguments": '{"city": "Rom\\u00e9"}'}},
                {"id": "2", "function": {"name": "stop", "arguments": "broken"}},
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "stop"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    parts = for_template(LINES, messages, TOOLS)
    assert parts.tools == [WEATHER, {"name": "stop"}]
    assert parts.messages[0] == messages[0] and parts.messages[3] == messages[3]
    assert parts.messages[1] == {
        "role": "assistant",
        "content": 'Let me look.\n{"name": "get.weather", "arguments": {"city": "Romé"}}\n'
        '{"name": "stop", "arguments": "broken"}',
    }
    assert parts.messages[2]["content"] == '{"name": "stop", "arguments": {}}'


def test_other_templates_get_what_the_client_sent() -> None:
    messages = [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "stop"}}]}]
    assert for_template(HERMES, messages, TOOLS) == (messages, TOOLS)
    assert for_template(None, messages, None) == (messages, None)
    broken = [{"role": "assistant", "content": None, "tool_calls": [3]}]
    assert for_template(LINES, broken, []) == (broken, None)


def test_which_special_tokens_a_text_must_show(byte_level: Tokenizer) -> None:
    form = ToolFormat("hermes", "<|start|>", "</tool_call>")
    assert form.shown_ids(byte_level) == (byte_level.token_id("<|start|>"),)
    assert LINES.shown_ids(byte_level) == ()
