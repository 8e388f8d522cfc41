"""/v1/messages and /v1/messages/count_tokens: the API of Anthropic's clients."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from wager.errors import RequestError
from wager.server.answer_writer import AnswerWriter, named_event, respond
from wager.server.api_errors import MESSAGES_PATH, ApiError, json_response
from wager.server.generation import Block, BlockChange, BlockEvent, BlockKind, Generation, Piece
from wager.server.generation_request import ChatRequest, ThinkingOptions, ToolOptions
from wager.server.middleware import access_record
from wager.server.model_service import service_of
from wager.server.schemas.messages import ContentBlock, CountBody, MessagesBody
from wager.text.grammar import json_spec

router = APIRouter()

SIGNATURE = "unsigned"
"""The signature of returned thinking blocks. Signatures that clients send back are not checked."""

_EFFORTS = {"max": "xhigh"}
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_STOP_REASONS = {"tool_calls": "tool_use", "length": "max_tokens"}


@router.post(MESSAGES_PATH)
async def messages(body: MessagesBody, request: Request) -> Response:
    """Answer a conversation."""
    service, client = service_of(request), access_record(request.scope).client
    model = service.model_name(body.model)
    built = await service.builder.build_chat(chat_request(body, client), model)
    omits_thinking = body.thinking is not None and body.thinking.display == "omitted"
    return await respond(request, built, lambda it: MessageWriter(it, omits_thinking), body.stream)


@router.post(MESSAGES_PATH + "/count_tokens")
async def count_tokens(body: CountBody, request: Request) -> Response:
    """Count the prompt tokens of a conversation."""
    service = service_of(request)
    service.model_name(body.model)
    prompt = await service.builder.render(prompt_request(body))
    return json_response({"input_tokens": len(prompt.token_ids)})


def chat_request(body: MessagesBody, client: str) -> ChatRequest:
    """The conversation in a body. Raises RequestError."""
    sampling = {name: getattr(body, name) for name in ("temperature", "top_p", "top_k", "seed")}
    return replace(
        prompt_request(body),
        sampling={**sampling, "stop": body.stop_sequences},
        max_tokens=body.max_tokens,
        speculation=body.speculation,
        client=client,
    )


def prompt_request(body: CountBody) -> ChatRequest:
    """The part of a request that makes the prompt. Raises RequestError."""
    turns = [message for turn in body.messages for message in _turn_messages(turn.role, turn.content)]
    form = body.output_config.format if body.output_config is not None else None
    return ChatRequest(
        messages=[*_system_messages(body.system), *turns],
        tools=_tools(body),
        grammar=None if form is None else json_spec(form.schema_),
        thinking=_thinking_options(body),
        continue_final=bool(body.messages) and body.messages[-1].role == "assistant",
    )


def _thinking_options(body: CountBody) -> ThinkingOptions:
    """In this API the model thinks only if the request says so."""
    thinking = body.thinking
    effort = body.output_config.effort if body.output_config is not None else None
    if thinking is None or thinking.type == "disabled":
        if effort is not None:
            raise RequestError("requires thinking", "output_config.effort")
        return ThinkingOptions(enabled=False, budget=thinking.budget_tokens if thinking else None)
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise RequestError("is required with the type `enabled`", "thinking.budget_tokens")
    return ThinkingOptions(True, thinking.budget_tokens, _EFFORTS.get(effort or "", effort))


def _tools(body: CountBody) -> ToolOptions:
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.input_schema,
                "strict": bool(tool.strict),
            },
        }
        for tool in body.tools or ()
    ]
    choice = body.tool_choice
    if choice is None:
        return ToolOptions(tools)
    if (choice.type == "tool") != (choice.name is not None):
        raise RequestError("is required with the type `tool` and only allowed there", "tool_choice.name")
    name = f"={choice.name}" if choice.type == "tool" else _TOOL_CHOICES[choice.type]
    return ToolOptions(tools, name, not choice.disable_parallel_tool_use)


def _system_messages(system: str | list[ContentBlock] | None) -> list[dict[str, Any]]:
    if not system:
        return []
    return [{"role": "system", "content": _joined_text(system, "system")}]


def _turn_messages(role: str, content: str | list[ContentBlock]) -> Iterator[dict[str, Any]]:
    """A turn as messages of chat completions. Each tool result becomes a message of its own."""
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    if role == "assistant":
        yield _assistant_message(content)
        return
    texts: list[ContentBlock] = []
    for block in content:
        if block.type == "tool_result":
            if texts:
                yield {"role": "user", "content": _joined_text(texts, "messages")}
                texts = []
            result = _joined_text(block.content or "", "messages.tool_result")
            tool_use_id = _required(block, "tool_use_id")
            yield {"role": "tool", "tool_call_id": tool_use_id, "content": result}
        else:
            texts.append(block)
    if texts or not content:
        yield {"role": "user", "content": _joined_text(texts, "messages")}


def _assistant_message(content: Sequence[ContentBlock]) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for block in content:
        if block.type == "tool_use":
            arguments = json.dumps(_required(block, "input"), ensure_ascii=False)
            function = {"name": _required(block, "name"), "arguments": arguments}
            calls.append({"id": _required(block, "id"), "type": "function", "function": function})
        elif block.type == "thinking":
            thoughts.append(_required(block, "thinking"))
        elif block.type != "redacted_thinking":
            texts.append(block)
    message: dict[str, Any] = {"role": "assistant", "content": _joined_text(texts, "messages")}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _joined_text(content: str | Sequence[ContentBlock], where: str) -> str:
    if isinstance(content, str):
        return content
    for block in content:
        if block.type != "text":
            raise RequestError(f"a block of type {block.type!r} is not allowed here", where)
    return "\n".join(_required(block, "text") for block in content)


def _required(block: ContentBlock, name: str) -> Any:
    value = getattr(block, name)
    if value is None:
        raise RequestError(f"a {block.type} block needs {name}", "messages")
    return value


class MessageWriter(AnswerWriter):
    """Writes an answer in the form of /v1/messages."""

    keep_alive = named_event("ping", {"type": "ping"})

    def __init__(self, generation: Generation, omits_thinking: bool) -> None:
        """`omits_thinking`: thinking blocks are returned without their text."""
        super().__init__(generation)
        self._omits_thinking = omits_thinking
        self._head = {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": generation.request.model,
        }

    def whole(self) -> dict[str, Any]:
        blocks = self.generation.choices[0].blocks.all
        return {
            **self._head,
            "content": [self._block(block) for block in blocks],
            **self._stop(),
            **self._totals(),
        }

    def start_events(self) -> Iterator[bytes]:
        empty: dict[str, Any] = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(0, 0),
        }
        yield _event("message_start", message={**self._head, **empty})

    def piece_events(self, piece: Piece) -> Iterator[bytes]:
        for event in piece.events:
            is_omitted = self._omits_thinking and event.block.kind is BlockKind.THINKING
            if not (is_omitted and event.change is BlockChange.DELTA):
                yield from self._block_events(event)

    def end_events(self) -> Iterator[bytes]:
        yield _event("message_delta", delta=self._stop(), **self._totals())
        yield _event("message_stop")

    def error_events(self, error: ApiError) -> Iterator[bytes]:
        yield named_event("error", error.body(MESSAGES_PATH))

    def _block_events(self, event: BlockEvent) -> Iterator[bytes]:
        block = event.block
        is_thinking = block.kind is BlockKind.THINKING
        if event.change is BlockChange.OPEN:
            empty = self._block(Block(block.index, block.kind, block.call))
            signature = {"signature": ""} if is_thinking else {}
            yield _event("content_block_start", index=block.index, content_block={**empty, **signature})
        elif event.change is BlockChange.DELTA:
            yield _event("content_block_delta", index=block.index, delta=_delta(block.kind, event.text))
        else:
            if is_thinking:
                signed = {"type": "signature_delta", "signature": SIGNATURE}
                yield _event("content_block_delta", index=block.index, delta=signed)
            yield _event("content_block_stop", index=block.index)

    def _block(self, block: Block) -> dict[str, Any]:
        if block.kind is BlockKind.THINKING:
            text = "" if self._omits_thinking else block.text
            return {"type": "thinking", "thinking": text, "signature": SIGNATURE}
        if block.kind is BlockKind.TEXT:
            return {"type": "text", "text": block.text, "citations": None}
        assert block.call is not None
        call = {"id": block.call.call_id, "name": block.call.name, "input": _call_input(block.text)}
        return {"type": "tool_use", **call}

    def _totals(self) -> dict[str, Any]:
        usage = self.generation.usage
        return {
            "usage": self._usage(usage.output_tokens, usage.reasoning_tokens),
            "metrics": self.generation.statistics(),
        }

    def _usage(self, num_output: int, num_thinking: int) -> dict[str, Any]:
        return {
            "input_tokens": self.generation.request.num_prompt_tokens,
            "output_tokens": num_output,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens_details": {"thinking_tokens": num_thinking},
        }

    def _stop(self) -> dict[str, Any]:
        choice = self.generation.choices[0]
        assert choice.last is not None and choice.last.sequence is not None
        matched = choice.last.sequence.matched_stop
        reason = _STOP_REASONS.get(choice.finish or "", "end_turn")
        if reason == "end_turn" and isinstance(matched, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": matched}
        return {"stop_reason": reason, "stop_sequence": None}


def _event(name: str, **fields: Any) -> bytes:
    return named_event(name, {"type": name, **fields})


def _call_input(arguments: str) -> dict[str, Any]:
    """The arguments as an object; empty if the call was cut short."""
    try:
        parsed = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _delta(kind: BlockKind, text: str) -> dict[str, str]:
    if kind is BlockKind.THINKING:
        return {"type": "thinking_delta", "thinking": text}
    if kind is BlockKind.TEXT:
        return {"type": "text_delta", "text": text}
    return {"type": "input_json_delta", "partial_json": text}
