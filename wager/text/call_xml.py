"""Reads tool calls that are written with a tag for the function and one for each parameter.

    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>

Values are plain text; the schema of the tool tells which of them are numbers, objects and so on. `tools.py`
calls it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from wager.text.call_json import FoundCall

_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)</function>", re.DOTALL)
_BEGUN = re.compile(r"<function=([^>\n]+)>(.*)\Z", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def read_xml(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> list[FoundCall]:
    """Returns the calls in `text`; `schemas` are the parameters of the tools by name."""
    return [_read_one(name, body, schemas) for name, body in _FUNCTION.findall(text)]


def read_xml_partial(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> FoundCall | None:
    """Reads a truncated call with its complete parameters; None without a name."""
    found = _BEGUN.search(text)
    return None if found is None else _read_one(found.group(1), found.group(2), schemas)


def _read_one(name: str, body: str, schemas: Mapping[str, Mapping[str, Any]]) -> FoundCall:
    known = schemas.get(name, {}).get("properties")
    properties = known if isinstance(known, Mapping) else {}
    values = {key: read_value(value, properties.get(key)) for key, value in _PARAMETER.findall(body)}
    return FoundCall(name, json.dumps(values, ensure_ascii=False))


def is_text(schema: object) -> bool:
    """Whether a parameter's value is plain text: its schema is missing or says string."""
    if not isinstance(schema, Mapping):
        return True
    if "enum" in schema or "const" in schema:
        options = schema.get("enum", [schema.get("const")])
        return isinstance(options, list) and all(isinstance(option, str) for option in options)
    return schema.get("type") == "string"


def read_value(text: str, schema: object) -> object:
    """Converts a value by its schema; returns the text if it is not valid JSON."""
    if is_text(schema):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
