"""Renders a conversation to prompt text with the chat template of the model.

Templates are untrusted programs: they run in jinja's sandbox and see plain data only. This module does not
know token ids or HTTP schemas. The server and the offline interface call it and encode the result without
adding special tokens.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from wager.errors import ModelError, RequestError
from wager.gguf.header import is_gguf, read_header
from wager.text.gguf_tokenizer import chat_templates, special_texts
from wager.text.tokenizer import named_specials, read_json

Message = dict[str, Any]

REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")
GIVEN_NAMES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
# The tag ends with a space, which shows whether the template trimmed the message.
CONTINUE_TAG = "\ue000continue-here\ue001 "


class GenerationTag(jinja2.ext.Extension):
    """Renders the body of `{% generation %}`, with which some templates mark the text that a model is trained
    on.
    """

    tags = {"generation"}  # noqa: RUF012 (jinja declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


class ChatTemplate:
    """A model's chat template, or several by name: "default", and "tool_use" for requests with tools."""

    def __init__(
        self, source: str | Mapping[str, str], special_tokens: Mapping[str, str] | None = None
    ) -> None:
        sources = {"default": source} if isinstance(source, str) else dict(source)
        if "default" not in sources:
            raise ModelError(f"chat templates {sorted(sources)}: none of them is named 'default'")
        self.sources = sources
        self._special_tokens = dict(special_tokens or {})
        self._templates = {name: compile_template(text) for name, text in sources.items()}

    @classmethod
    def from_folder(cls, folder: str | Path) -> "ChatTemplate | None":
        """Returns the template in a model folder or a GGUF file, or None if there is none."""
        path = Path(folder)
        if is_gguf(path):
            header = read_header(path)
            sources = chat_templates(header)
            return cls(sources, special_texts(header)) if sources else None
        settings = read_json(path / "tokenizer_config.json")
        special_tokens = named_specials(settings) | named_specials(
            read_json(path / "special_tokens_map.json")
        )
        source = _find_source(path, settings)
        return None if source is None else cls(source, special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Returns the prompt text; `continue_final` leaves the last message open instead of starting a new
        one.

        `template_kwargs` are variables for the template, such as enable_thinking. Raises RequestError on
        messages that are malformed or that the template rejects.
        """
        chat = [
            plain_message(message, f"messages[{i}]")
            for i, message in enumerate(_listed(messages, "messages"))
        ]
        if not chat:
            raise RequestError("expected at least one message", "messages")
        if continue_final:
            _tag_final(chat, add_generation_prompt)
        variables = {
            **self._special_tokens,
            **_checked_kwargs(template_kwargs or {}),
            "messages": chat,
            "tools": None if tools is None else plain(_listed(tools, "tools"), "tools"),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run("tool_use" if tools and "tool_use" in self._templates else "default", variables)
        return _cut_at_tag(text) if continue_final else text

    def _run(self, name: str, variables: dict[str, Any]) -> str:
        try:
            return self._templates[name].render(variables)
        except _Refusal as error:
            raise RequestError(error.message, "messages") from error
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            LookupError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise RequestError(
                f"the model's chat template cannot render them ({error})", "messages"
            ) from error


class _Refusal(jinja2.TemplateError):
    """The template called raise_exception."""


def compile_template(source: str) -> jinja2.Template:
    """Compiles a template with the settings and functions that model authors expect."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ModelError(f"the chat template cannot be compiled ({error})") from error


def plain_message(message: object, where: str) -> Message:
    """Returns a copy of one message in the form that templates expect. Raises RequestError."""
    if not isinstance(message, Mapping):
        raise RequestError("expected an object with role and content", where)
    copied: Message = plain(message, where)
    role = copied.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"expected a role, found {role!r}", f"{where}.role")
    if "content" not in copied and not copied.get("tool_calls"):
        raise RequestError("expected content", where)
    copied["content"] = content_text(copied.get("content"), f"{where}.content")
    if copied.get("tool_calls"):
        copied["tool_calls"] = [
            _plain_call(call, f"{where}.tool_calls[{i}]")
            for i, call in enumerate(_listed(copied["tool_calls"], f"{where}.tool_calls"))
        ]
    return _with_reasoning(copied)


def content_text(content: object, where: str) -> str:
    """Returns content as one text: parts are joined with line feeds, and missing content is empty."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = []
    for i, part in enumerate(_listed(content, where)):
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        if kind not in ("text", "input_text", "output_text") or not isinstance(text, str):
            raise RequestError("expected a text part; this model reads text only", f"{where}[{i}]")
        parts.append(text)
    return "\n".join(parts)


def plain(value: Any, where: str) -> Any:
    """Rebuilds JSON-like data from plain types; rejects other types, because a template could call their
    methods.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise RequestError(f"expected plain JSON data, found {type(value).__name__}", where)


def _listed(value: object, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise RequestError(f"expected a list, found {type(value).__name__}", where)
    return value


def _plain_call(call: object, where: str) -> Message:
    """Converts the arguments of a tool call from JSON text, as clients send it, to an object for the
    template.
    """
    function = call.get("function", call) if isinstance(call, dict) else None
    if (
        not isinstance(call, dict)
        or not isinstance(function, dict)
        or not isinstance(function.get("name"), str)
    ):
        raise RequestError("expected a function with a name", where)
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError):
        return call
    if not isinstance(arguments, dict):
        return call
    function = {**function, "arguments": arguments}
    return {**call, "function": function} if "function" in call else function


def _with_reasoning(message: Message) -> Message:
    """Stores earlier reasoning under both names that templates read."""
    reasoning = next((message[name] for name in REASONING_NAMES if message.get(name) is not None), None)
    return (
        message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}
    )


def _checked_kwargs(template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    checked: dict[str, Any] = plain(template_kwargs, "chat_template_kwargs")
    taken = sorted(GIVEN_NAMES & checked.keys())
    if taken:
        raise RequestError(
            "has its own request field and cannot be set here", f"chat_template_kwargs.{taken[0]}"
        )
    return checked


def _tag_final(chat: list[Message], add_generation_prompt: bool) -> None:
    if add_generation_prompt:
        raise RequestError(
            "the last message cannot be continued when a new one is started", "continue_final_message"
        )
    chat[-1]["content"] += CONTINUE_TAG


def _cut_at_tag(text: str) -> str:
    """Returns the text before the tag, without trailing space if the template trimmed the message."""
    place = text.rfind(CONTINUE_TAG.strip())
    if place < 0:
        raise RequestError("the chat template does not show the last message", "continue_final_message")
    trimmed = not text.startswith(CONTINUE_TAG, place)
    return text[:place].rstrip() if trimmed else text[:place]


def _find_source(folder: Path, settings: dict[str, Any]) -> str | dict[str, str] | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{file}: cannot be read ({error})") from error
    stated = settings.get("chat_template") or read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(stated, list) and all(isinstance(each, dict) for each in stated):
        return {str(each.get("name")): str(each.get("template")) for each in stated}
    if stated is not None and not isinstance(stated, str):
        raise ModelError(
            f"{folder}: chat_template is {type(stated).__name__}, expected text or a list of named texts"
        )
    return stated


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The tojson filter without jinja's escaping of HTML characters."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
