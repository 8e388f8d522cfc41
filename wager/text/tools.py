"""Tool calls in a model's text: the format in which its template writes them, and their streaming parser.

A `ToolFormat` is one format of calls; `find_format` recognises it in a chat template. `ToolParser` takes the
text of the answer in pieces and returns content and whole calls; the text of a call never becomes content.
This module knows nothing of HTTP or tokens. A text contains special tokens only if the request asks for them
(`ToolFormat.shown_ids`). `tool_grammar.py` creates the grammar that forces a call.
"""

import contextlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wager.text.call_json import FoundCall, JsonEndFinder, read_calls, read_partial
from wager.text.call_xml import read_xml, read_xml_partial
from wager.text.marks import find_mark, mark_ids, num_open
from wager.text.tokenizer import Tokenizer

Tool = Mapping[str, Any]
"""A tool as OpenAI's clients send it, {"type": "function", "function": {...}}, or the function alone."""


@dataclass(frozen=True)
class ToolFormat:
    """A format in which models write calls."""

    name: str
    open: str = ""
    """Text before a call; if it is empty, a call is a line of JSON that begins with the name of a
    known tool.
    """
    close: str = ""
    """Text after a call; may be empty."""
    arguments: str = "arguments"
    """The key of the arguments."""
    in_template: bool = True
    """Whether the chat template renders earlier calls and accepts tools as clients send them."""

    def shown_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Returns the marks that are special tokens, for `SamplingParams.shown_ids`."""
        return mark_ids(tokenizer, [mark for mark in (self.open, self.close) if mark])

    def write(self, name: str, arguments: object) -> str:
        """Returns a call as the model would write it; not for `xml`, whose templates render calls
        themselves.
        """
        return json.dumps({"name": name, self.arguments: arguments}, ensure_ascii=False)


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>")
XML = ToolFormat("xml", "<tool_call>", "</tool_call>")
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]")
LLAMA = ToolFormat("llama", arguments="parameters")
LINES = ToolFormat("lines", in_template=False)
"""One JSON object per line, for templates that accept tools but do not render calls, such as the
demo pair's.
"""


def find_format(templates: Mapping[str, str]) -> ToolFormat | None:
    """Returns the call format of a model with these chat templates; None if they accept no tools."""
    source = templates.get("tool_use") or templates.get("default", "")
    if not re.search(r"\btools\b", source):
        return None
    if "<function=" in source:
        return XML
    if HERMES.open in source:
        return HERMES
    if MISTRAL.open in source:
        return MISTRAL
    if re.search(r'"parameters\\?":', source):
        return LLAMA
    return LINES if "tool_calls" not in source else ToolFormat("lines")


def function_of(tool: Tool) -> Mapping[str, Any]:
    """Returns the function of a tool, wrapped or not."""
    function = tool.get("function", tool)
    return function if isinstance(function, Mapping) else {}


class PromptParts(NamedTuple):
    """The input of a chat template."""

    messages: list[Mapping[str, Any]]
    tools: list[Mapping[str, Any]] | None


def for_template(
    form: ToolFormat | None, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool] | None
) -> PromptParts:
    """Returns messages and tools in the form that the template of this format expects."""
    if form is None or form.in_template:
        return PromptParts(list(messages), list(tools) if tools else None)
    bare = [function_of(tool) for tool in tools or ()]
    return PromptParts([_with_written_calls(form, message) for message in messages], bare or None)


def _with_written_calls(form: ToolFormat, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the message with its calls as part of its content."""
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
        return message  # the checks of the chat template report it
    content = message.get("content")
    if not calls or not (content is None or isinstance(content, str)):
        return message
    lines = [content] if content else []
    for call in calls:
        function = function_of(call)
        arguments: Any = function.get("arguments") or {}
        with contextlib.suppress(ValueError, TypeError):
            arguments = json.loads(arguments)
        lines.append(form.write(str(function.get("name")), arguments))
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(lines)}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in a model's text."""

    index: int
    name: str
    arguments: str
    """JSON text; truncated if the call is not complete."""
    complete: bool = True


class ToolPiece(NamedTuple):
    """New content and calls."""

    content: str = ""
    calls: tuple[ToolCall, ...] = ()


class ToolParser:
    """Reads the answer of one sequence. The result does not depend on how the text was cut into pieces.

    Blanks next to a call are not content. A call that cannot be read is appended to `malformed`.
    """

    def __init__(self, form: ToolFormat, tools: Sequence[Tool]) -> None:
        functions = [function_of(tool) for tool in tools]
        self._form = form
        self._schemas = {str(one.get("name")): one.get("parameters") or {} for one in functions}
        self._held = ""
        self._end: JsonEndFinder | None = None
        """Finds the end of the open call; None outside calls."""
        self._only_blanks = False
        """Whether only blanks followed the last call."""
        self._at_line = True
        """Whether the held text begins at the start of a line."""
        self._num_calls = 0
        self.malformed: list[str] = []

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0

    def feed(self, text: str) -> ToolPiece:
        """Takes text and returns the part whose meaning is certain."""
        self._held += text
        content: list[str] = []
        calls: list[ToolCall] = []
        while True:
            if self._end is None:
                content.append(self._read_outside())
            body = None if self._end is None else self._read_inside(self._end)
            if body is None:
                return ToolPiece("".join(content), tuple(calls))
            calls += self._calls_of(body)

    def flush(self) -> ToolPiece:
        """Ends the text. A truncated call is returned if its name is known."""
        held, self._held = self._held, ""
        if self._end is None and (self._form.open or not held.lstrip().startswith("{")):
            return ToolPiece(held.strip() if self._only_blanks else held)
        self._end = None
        is_xml = self._form.name == "xml"
        found = read_xml_partial(held, self._schemas) if is_xml else read_partial(held, self._form.arguments)
        if found is None:
            self.malformed.append(held)
            return ToolPiece()
        return ToolPiece(calls=(self._numbered(found, complete=False),))

    def _read_outside(self) -> str:
        """Returns the content that is certain, and opens a call if one follows it."""
        if self._only_blanks:
            self._held = self._held.lstrip()
        opening = find_opening(self._held, self._form, self._schemas, self._at_line)
        ready = self._held[: opening.start].rstrip()
        if opening.body is None:
            # Blanks are held back, because a call may follow them.
            self._held = self._held[len(ready) :]
            self._only_blanks, self._at_line = self._only_blanks and not ready, self._at_line and not ready
        else:
            self._held, self._end = self._held[opening.body :], JsonEndFinder()
        return ready

    def _read_inside(self, end: JsonEndFinder) -> str | None:
        """Returns the text of the open call once it is complete, else None."""
        form, body = self._form, self._held
        stop = None if form.name == "xml" else end.find(body)
        if form.close and (stop is not None or end.is_invalid or form.name == "xml"):
            place = body.find(form.close, stop or 0)
            stop = None if place < 0 else place + len(form.close)
        if stop is None:
            return None
        self._held, self._end, self._only_blanks, self._at_line = body[stop:], None, True, True
        return body[:stop]

    def _calls_of(self, body: str) -> list[ToolCall]:
        inner = body.removesuffix(self._form.close)
        is_xml = self._form.name == "xml"
        found = read_xml(inner, self._schemas) if is_xml else read_calls(inner, self._form.arguments)
        if not found:
            self.malformed.append(body)
        return [self._numbered(one) for one in found]

    def _numbered(self, found: FoundCall, complete: bool = True) -> ToolCall:
        self._num_calls += 1
        return ToolCall(self._num_calls - 1, found.name, found.arguments, complete)


class Opening(NamedTuple):
    """The end of the content and, if a call begins there, the start of its text."""

    start: int
    body: int | None = None


def find_opening(text: str, form: ToolFormat, names: Collection[str], at_line: bool) -> Opening:
    """Finds the first call in `text`, else the length of the text that cannot begin one."""
    if form.open:
        found = find_mark(text, (form.open,))
        if found is not None:
            return Opening(found.start, found.stop)
        return Opening(len(text) - num_open(text, (form.open,)))
    for found_line in _LINE.finditer(text):
        start = found_line.end() - 1
        if at_line or "\n" in found_line.group():
            is_call = _is_head(text[start:], names)
            if is_call is not False:
                return Opening(start, start if is_call else None)
    return Opening(len(text))


_LINE = re.compile(r"(?:\A|\n)\s*\{")
_HEAD = ("{", '"name"', ":")


def _is_head(text: str, names: Collection[str]) -> bool | None:
    """Whether an object begins as a call of one of these tools does; None if the text is too short."""
    rest = text
    for part in _HEAD:
        if not rest.startswith(part):
            return None if part.startswith(rest) else False
        rest = rest[len(part) :].lstrip()
    written = [json.dumps(name, ensure_ascii=False) for name in names]
    if any(rest.startswith(name) for name in written):
        return True
    return None if any(name.startswith(rest) for name in written) else False
