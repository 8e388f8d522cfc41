"""From the items of /v1/responses to the messages of chat completions.

A conversation there is a flat list: messages, the model's calls, their outputs and its reasoning. Calls and
reasoning join the assistant's message they belong to. Knows neither HTTP nor what becomes of the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wager.errors import RequestError
from wager.server.schemas.responses import InputItem

Message = dict[str, Any]

_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def messages_of(given: str | Sequence[InputItem], instructions: str | None) -> list[Message]:
    """The whole conversation. Raises RequestError naming the item."""
    found: list[Message] = [] if instructions is None else [{"role": "system", "content": instructions}]
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    for place, item in enumerate(given):
        _take(item, found, f"input[{place}]")
    return found


def _take(item: InputItem, found: list[Message], where: str) -> None:
    kind = item.type or "message"
    if kind == "message":
        if item.role is None:
            raise RequestError("a message needs a role", where)
        _add_message(found, item.role, texts_of(_field(item, "content", where), where))
    elif kind == "function_call":
        _assistant(found).setdefault("tool_calls", []).append(_call(item, where))
    elif kind == "function_call_output":
        call_id = _text_field(item, "call_id", where)
        output = texts_of(_field(item, "output", where), where)
        found.append({"role": "tool", "tool_call_id": call_id, "content": output})
    elif kind == "reasoning":
        parts = (item.model_extra or {}).get("content") or (item.model_extra or {}).get("summary") or []
        _assistant(found)["reasoning_content"] = texts_of(parts, where)
    else:
        raise RequestError(f"an item of type {kind[:40]!r} is not known here", where)


def _add_message(found: list[Message], role: str, text: str) -> None:
    """Behind reasoning alone, an assistant's text belongs to the same message."""
    if role == "assistant" and found and found[-1].keys() == {"role", "content", "reasoning_content"}:
        found[-1]["content"] += text
        return
    found.append({"role": role, "content": text})


def _assistant(found: list[Message]) -> Message:
    """The assistant's message that is being put together."""
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": ""})
    return found[-1]


def _call(item: InputItem, where: str) -> Message:
    function = {
        "name": _text_field(item, "name", where),
        "arguments": _text_field(item, "arguments", where),
    }
    return {"id": _text_field(item, "call_id", where), "type": "function", "function": function}


def texts_of(content: object, where: str) -> str:
    """Content as one text. Raises RequestError on parts that are no text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError("expected text or a list of parts", where)
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") in _TEXTS else None
        if not isinstance(text, str):
            raise RequestError("expected a part that is text; this model reads nothing else", where)
        texts.append(text)
    return "\n".join(texts)


def _field(item: InputItem, name: str, where: str) -> Any:
    value = (item.model_extra or {}).get(name)
    if value is None:
        raise RequestError(f"{name} is missing", where)
    return value


def _text_field(item: InputItem, name: str, where: str) -> str:
    value = _field(item, name, where)
    if not isinstance(value, str):
        raise RequestError(f"{name} is no text", where)
    return value
