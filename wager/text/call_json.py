"""Reads tool calls that are written as JSON: where one ends as it arrives, its name and its arguments.

Tolerant of what models write: arguments as an object or as JSON text, under either of two names, one call or
a list. Called by `tools.py`; knows no marks and no tools.
"""

import json
import re
from typing import NamedTuple

_KEYS = ("arguments", "parameters")
_NAME = re.compile(r'\s*\[?\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,?\s*')


class FoundCall(NamedTuple):
    """A call's name and its arguments as JSON text."""

    name: str
    arguments: str


class JsonEnd:
    """Finds the end of a JSON object or list in a text that grows; looks at every character once."""

    def __init__(self) -> None:
        self._place = 0
        self._depth = 0
        self._in_text = False
        self._escaped = False
        self.is_hopeless = False
        """Whether it cannot be JSON: no object or list begins it, or a mark stands where no text is."""

    def find(self, text: str) -> int | None:
        """The end in `text`, which is what was given before and more; None where it has not come."""
        while self._place < len(text) and not self.is_hopeless:
            sign = text[self._place]
            self._place += 1
            if self._in_text:
                self._in_text = self._escaped or sign != '"'
                self._escaped = sign == "\\" and not self._escaped
            elif self._step(sign):
                return self._place
        return None

    def _step(self, sign: str) -> bool:
        """Take in a character outside texts; whether it ends the whole."""
        if sign in "{[":
            self._depth += 1
        elif sign in "}]":
            self._depth -= 1
        elif sign == '"':
            self._in_text = True
        # Outside texts JSON has no "<": it begins the mark that closes a broken call.
        self.is_hopeless = sign == "<" or self._depth < 0 or (self._depth == 0 and sign not in "}] \t\r\n")
        return self._depth == 0 and sign in "}]"


def read_calls(text: str, key: str = "arguments") -> list[FoundCall]:
    """The calls in the text of an object or of a list of objects; none where one of them cannot be read."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found = [_read_one(one, key) for one in (value if isinstance(value, list) else [value])]
    return [one for one in found if one is not None] if None not in found else []


def _read_one(value: object, key: str) -> FoundCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    given: object = next((value[name] for name in (key, *_KEYS) if value.get(name) is not None), {})
    if isinstance(given, str):
        return FoundCall(value["name"], given) if _is_object(given) else None
    if not isinstance(given, dict):
        return None
    return FoundCall(value["name"], json.dumps(given, ensure_ascii=False))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def read_partial(text: str, key: str = "arguments") -> FoundCall | None:
    """A call that was cut short: its name and as much of its arguments as there is; None without a name."""
    found = _NAME.match(text)
    if found is None:
        return None
    rest = re.match(rf'"(?:{"|".join((re.escape(key), *_KEYS))})"\s*:\s*', text[found.end() :])
    arguments = "" if rest is None else text[found.end() + rest.end() :]
    stop = JsonEnd().find(arguments)
    try:
        return FoundCall(json.loads(found.group(1)), arguments[:stop])
    except ValueError:
        return None
