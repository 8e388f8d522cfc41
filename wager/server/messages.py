"""/v1/messages and /v1/messages/count_tokens: the dialect of Anthropic's clients."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from wager.errors import RequestError
from wager.server.answers import Answer, Piece
from wager.server.asks import Talk, ToolWish, ask_for_talk, render
from wager.server.blocks import Block, Blocks, Change, Kind, Step
from wager.server.chat import closing_notes
from wager.server.doors import visit_of
from wager.server.problems import MESSAGES_PATH, json_response, problem_of
from wager.server.schemas.messages import AnyBlock, CountBody, MessagesBody
from wager.server.service import Service
from wager.server.stream import EventStream, event, unless_gone
from wager.server.thinking import Wish
from wager.text.grammar import json_spec

router = APIRouter()

SIGNATURE = "unsigned"
"""Thinking comes back unsigned, and is taken back so."""

_EFFORTS = {"max": "xhigh"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


@router.post(MESSAGES_PATH)
async def messages(body: MessagesBody, request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    visit = visit_of(request.scope)
    ask = await ask_for_talk(service, talk_of(body, visit.client))
    visit.notes |= {"model": ask.model, "prompt_tokens": len(ask.prompts[0]), "stream": bool(body.stream)}
    answer = await service.answer(ask)
    writer = MessageWriter(answer, omit=body.thinking is not None and body.thinking.display == "omitted")
    if body.stream:
        return EventStream(writer.stream(visit.notes), service.config.request_timeout_s + 5.0)
    await unless_gone(request.receive, writer.collect)
    visit.notes |= closing_notes(answer)
    return json_response(writer.whole())


@router.post(MESSAGES_PATH + "/count_tokens")
async def count_tokens(body: CountBody, request: Request) -> Response:
    """How many tokens a conversation has as a prompt."""
    service: Service = request.app.state.service
    service.model_name(body.model)
    prompt = await render(service, conversation_of(body))
    return json_response({"input_tokens": len(prompt.token_ids)})


def talk_of(body: MessagesBody, client: str) -> Talk:
    """The conversation a body asks for. Raises RequestError."""
    sampling = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": body.stop_sequences,
        "seed": body.seed,
    }
    return replace(
        conversation_of(body),
        sampling=sampling,
        max_tokens=body.max_tokens,
        speculation=body.speculation,
        client=client,
    )


def conversation_of(body: CountBody) -> Talk:
    """What of a body makes the prompt. Raises RequestError."""
    chat = [*_system(body.system), *(one for turn in body.messages for one in _turn(turn.role, turn.content))]
    form = body.output_config.format if body.output_config is not None else None
    return Talk(
        model=body.model,
        messages=chat,
        sampling={},
        tools=_tools(body),
        grammar=None if form is None else json_spec(form.schema_),
        wish=_wish(body),
        continue_final=bool(body.messages) and body.messages[-1].role == "assistant",
    )


def _wish(body: CountBody) -> Wish:
    """This dialect thinks only when it is told to."""
    effort = body.output_config.effort if body.output_config is not None else None
    if body.thinking is None or body.thinking.type == "disabled":
        if effort is not None:
            raise RequestError("needs thinking: it says for how long", "output_config.effort")
        return Wish(enabled=False, budget=body.thinking.budget_tokens if body.thinking else None)
    if body.thinking.type == "enabled" and body.thinking.budget_tokens is None:
        raise RequestError("expected with thinking", "thinking.budget_tokens")
    return Wish(True, body.thinking.budget_tokens, _EFFORTS.get(effort or "", effort))


def _tools(body: CountBody) -> ToolWish:
    tools = [
        {
            "type": "function",
            "function": {
                "name": one.name,
                "description": one.description or "",
                "parameters": one.input_schema,
                "strict": bool(one.strict),
            },
        }
        for one in body.tools or ()
    ]
    choice = body.tool_choice
    if choice is None:
        return ToolWish(tools)
    if (choice.type == "tool") != (choice.name is not None):
        raise RequestError("belongs to the type `tool`, and to it alone", "tool_choice.name")
    word = f"={choice.name}" if choice.type == "tool" else _CHOICES[choice.type]
    return ToolWish(tools, word, not choice.disable_parallel_tool_use)


def _system(system: str | list[AnyBlock] | None) -> list[dict[str, Any]]:
    if not system:
        return []
    text = system if isinstance(system, str) else "\n".join(_text(one, "system") for one in system)
    return [{"role": "system", "content": text}]


def _turn(role: str, content: str | list[AnyBlock]) -> Iterator[dict[str, Any]]:
    """A turn as messages of chat completions: results of tools are messages of their own."""
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    if role == "assistant":
        yield _assistant(content)
        return
    texts: list[str] = []
    for block in content:
        if block.type == "tool_result":
            if texts:
                yield {"role": "user", "content": "\n".join(texts)}
                texts = []
            yield _result(block)
        else:
            texts.append(_text(block, "messages"))
    if texts or not content:
        yield {"role": "user", "content": "\n".join(texts)}


def _assistant(content: Sequence[AnyBlock]) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for block in content:
        if block.type == "tool_use":
            calls.append(_use(block))
        elif block.type == "thinking":
            thoughts.append(_field(block, "thinking", str))
        elif block.type != "redacted_thinking":
            texts.append(_text(block, "messages"))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _use(block: AnyBlock) -> dict[str, Any]:
    arguments = json.dumps(_field(block, "input", dict), ensure_ascii=False)
    function = {"name": _field(block, "name", str), "arguments": arguments}
    return {"id": _field(block, "id", str), "type": "function", "function": function}


def _result(block: AnyBlock) -> dict[str, Any]:
    given = (block.model_extra or {}).get("content", "")
    if isinstance(given, list):
        parts = [AnyBlock.model_validate(one) for one in given if isinstance(one, dict) and "type" in one]
        if len(parts) < len(given):
            raise RequestError("expected blocks with a type", "messages.tool_result")
        given = "\n".join(_text(one, "messages.tool_result") for one in parts)
    if not isinstance(given, str):
        raise RequestError("expected text", "messages.tool_result")
    return {"role": "tool", "tool_call_id": _field(block, "tool_use_id", str), "content": given}


def _text(block: AnyBlock, where: str) -> str:
    if block.type != "text":
        raise RequestError(f"a block of type {block.type[:40]!r} here; this model reads text only", where)
    text: str = _field(block, "text", str)
    return text


def _field(block: AnyBlock, name: str, kind: type) -> Any:
    value = (block.model_extra or {}).get(name)
    if not isinstance(value, kind):
        raise RequestError(f"a {block.type} block needs {name}", "messages")
    return value


class MessageWriter:
    """Writes one answer in this dialect."""

    def __init__(self, answer: Answer, omit: bool = False) -> None:
        """`omit`: thinking is told, but not shown."""
        self._answer = answer
        self._omit = omit
        self._blocks = Blocks()
        self._id = f"msg_{uuid.uuid4().hex[:24]}"

    async def collect(self) -> None:
        """Read to the end."""
        async with aclosing(self._answer.pieces()) as pieces:
            async for piece in pieces:
                if piece is not None:
                    self._take(piece)

    def whole(self) -> dict[str, Any]:
        return {
            **self._head(),
            "content": [_whole_block(block) for block in self._blocks.all],
            **self._stop(),
            "usage": self._usage(self._answer.usage.written, self._answer.usage.reasoning),
            "metrics": self._answer.statistics(),
        }

    async def stream(self, notes: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        begun = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None}
        yield event("message_start", {"type": "message_start", "message": {**begun, "usage": self._usage(0)}})
        try:
            async with aclosing(self._answer.pieces()) as pieces:
                async for piece in pieces:
                    if piece is None:
                        yield event("ping", {"type": "ping"})
                        continue
                    for step in self._take(piece):
                        yield _step_event(step)
            for step in self._blocks.close():
                yield _step_event(step)
            notes |= closing_notes(self._answer)
            yield event("message_delta", self._last())
            yield event("message_stop", {"type": "message_stop"})
        except Exception as error:
            notes["error"] = True
            yield event("error", problem_of(error).body(MESSAGES_PATH))

    def _take(self, piece: Piece) -> list[Step]:
        steps = self._blocks.take(piece)
        if not self._omit:
            return steps
        for block in self._blocks.all:
            block.text = "" if block.kind is Kind.THINKING else block.text
        return [one for one in steps if one.change is not Change.DELTA or one.block.kind is not Kind.THINKING]

    def _head(self) -> dict[str, Any]:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._answer.ask.model}

    def _last(self) -> dict[str, Any]:
        return {
            "type": "message_delta",
            "delta": self._stop(),
            "usage": self._usage(self._answer.usage.written, self._answer.usage.reasoning),
            "metrics": self._answer.statistics(),
        }

    def _usage(self, written: int, thought: int = 0) -> dict[str, Any]:
        return {
            "input_tokens": sum(map(len, self._answer.ask.prompts)),
            "output_tokens": written,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens_details": {"thinking_tokens": thought},
        }

    def _stop(self) -> dict[str, Any]:
        choice = self._answer.choices[0]
        assert choice.end is not None and choice.end.sequence is not None
        matched = choice.end.sequence.matched_stop
        reason = {"tool_calls": "tool_use", "length": "max_tokens"}.get(choice.finish or "", "end_turn")
        if reason == "end_turn" and isinstance(matched, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": matched}
        return {"stop_reason": reason, "stop_sequence": None}


def _whole_block(block: Block) -> dict[str, Any]:
    if block.kind is Kind.THINKING:
        return {"type": "thinking", "thinking": block.text, "signature": SIGNATURE}
    if block.kind is Kind.TEXT:
        return {"type": "text", "text": block.text, "citations": None}
    assert block.call is not None
    return {
        "type": "tool_use",
        "id": block.call.call_id,
        "name": block.call.name,
        "input": _input(block.text),
    }


def _input(arguments: str) -> dict[str, Any]:
    """Arguments as an object; of a call that was cut short, none."""
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _step_event(step: Step) -> bytes:
    block = step.block
    if step.change is Change.OPEN:
        empty = Block(block.index, block.kind, block.call)
        begun = _whole_block(empty) | ({"signature": ""} if block.kind is Kind.THINKING else {})
        name, rest = "content_block_start", {"content_block": begun}
    elif step.change is Change.DELTA:
        name, rest = "content_block_delta", {"delta": _delta(block.kind, step.text)}
    else:
        name, rest = "content_block_stop", {}
    found = event(name, {"type": name, "index": block.index, **rest})
    if step.change is Change.CLOSE and block.kind is Kind.THINKING:
        signed = {"type": "signature_delta", "signature": SIGNATURE}
        body = {"type": "content_block_delta", "index": block.index, "delta": signed}
        return event("content_block_delta", body) + found
    return found


def _delta(kind: Kind, text: str) -> dict[str, str]:
    if kind is Kind.THINKING:
        return {"type": "thinking_delta", "thinking": text}
    if kind is Kind.TEXT:
        return {"type": "text_delta", "text": text}
    return {"type": "input_json_delta", "partial_json": text}
