"""The grammar that forces a tool call: the format's own marks around a known name and arguments that fit.

For `tool_choice` required or named. A Lark grammar with one rule per tool, so that every tool's schema is a
document of its own and its references stay right. Called by the server; `grammar.py` compiles the result.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from wager.errors import RequestError
from wager.records import GrammarSpec
from wager.text.call_xml import is_text
from wager.text.grammar import JSON_STYLE
from wager.text.tokenizer import Tokenizer
from wager.text.tools import Tool, ToolFormat, function_of

MAX_CALLS = 16


def tool_grammar(
    form: ToolFormat, tools: Sequence[Tool], tokenizer: Tokenizer, parallel: bool = True
) -> GrammarSpec:
    """One call of one of these tools, or several where `parallel`. Raises RequestError."""
    functions = [function_of(tool) for tool in tools]
    if not functions:
        raise RequestError("a call is required, but there is no tool to call", "tool_choice")
    rules: list[str] = []
    for i, function in enumerate(functions):
        rules += _xml_rules(i, function) if form.name == "xml" else _json_rules(i, function, form.arguments)
    choice = " | ".join(f"call_{i}" for i in range(len(functions)))
    head = [f"start: {_start(form, tokenizer, parallel)}", f"call: {choice}"]
    return GrammarSpec("lark", "\n".join([*head, *rules]) + "\n")


def _start(form: ToolFormat, tokenizer: Tokenizer, parallel: bool) -> str:
    """The calls between their marks."""
    if form.name == "mistral":
        more = f' (", " call){{0,{MAX_CALLS - 1}}}' if parallel else ""
        return f'{_mark(form.open, tokenizer)} "[" call{more} "]"'
    one = "call"
    if form.open:
        one = f'{_mark(form.open, tokenizer)} "\\n" call "\\n" {_mark(form.close, tokenizer)}'
    return one + (f' ("\\n" {one}){{0,{MAX_CALLS - 1}}}' if parallel else "")


def _mark(mark: str, tokenizer: Tokenizer) -> str:
    """A mark that is one token is written as that token, as the model was taught; else as text."""
    token_id = tokenizer.token_id(mark)
    return _literal(mark) if token_id is None else f"<[{token_id}]>"


def _json_rules(index: int, function: Mapping[str, Any], key: str) -> list[str]:
    name = json.dumps(_name(function), ensure_ascii=False)
    head = _literal(f'{{"name": {name}, "{key}": ')
    return [f'call_{index}: {head} arguments_{index} "}}"', f"arguments_{index}: {_json(_schema(function))}"]


def _xml_rules(index: int, function: Mapping[str, Any]) -> list[str]:
    """Parameters in the schema's order; those that are not required may be left out."""
    schema = _schema(function)
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    parts, rules = [], []
    for i, (key, value) in enumerate(schema.get("properties", {}).items()):
        rule = f"value_{index}_{i}"
        end = "\n</parameter>\n"
        part = f"({_literal(f'<parameter={key}>' + chr(10))} {rule})"
        parts.append(part if key in needed else part + "?")
        rules += _text_rules(rule, value, end) if is_text(value) else _value_rules(rule, value, schema, end)
    head = _literal(f"<function={_name(function)}>\n")
    return [f"call_{index}: {' '.join([head, *parts])} {_literal('</function>')}", *rules]


def _text_rules(rule: str, schema: object, end: str) -> list[str]:
    """Text as it is: one of the schema's options, or anything up to the end of the parameter."""
    if isinstance(schema, Mapping) and ("enum" in schema or "const" in schema):
        options = schema.get("enum", [schema.get("const")])
        return [f"{rule}: ({' | '.join(_literal(option) for option in options)}) {_literal(end)}"]
    return [f"{rule}[suffix={_literal(end)}]: /(?s:.*)/"]


def _value_rules(rule: str, value: object, schema: Mapping[str, Any], end: str) -> list[str]:
    """A JSON value, with the definitions of the whole schema at hand."""
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    own = {**shared, **value} if isinstance(value, Mapping) else value
    return [f"{rule}: {rule}_json {_literal(end)}", f"{rule}_json: {_json(own)}"]


def _name(function: Mapping[str, Any]) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError("expected a function with a name", "tools")
    return name


def _schema(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of the arguments, which are an object in any case."""
    schema = function.get("parameters") or {}
    if not isinstance(schema, Mapping):
        raise RequestError("expected parameters as a JSON schema object", f"tools.{_name(function)}")
    if not isinstance(schema.get("properties", {}), Mapping):
        raise RequestError("expected properties as an object", f"tools.{_name(function)}.parameters")
    closed = {} if schema else {"additionalProperties": False}
    return {"type": "object", **schema, **closed}


def _json(schema: object) -> str:
    style = {"x-guidance": JSON_STYLE}
    try:
        return "%json " + json.dumps({**schema, **style} if isinstance(schema, Mapping) else schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"a tool's schema is not plain JSON data ({error})", "tools") from error


def _literal(text: str) -> str:
    """A text in Lark's own quotes."""
    return json.dumps(text, ensure_ascii=False)
