"""Reads tool calls that are written as JSON: the end of a call as it arrives, its name and its arguments.

It accepts the variants that models write: arguments as an object or as JSON text, under either of two names,
and one call or a list of calls. `tools.py` calls it; it knows neither marks nor tools.
"""

import json
import re
from typing import NamedTuple

_KEYS = ("arguments", "parameters")
_NAME = re.compile(r'\s*\[?\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,?\s*')


class FoundCall(NamedTuple):
    """The name of a call and its arguments as JSON text."""

    name: str
    arguments: str


class JsonEndFinder:
    """Finds the end of a JSON object or list in a growing text, and reads every character once."""

    def __init__(self) -> None:
        self._place = 0
        self._depth = 0
        self._in_text = False
        self._escaped = False
        self.is_invalid = False
        """Whether the text cannot be JSON: it does not begin with an object or list, or has a mark outside a
        string.
        """

    def find(self, text: str) -> int | None:
        """Returns the end in `text`, which extends the text of the previous call; None if the end has not
        arrived.
        """
        while self._place < len(text) and not self.is_invalid:
            char = text[self._place]
            self._place += 1
            if self._in_text:
                self._in_text = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
            elif self._step(char):
                return self._place
        return None

    def _step(self, char: str) -> bool:
        """Reads a character outside strings and returns whether it ends the JSON."""
        if char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        elif char == '"':
            self._in_text = True
        # JSON has no "<" outside strings: it begins the mark that closes a malformed call.
        self.is_invalid = char == "<" or self._depth < 0 or (self._depth == 0 and char not in "}] \t\r\n")
        return self._depth == 0 and char in "}]"


def read_calls(text: str, key: str = "arguments") -> list[FoundCall]:
    """Returns the calls in the text of an object or of a list of objects; none if one of them cannot
    be read.
    """
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
    """Reads a truncated call: its name and the arguments written so far; None without a name."""
    found = _NAME.match(text)
    if found is None:
        return None
    rest = re.match(rf'"(?:{"|".join((re.escape(key), *_KEYS))})"\s*:\s*', text[found.end() :])
    arguments = "" if rest is None else text[found.end() + rest.end() :]
    stop = JsonEndFinder().find(arguments)
    try:
        return FoundCall(json.loads(found.group(1)), arguments[:stop])
    except ValueError:
        return None
