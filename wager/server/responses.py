"""/v1/responses: reads the request body and writes the answer, whole or as events. Nothing is stored."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from wager.errors import RequestError
from wager.records import GrammarSpec
from wager.server.answer_writer import AnswerWriter, named_event, respond
from wager.server.api_errors import ApiError
from wager.server.generation import Block, BlockChange, BlockEvent, BlockKind, Generation, Piece
from wager.server.generation_request import ChatRequest, ThinkingOptions, ToolOptions
from wager.server.middleware import access_record
from wager.server.model_service import service_of
from wager.server.schemas.base import ContentPart
from wager.server.schemas.responses import FunctionChoice, InputItem, ResponsesBody
from wager.text.grammar import json_spec

router = APIRouter()

Message = dict[str, Any]

LOGPROBS = "message.output_text.logprobs"
_ID_PREFIXES = {BlockKind.THINKING: "rs", BlockKind.TEXT: "msg", BlockKind.TOOL_CALL: "fc"}
_EVENT_NAMES = {
    BlockKind.THINKING: "response.reasoning_text",
    BlockKind.TEXT: "response.output_text",
    BlockKind.TOOL_CALL: "response.function_call_arguments",
}


@router.post("/v1/responses")
async def responses(body: ResponsesBody, request: Request) -> Response:
    """Answer a conversation."""
    service, client = service_of(request), access_record(request.scope).client
    model = service.model_name(body.model)
    built = await service.builder.build_chat(chat_request(body, client), model)
    return await respond(request, built, lambda generation: ResponseWriter(generation, body), body.stream)


def chat_request(body: ResponsesBody, client: str) -> ChatRequest:
    """The conversation in a body. Raises RequestError."""
    wants_logprobs = body.top_logprobs is not None or LOGPROBS in (body.include or ())
    sampling = {name: getattr(body, name) for name in ("temperature", "top_p", "top_k", "min_p", "seed")}
    reasoning = body.reasoning
    return ChatRequest(
        messages=chat_messages(body.input, body.instructions),
        sampling={**sampling, "logprobs": (body.top_logprobs or 0) if wants_logprobs else None},
        max_tokens=body.max_output_tokens,
        tools=_tools(body),
        grammar=_grammar(body),
        thinking=ThinkingOptions(None, reasoning.max_tokens, reasoning.effort)
        if reasoning
        else ThinkingOptions(),
        template_kwargs=body.chat_template_kwargs or {},
        speculation=body.speculation,
        client=client,
    )


def _tools(body: ResponsesBody) -> ToolOptions:
    tools = [
        {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
        for tool in body.tools or ()
    ]
    choice = body.tool_choice
    name = f"={choice.name}" if isinstance(choice, FunctionChoice) else choice or "auto"
    return ToolOptions(tools, name, body.parallel_tool_calls is not False)


def _grammar(body: ResponsesBody) -> GrammarSpec | None:
    form = body.text.format if body.text is not None else None
    if form is None:
        return None
    if form.type != "json_schema" and form.schema_ is not None:
        raise RequestError("is only allowed with the type 'json_schema'", "text.format.schema")
    if form.type == "text":
        return None
    if form.type == "json_object":
        return json_spec({"type": "object"})
    if form.schema_ is None:
        raise RequestError("expected a schema", "text.format.schema")
    return json_spec(form.schema_)


def chat_messages(given: str | Sequence[InputItem], instructions: str | None) -> list[Message]:
    """The items of a conversation as messages of chat completions. Raises RequestError naming the item.

    Items are a flat list; tool calls and reasoning are added to the assistant's message they belong to.
    """
    messages: list[Message] = [] if instructions is None else [{"role": "system", "content": instructions}]
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for place, item in enumerate(given):
        _add_item(item, messages, f"input[{place}]")
    return messages


def _add_item(item: InputItem, messages: list[Message], where: str) -> None:
    if item.type == "function_call":
        function = {name: _required(item, name, where) for name in ("name", "arguments")}
        call = {"id": _required(item, "call_id", where), "type": "function", "function": function}
        _assistant_message(messages).setdefault("tool_calls", []).append(call)
    elif item.type == "function_call_output":
        output = _joined(_required(item, "output", where))
        call_id = _required(item, "call_id", where)
        messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
    elif item.type == "reasoning":
        text = _joined(item.content or item.summary or [])
        _assistant_message(messages)["reasoning_content"] = text
    else:
        content = _joined(_required(item, "content", where))
        _add_message(messages, _required(item, "role", where), content)


def _add_message(messages: list[Message], role: str, text: str) -> None:
    """An assistant's text that follows reasoning belongs to the message of the reasoning."""
    if role == "assistant" and messages and messages[-1].keys() == {"role", "content", "reasoning_content"}:
        messages[-1]["content"] += text
        return
    messages.append({"role": role, "content": text})


def _assistant_message(messages: list[Message]) -> Message:
    """The assistant's message at the end; a new one if there is none."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _required(item: InputItem, name: str, where: str) -> Any:
    value = getattr(item, name)
    if value is None:
        raise RequestError(f"{name} is missing", where)
    return value


def _joined(content: str | Sequence[ContentPart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


class ResponseWriter(AnswerWriter):
    """Writes an answer in the form of /v1/responses."""

    def __init__(self, generation: Generation, body: ResponsesBody) -> None:
        super().__init__(generation)
        self._body = body
        self._id = f"resp_{uuid.uuid4().hex}"
        self._item_ids: dict[int, str] = {}
        self._created_s = time.time()
        self._num_events = 0

    def whole(self) -> dict[str, Any]:
        choice = self.generation.choices[0]
        is_cut = choice.finish == "length"
        status = "incomplete" if is_cut else "completed"
        return {
            **self._response(status),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [self._item(block, status) for block in choice.blocks.all],
            "usage": self._usage(),
            "metrics": self.generation.statistics(),
        }

    def start_events(self) -> Iterator[bytes]:
        response = self._response("in_progress")
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def piece_events(self, piece: Piece) -> Iterator[bytes]:
        for event in piece.events:
            yield from self._block_events(event)

    def end_events(self) -> Iterator[bytes]:
        response = self.whole()
        yield self._event(f"response.{response['status']}", response=response)

    def error_events(self, error: ApiError) -> Iterator[bytes]:
        details = {"code": "server_error", "message": str(error)}
        yield self._event("response.failed", response={**self._response("failed"), "error": details})

    def _event(self, name: str, /, **fields: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return named_event(name, {"type": name, "sequence_number": number, **fields})

    def _block_events(self, event: BlockEvent) -> Iterator[bytes]:
        block = event.block
        item = {"item_id": self._item_id(block), "output_index": block.index}
        part = {**item, "content_index": 0}
        if event.change is BlockChange.OPEN:
            yield from self._open_events(block, part)
        elif event.change is BlockChange.DELTA:
            place = item if block.kind is BlockKind.TOOL_CALL else part
            logprobs = {"logprobs": list(event.logprobs)} if block.kind is BlockKind.TEXT else {}
            yield self._event(f"{_EVENT_NAMES[block.kind]}.delta", **place, delta=event.text, **logprobs)
        else:
            yield from self._close_events(block, item, part)

    def _open_events(self, block: Block, part: dict[str, Any]) -> Iterator[bytes]:
        empty = Block(block.index, block.kind, block.call)
        item = self._item(empty, "in_progress")
        if block.kind is BlockKind.TEXT:
            item["content"] = []
        yield self._event("response.output_item.added", output_index=block.index, item=item)
        if block.kind is BlockKind.TEXT:
            yield self._event("response.content_part.added", **part, part=_text_part(empty))

    def _close_events(self, block: Block, item: dict[str, Any], part: dict[str, Any]) -> Iterator[bytes]:
        name = f"{_EVENT_NAMES[block.kind]}.done"
        if block.kind is BlockKind.TOOL_CALL:
            assert block.call is not None
            yield self._event(name, **item, name=block.call.name, arguments=block.text)
        elif block.kind is BlockKind.THINKING:
            yield self._event(name, **part, text=block.text)
        else:
            yield self._event(name, **part, text=block.text, logprobs=block.logprobs)
            yield self._event("response.content_part.done", **part, part=_text_part(block))
        done = self._item(block, "completed")
        yield self._event("response.output_item.done", output_index=block.index, item=done)

    def _item_id(self, block: Block) -> str:
        new_id = f"{_ID_PREFIXES[block.kind]}_{uuid.uuid4().hex}"
        return self._item_ids.setdefault(block.index, new_id)

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        head = {"id": self._item_id(block), "status": status}
        if block.kind is BlockKind.THINKING:
            content = [{"type": "reasoning_text", "text": block.text}] if block.text else []
            return {**head, "type": "reasoning", "summary": [], "content": content}
        if block.kind is BlockKind.TEXT:
            return {**head, "type": "message", "role": "assistant", "content": [_text_part(block)]}
        assert block.call is not None
        call = {"call_id": block.call.call_id, "name": block.call.name, "arguments": block.text}
        return {**head, "type": "function_call", **call}

    def _response(self, status: str) -> dict[str, Any]:
        """The fields that are known from the start; those of the request have the values that are applied."""
        body, params = self._body, self.generation.request.params
        text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_s,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": params.max_tokens,
            "metadata": body.metadata or {},
            "model": self.generation.request.model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": False,
            "temperature": params.temperature,
            "text": {"format": {"type": "text"}, **text},
            "tool_choice": body.model_dump(include={"tool_choice"})["tool_choice"] or "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self.generation.usage
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
        }


def _text_part(block: Block) -> dict[str, Any]:
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": list(block.logprobs)}
