"""Tool calls in a model's text: which way of writing them its template uses, and reading them as they arrive.

A `ToolFormat` is one way of writing calls; `find_format` recognises it in a chat template. `ToolParser` takes
the answer's text in pieces and gives out content and whole calls; the text of a call never becomes content.
It knows nothing of HTTP or tokens. Special tokens show in a text only if asked to: `ToolFormat.shown_ids`.
`tool_grammar.py` makes the grammar that forces a call.
"""

import contextlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wager.text.call_json import FoundCall, JsonEnd, read_calls, read_partial
from wager.text.call_xml import read_xml, read_xml_partial
from wager.text.marks import find_mark, mark_ids, num_open
from wager.text.tokenizer import Tokenizer

Tool = Mapping[str, Any]
"""A tool as OpenAI's clients send it: {"type": "function", "function": {...}}, or the function alone."""


@dataclass(frozen=True)
class ToolFormat:
    """A way of writing calls."""

    name: str
    open: str = ""
    """What stands before a call; empty: a call is a line of JSON that names a known tool first."""
    close: str = ""
    """What stands behind it; empty: nothing does."""
    arguments: str = "arguments"
    """The key of the arguments."""
    in_template: bool = True
    """Whether the chat template writes out earlier calls and takes tools as clients send them."""

    def shown_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The special tokens among its marks, for `SamplingParams.shown_ids`."""
        return mark_ids(tokenizer, [mark for mark in (self.open, self.close) if mark])

    def write(self, name: str, arguments: object) -> str:
        """A call as the model would write it (not for `xml`, whose templates write out calls themselves)."""
        return json.dumps({"name": name, self.arguments: arguments}, ensure_ascii=False)


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>")
XML = ToolFormat("xml", "<tool_call>", "</tool_call>")
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]")
LLAMA = ToolFormat("llama", arguments="parameters")
LINES = ToolFormat("lines", in_template=False)
"""A JSON object per line; the template knows tools, but not calls. The demo pair's."""


def find_format(templates: Mapping[str, str]) -> ToolFormat | None:
    """How the calls of a model with these chat templates look; None where they take no tools."""
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
    """The function of a tool, wrapped or not."""
    function = tool.get("function", tool)
    return function if isinstance(function, Mapping) else {}


class PromptParts(NamedTuple):
    """What a chat template is given."""

    messages: list[Mapping[str, Any]]
    tools: list[Mapping[str, Any]] | None


def for_template(
    form: ToolFormat | None, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool] | None
) -> PromptParts:
    """Messages and tools as the template of this format expects them."""
    if form is None or form.in_template:
        return PromptParts(list(messages), list(tools) if tools else None)
    bare = [function_of(tool) for tool in tools or ()]
    return PromptParts([_with_written_calls(form, message) for message in messages], bare or None)


def _with_written_calls(form: ToolFormat, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with its calls in its content."""
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
        return message  # the chat template's own checks refuse it by name
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
    """A call that was read."""

    index: int
    name: str
    arguments: str
    """JSON text; what there was of it where the call is not complete."""
    complete: bool = True


class ToolPiece(NamedTuple):
    """New content and calls."""

    content: str = ""
    calls: tuple[ToolCall, ...] = ()


class ToolParser:
    """Reads one sequence's answer. What it gives out does not depend on how the text was cut.

    Blanks next to a call are no content. A call that cannot be read goes to `malformed`, not to the content.
    """

    def __init__(self, form: ToolFormat, tools: Sequence[Tool]) -> None:
        functions = [function_of(tool) for tool in tools]
        self._form = form
        self._schemas = {str(one.get("name")): one.get("parameters") or {} for one in functions}
        self._held = ""
        self._end: JsonEnd | None = None
        """Follows the call that is open; None outside."""
        self._is_fresh = False
        """Whether nothing but blanks came behind the last call."""
        self._at_line = True
        """Whether what is held begins at the beginning of a line."""
        self._num_calls = 0
        self.malformed: list[str] = []

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0

    def feed(self, text: str) -> ToolPiece:
        """Take text in; returns what of it is certain."""
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
        """The text has ended. A call that it cut short is given out if its name is known."""
        held, self._held = self._held, ""
        if self._end is None and (self._form.open or not held.lstrip().startswith("{")):
            return ToolPiece(held.strip() if self._is_fresh else held)
        self._end = None
        is_xml = self._form.name == "xml"
        found = read_xml_partial(held, self._schemas) if is_xml else read_partial(held, self._form.arguments)
        if found is None:
            self.malformed.append(held)
            return ToolPiece()
        return ToolPiece(calls=(self._numbered(found, complete=False),))

    def _read_outside(self) -> str:
        """The content that is certain; begins a call where one stands behind it."""
        if self._is_fresh:
            self._held = self._held.lstrip()
        opening = find_opening(self._held, self._form, self._schemas, self._at_line)
        ready = self._held[: opening.start].rstrip()
        if opening.body is None:
            # Blanks stay behind: a call may follow them.
            self._held = self._held[len(ready) :]
            self._is_fresh, self._at_line = self._is_fresh and not ready, self._at_line and not ready
        else:
            self._held, self._end = self._held[opening.body :], JsonEnd()
        return ready

    def _read_inside(self, end: JsonEnd) -> str | None:
        """The text of the open call once it is complete; None before."""
        form, body = self._form, self._held
        stop = None if form.name == "xml" else end.find(body)
        if form.close and (stop is not None or end.is_hopeless or form.name == "xml"):
            place = body.find(form.close, stop or 0)
            stop = None if place < 0 else place + len(form.close)
        if stop is None:
            return None
        self._held, self._end, self._is_fresh, self._at_line = body[stop:], None, True, True
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
    """Where content ends; and, where a call begins there, where its text does."""

    start: int
    body: int | None = None


def find_opening(text: str, form: ToolFormat, names: Collection[str], at_line: bool) -> Opening:
    """The first call in `text`, else how much of it can be no beginning of one."""
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
    """Whether an object begins as a call of one of these tools does; None: too short to tell."""
    rest = text
    for part in _HEAD:
        if not rest.startswith(part):
            return None if part.startswith(rest) else False
        rest = rest[len(part) :].lstrip()
    written = [json.dumps(name, ensure_ascii=False) for name in names]
    if any(rest.startswith(name) for name in written):
        return True
    return None if any(name.startswith(rest) for name in written) else False
