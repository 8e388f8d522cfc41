"""Reads tool calls that are written with a tag for the function and one for each parameter.

    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>

Values are plain text; the tool's schema says which of them are numbers, objects or the like. Called by
`tools.py`.
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
    """The calls in `text`; `schemas` are the tools' parameters by name."""
    return [_read_one(name, body, schemas) for name, body in _FUNCTION.findall(text)]


def read_xml_partial(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> FoundCall | None:
    """A call that was cut short, with the parameters that were finished; None without a name."""
    found = _BEGUN.search(text)
    return None if found is None else _read_one(found.group(1), found.group(2), schemas)


def _read_one(name: str, body: str, schemas: Mapping[str, Mapping[str, Any]]) -> FoundCall:
    known = schemas.get(name, {}).get("properties")
    properties = known if isinstance(known, Mapping) else {}
    values = {key: read_value(value, properties.get(key)) for key, value in _PARAMETER.findall(body)}
    return FoundCall(name, json.dumps(values, ensure_ascii=False))


def is_text(schema: object) -> bool:
    """Whether a parameter's value is written as it is: its schema says string, or nothing at all."""
    if not isinstance(schema, Mapping):
        return True
    if "enum" in schema or "const" in schema:
        options = schema.get("enum", [schema.get("const")])
        return isinstance(options, list) and all(isinstance(option, str) for option in options)
    return schema.get("type") == "string"


def read_value(text: str, schema: object) -> object:
    """A value as the schema has it; text where it is not the JSON it should be."""
    if is_text(schema):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
