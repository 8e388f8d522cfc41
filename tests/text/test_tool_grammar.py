"""The grammar that forces a call: its texts are calls that the format's own parser reads, nothing else."""

import json
import random
from typing import Any

import numpy as np
import pytest
import tokenizers

from tests.text.conftest import train_byte_level
from wager.errors import RequestError
from wager.records import SamplingParams
from wager.text.constraint import Constraint
from wager.text.grammar import Grammars
from wager.text.tokenizer import Tokenizer
from wager.text.tool_grammar import strict_grammar, tool_grammar
from wager.text.tools import HERMES, LINES, LLAMA, MISTRAL, XML, ToolFormat, ToolParser

FORMATS = [HERMES, XML, MISTRAL, LLAMA, LINES]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": 'get "weather"',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 4},
                    "days": {"type": "integer", "minimum": 1, "maximum": 30},
                    "unit": {"enum": ["celsius", "kelvin"]},
                    "where": {"$ref": "#/$defs/place"},
                },
                "required": ["city", "where"],
                "additionalProperties": False,
                "$defs": {
                    "place": {
                        "type": "object",
                        "properties": {"x": {"type": "boolean"}},
                        "required": ["x"],
                        "additionalProperties": False,
                    }
                },
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]


@pytest.fixture(scope="module")
def marked() -> Tokenizer:
    """A tokenizer that has the marks as tokens, one kind special and the other not."""
    backend = train_byte_level()
    marks = [tokenizers.AddedToken(mark, special=False, normalized=False) for mark in (XML.open, XML.close)]
    backend.add_tokens(marks)
    backend.add_special_tokens([MISTRAL.open])
    return Tokenizer(backend, {"eos_token": "<|end|>"})


def begin(tokenizer: Tokenizer, form: ToolFormat, tools: list[dict[str, Any]], parallel: bool) -> Constraint:
    spec = tool_grammar(form, tools, tokenizer, parallel)
    found = Grammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids).begin(SamplingParams(grammar=spec))
    assert found is not None
    return found


def write(constraint: Constraint, tokenizer: Tokenizer, seed: int) -> str:
    """A text drawn from the masks; it ends where it may."""
    rng, tokens, end = random.Random(seed), list[int](), tokenizer.eos_ids[0]
    while len(tokens) < 600:
        mask = np.unpackbits(constraint.masks([], [])[0], bitorder="little")
        if mask[end]:
            return tokenizer.decode(tokens, skip_special=False)
        usual = [token for token in np.flatnonzero(mask).tolist() if "<" in tokenizer.decode([token])]
        # Free text ends only by its close, which pure chance would take long to find.
        tokens.append(rng.choice(usual if usual and rng.random() < 0.5 else np.flatnonzero(mask).tolist()))
        constraint.follow(tokens, ["target"] * len(tokens))
        assert constraint.problem is None
    return tokenizer.decode(tokens, skip_special=False)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("tokens", ["byte_level", "marked"])
def test_every_text_is_a_call_that_fits(
    form: ToolFormat, tokens: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(tokens)
    seen = set()
    for seed in range(8):
        tools = TOOLS if form is not XML else [_short(TOOLS[0]), TOOLS[1]]
        text = write(begin(tokenizer, form, tools, parallel=False), tokenizer, seed)
        parser = ToolParser(form, tools)
        piece = parser.feed(text)
        assert (piece.content, parser.flush().content, parser.malformed) == ("", "", [])
        (call,) = piece.calls
        seen.add(call.name)
        if call.name != "stop":
            check_weather(json.loads(call.arguments))
    assert "stop" in seen or len(seen) == 1


def _short(tool: dict[str, Any]) -> dict[str, Any]:
    """Without free text, which a random walk does not end."""
    function = tool["function"]
    schema = function["parameters"]
    city = {"city": {"enum": ["Rome", "Oslo"]}}
    schema = {**schema, "properties": {**schema["properties"], **city}}
    return {"function": {"name": "get_weather", "parameters": schema}}


def check_weather(arguments: dict[str, Any]) -> None:
    assert {"city", "where"} <= set(arguments) <= {"city", "where", "days", "unit"}
    assert isinstance(arguments["city"], str) and len(arguments["city"]) <= 4
    assert arguments["where"] in ({"x": True}, {"x": False})
    assert 1 <= arguments.get("days", 1) <= 30
    assert arguments.get("unit", "kelvin") in ("celsius", "kelvin")


TEXTS = {
    "hermes": '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>',
    "xml": "<tool_call>\n<function=stop>\n</function>\n</tool_call>",
    "llama": '{"name": "stop", "parameters": {}}',
    "lines": '{"name": "stop", "arguments": {}}',
}


@pytest.mark.parametrize("form", [HERMES, XML, LLAMA, LINES], ids=lambda form: form.name)
@pytest.mark.parametrize("tokens", ["byte_level", "marked"])
def test_what_a_model_usually_writes_is_allowed(
    form: ToolFormat, tokens: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(tokens)
    one = TEXTS[form.name]
    for text, parallel, fits in (
        (one, False, True),
        (f"{one}\n{one}", True, True),
        (f"{one}\n{one}", False, False),
    ):
        constraint = begin(tokenizer, form, TOOLS, parallel)
        ids = [*tokenizer.encode(text, add_special=False), tokenizer.eos_ids[0]]
        constraint.follow(ids, ["target"] * len(ids))
        assert (constraint.problem is None) == fits
    refused = begin(tokenizer, form, TOOLS, parallel=True)
    ids = tokenizer.encode("I would rather talk.", add_special=False)
    refused.follow(ids, ["target"] * len(ids))
    assert refused.problem is not None


def test_several_calls_in_a_list(marked: Tokenizer) -> None:
    one = '{"name": "stop", "arguments": {}}'
    constraint = begin(marked, MISTRAL, TOOLS, parallel=True)
    ids = [*marked.encode(f"[TOOL_CALLS][{one}, {one}]", add_special=False), marked.eos_ids[0]]
    constraint.follow(ids, ["target"] * len(ids))
    assert constraint.problem is None


def test_free_text_between_tags_ends_at_its_close(byte_level: Tokenizer) -> None:
    tools = [
        {"name": "say", "parameters": {"properties": {"text": {"type": "string"}}, "required": ["text"]}}
    ]
    value = "<parameter=text>\na < b\n\n</p>\n</parameter>"
    text = f"<tool_call>\n<function=say>\n{value}\n</function>\n</tool_call>"
    constraint = begin(byte_level, XML, tools, parallel=False)
    ids = [*byte_level.encode(text, add_special=False), byte_level.eos_ids[0]]
    constraint.follow(ids, ["target"] * len(ids))
    assert constraint.problem is None
    (call,) = ToolParser(XML, tools).feed(text).calls
    assert json.loads(call.arguments) == {"text": "a < b\n\n</p>"}


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([], "the request has no tools"),
        ([{"function": {}}], "function with a name"),
        ([{"name": "a", "parameters": 3}], "tools.a: expected parameters"),
        ([{"name": "a", "parameters": {"properties": 3}}], "tools.a.parameters: expected properties"),
        ([{"name": "a", "parameters": {"properties": {"x": object()}}}], "plain JSON"),
    ],
)
def test_tools_that_cannot_be_used_are_refused(
    byte_level: Tokenizer, tools: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        tool_grammar(LINES, tools, byte_level)


def test_a_schema_that_cannot_be_enforced_is_refused_when_it_is_compiled(byte_level: Tokenizer) -> None:
    tools = [{"name": "a", "parameters": {"type": "object", "properties": {"x": {"type": "dict"}}}}]
    with pytest.raises(RequestError, match="Invalid type: dict"):
        begin(byte_level, LINES, tools, parallel=False)


# -- free text, strict calls


def strictly(tokenizer: Tokenizer, form: ToolFormat, tools: list[dict[str, Any]]) -> Constraint:
    grammars = Grammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)
    spec = strict_grammar(form, tools, tokenizer, grammars)
    found = grammars.begin(SamplingParams(grammar=spec))
    assert found is not None
    return found


def held(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {**tool["function"], "strict": True}}


def call_of(form: ToolFormat, name: str, arguments: str) -> str:
    """A call as a model writes it; `arguments` are JSON, or parameters for the format that has them."""
    if form is XML:
        return f"<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>"
    body = f'{{"name": "{name}", "{form.arguments}": {arguments}}}'
    if form is MISTRAL:
        return f"[TOOL_CALLS][{body}]"
    return f"{form.open}\n{body}\n{form.close}" if form.open else body


DAYS = {
    "function": {
        "name": "wait",
        "parameters": {
            "type": "object",
            "properties": {"days": {"type": "integer"}},
            "required": ["days"],
            "additionalProperties": False,
        },
    }
}
OTHER = {"function": {**DAYS["function"], "name": "other"}}


def arguments_for(form: ToolFormat, value: str) -> str:
    return f"<parameter=days>\n{value}\n</parameter>\n" if form is XML else f'{{"days": {value}}}'


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("tokens", ["byte_level", "marked"])
def test_strict_calls_fit_in_free_text(form: ToolFormat, tokens: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(tokens)
    tools = [held(DAYS), OTHER]
    good, bad = (call_of(form, "wait", arguments_for(form, value)) for value in ("3", '"soon"'))
    loose = call_of(form, "other", arguments_for(form, '"soon"'))
    for text, names in (
        ("Nothing to call, {not even} this: <tool>.", []),
        (good, ["wait"]),
        (f"Let me see.\n{good}", ["wait"]),
        (f"First.\n{loose}\nThen.\n{good}\nDone.", ["other", "wait"]),
        (bad, None),
        (f"Let me see.\n{bad}", None),
        (f"{loose}\n{bad}", None),
    ):
        constraint = strictly(tokenizer, form, tools)
        ids = [*tokenizer.encode(text, add_special=False), tokenizer.eos_ids[0]]
        constraint.follow(ids, ["target"] * len(ids))
        assert (constraint.problem is None) == (names is not None), text
        parser = ToolParser(form, tools)
        found = [call.name for call in (*parser.feed(text).calls, *parser.flush().calls)]
        assert names is None or (found == names and not parser.malformed)
