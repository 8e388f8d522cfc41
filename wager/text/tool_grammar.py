"""Grammars of tool calls: the marks of the format around a known name and arguments that match its schema.

`tool_grammar` forces a call, for `tool_choice` required or named. `strict_grammar` leaves the text free and
restricts the calls of strict tools to their schemas. They are Lark grammars with one rule per tool, so that
every schema is a document of its own and its references stay valid. The server calls this; `grammar.py`
compiles the result.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from wager.errors import RequestError
from wager.records import GrammarSpec
from wager.text.call_xml import is_text
from wager.text.grammar import JSON_STYLE, Grammars
from wager.text.tokenizer import Tokenizer
from wager.text.tools import Tool, ToolFormat, function_of

MAX_CALLS = 16


def tool_grammar(
    form: ToolFormat, tools: Sequence[Tool], tokenizer: Tokenizer, parallel: bool = True
) -> GrammarSpec:
    """Returns the grammar of one call, or several if `parallel`, of these tools. Raises RequestError."""
    functions = [function_of(tool) for tool in tools]
    if not functions:
        raise RequestError("a call is required, but the request has no tools", "tool_choice")
    return _spec([f"start: {_start(form, tokenizer, parallel)}", *_call_rules(form, functions)])


def strict_grammar(
    form: ToolFormat, tools: Sequence[Tool], tokenizer: Tokenizer, grammars: Grammars
) -> GrammarSpec:
    """Returns a grammar of free text and calls in any order, with strict tools restricted to their schemas.

    A call begins where the parser of the format finds one: at its mark, or at a line that begins as a call of
    a known tool does. From there the grammar applies. Raises RequestError.
    """
    functions = [function_of(tool) for tool in tools]
    if not form.open:
        return _spec(_free_lines(form, functions))
    one = '"[" call (", " call)* "]"' if form.name == "mistral" else '"\\n" call "\\n" closed'
    spelled = f"spelled[lazy]: /(?s:.*){_in_regex(form.open)}/"
    opened, closed = _as_token(form.open, tokenizer, grammars), _as_token(form.close, tokenizer, grammars)
    head = [
        f"start: (opened {one})* {_FREE}",
        "opened: spelled" + (f" | {_FREE} {opened}" if opened else ""),
        spelled,
        f"closed: {_literal(form.close)}" + (f" | {closed}" if closed else ""),
    ]
    return _spec([*(head if form.close else head[:3]), *_call_rules(form, functions, free=True)])


_FREE = "/(?s:.*)/"


def _free_lines(form: ToolFormat, functions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the grammar of calls without marks: a line that begins as a call of a known tool does is a
    call.
    """
    calls, rules = [], []
    for i, function in enumerate(functions):
        name = _in_regex(json.dumps(_name(function), ensure_ascii=False))
        # The parser skips the same blanks.
        rules.append(f'opened_{i}[lazy]: /((?s:.*)\\n)?\\s*\\{{\\s*"name"\\s*:\\s*{name}/')
        rules.append(f"arguments_{i}: {_json(_schema(_loose(function)))}")
        behind = _literal(f', "{form.arguments}": ')
        calls.append(f'opened_{i} {behind} arguments_{i} "}}"')
    return [f"start: ({' | '.join(calls)})* {_FREE}", *rules]


def _spec(lines: Sequence[str]) -> GrammarSpec:
    return GrammarSpec("lark", "\n".join(lines) + "\n")


def _call_rules(form: ToolFormat, functions: Sequence[Mapping[str, Any]], free: bool = False) -> list[str]:
    """Returns the rule `call`, any of the tools, and its parts. `free` restricts strict tools only."""
    rules = ["call: " + " | ".join(f"call_{i}" for i in range(len(functions)))]
    for i, function in enumerate(functions):
        if form.name != "xml":
            rules += _json_rules(i, _loose(function) if free else function, form.arguments)
        elif free and not function.get("strict"):
            rules += [f"call_{i}: {_literal(f'<function={_name(function)}>')} any_{i}"]
            rules += [f'any_{i}[suffix="</function>"]: {_FREE}']
        else:
            rules += _xml_rules(i, function)
    return rules


def _loose(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the function with the schema of its calls: its own if it is strict, else any object."""
    return function if function.get("strict") else {**function, "parameters": {"additionalProperties": True}}


def _in_regex(text: str) -> str:
    """Returns the text escaped for a regular expression between slashes."""
    return re.sub(r"([^\w\s\"'<>])", r"\\\1", text)


def _start(form: ToolFormat, tokenizer: Tokenizer, parallel: bool) -> str:
    """Returns the start rule: the calls between their marks."""
    if form.name == "mistral":
        more = f' (", " call){{0,{MAX_CALLS - 1}}}' if parallel else ""
        return f'{_mark(form.open, tokenizer)} "[" call{more} "]"'
    one = "call"
    if form.open:
        one = f'{_mark(form.open, tokenizer)} "\\n" call "\\n" {_mark(form.close, tokenizer)}'
    return one + (f' ("\\n" {one}){{0,{MAX_CALLS - 1}}}' if parallel else "")


def _mark(mark: str, tokenizer: Tokenizer) -> str:
    """Returns a mark as its single token if there is one, as the model was trained, else as text."""
    token_id = tokenizer.token_id(mark)
    return _literal(mark) if token_id is None else f"<[{token_id}]>"


def _as_token(mark: str, tokenizer: Tokenizer, grammars: Grammars) -> str | None:
    """Returns the token of a mark if grammars distinguish it from the text of the mark, else None."""
    token_id = tokenizer.token_id(mark) if mark else None
    return None if token_id is None or not grammars.is_mark(token_id) else f"<[{token_id}]>"


def _json_rules(index: int, function: Mapping[str, Any], key: str) -> list[str]:
    name = json.dumps(_name(function), ensure_ascii=False)
    head = _literal(f'{{"name": {name}, "{key}": ')
    return [f'call_{index}: {head} arguments_{index} "}}"', f"arguments_{index}: {_json(_schema(function))}"]


def _xml_rules(index: int, function: Mapping[str, Any]) -> list[str]:
    """Returns rules for the parameters in the order of the schema; parameters that are not required are
    optional.
    """
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
    """Returns rules for plain text: one of the options of the schema, or anything before the end of the
    parameter.
    """
    if isinstance(schema, Mapping) and ("enum" in schema or "const" in schema):
        options = schema.get("enum", [schema.get("const")])
        return [f"{rule}: ({' | '.join(_literal(option) for option in options)}) {_literal(end)}"]
    return [f"{rule}[suffix={_literal(end)}]: /(?s:.*)/"]


def _value_rules(rule: str, value: object, schema: Mapping[str, Any], end: str) -> list[str]:
    """Returns rules for a JSON value, with the definitions of the whole schema."""
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    own = {**shared, **value} if isinstance(value, Mapping) else value
    return [f"{rule}: {rule}_json {_literal(end)}", f"{rule}_json: {_json(own)}"]


def _name(function: Mapping[str, Any]) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError("expected a function with a name", "tools")
    return name


def _schema(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the schema of the arguments, which are always an object."""
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
    """Returns a text quoted for Lark."""
    return json.dumps(text, ensure_ascii=False)
