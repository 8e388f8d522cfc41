"""/v1/responses: its body into a conversation, and its answer whole or as events. Nothing is stored."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from wager.errors import RequestError
from wager.records import GrammarSpec
from wager.server.answers import Answer
from wager.server.asks import Talk, ToolWish, ask_for_talk
from wager.server.blocks import Block, Blocks, Change, Kind, Step
from wager.server.chat import closing_notes
from wager.server.doors import visit_of
from wager.server.problems import json_response, problem_of
from wager.server.responses_input import messages_of
from wager.server.schemas.responses import FlatChoice, ResponsesBody
from wager.server.service import Service
from wager.server.stream import KEEP_ALIVE, EventStream, event, unless_gone
from wager.server.thinking import Wish
from wager.text.grammar import json_spec

router = APIRouter()

LOGPROBS = "message.output_text.logprobs"


@router.post("/v1/responses")
async def responses(body: ResponsesBody, request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    visit = visit_of(request.scope)
    ask = await ask_for_talk(service, talk_of(body, visit.client))
    visit.notes |= {"model": ask.model, "prompt_tokens": len(ask.prompts[0]), "stream": bool(body.stream)}
    answer = await service.answer(ask)
    writer = ResponseWriter(answer, body)
    if body.stream:
        return EventStream(writer.stream(visit.notes), service.config.request_timeout_s + 5.0)
    await unless_gone(request.receive, writer.collect)
    visit.notes |= closing_notes(answer)
    return json_response(writer.whole())


def talk_of(body: ResponsesBody, client: str) -> Talk:
    """The conversation a body asks for. Raises RequestError."""
    wants_logprobs = body.top_logprobs is not None or LOGPROBS in (body.include or ())
    sampling = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "seed": body.seed,
        "logprobs": (body.top_logprobs or 0) if wants_logprobs else None,
    }
    reasoning = body.reasoning
    return Talk(
        model=body.model,
        messages=messages_of(body.input, body.instructions),
        sampling=sampling,
        max_tokens=body.max_output_tokens,
        tools=_tools(body),
        grammar=_grammar(body),
        wish=Wish(budget=reasoning.max_tokens, effort=reasoning.effort) if reasoning else Wish(),
        template_kwargs=body.chat_template_kwargs or {},
        speculation=body.speculation,
        client=client,
    )


def _tools(body: ResponsesBody) -> ToolWish:
    tools = [
        {"type": "function", "function": one.model_dump(exclude={"type"}, exclude_none=True)}
        for one in body.tools or ()
    ]
    choice = body.tool_choice
    word = f"={choice.name}" if isinstance(choice, FlatChoice) else choice or "auto"
    return ToolWish(tools, word, body.parallel_tool_calls is not False)


def _grammar(body: ResponsesBody) -> GrammarSpec | None:
    form = body.text.format if body.text is not None else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return json_spec({"type": "object"})
    if form.schema_ is None:
        raise RequestError("expected a schema", "text.format.schema")
    return json_spec(form.schema_)


class ResponseWriter:
    """Writes one answer in this dialect."""

    def __init__(self, answer: Answer, body: ResponsesBody) -> None:
        self._answer = answer
        self._body = body
        self._blocks = Blocks()
        self._id = f"resp_{uuid.uuid4().hex}"
        self._ids: dict[int, str] = {}
        self._created = time.time()
        self._number = 0

    async def collect(self) -> None:
        """Read to the end."""
        async with aclosing(self._answer.pieces()) as pieces:
            async for piece in pieces:
                if piece is not None:
                    self._blocks.take(piece)

    def whole(self) -> dict[str, Any]:
        finish = self._answer.choices[0].finish
        cut = finish == "length"
        return {
            **self._response("incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item(block, "incomplete" if cut else "completed") for block in self._blocks.all],
            "usage": self._usage(),
            "metrics": self._answer.statistics(),
        }

    async def stream(self, notes: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        begun = self._response("in_progress")
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)
        try:
            async with aclosing(self._answer.pieces()) as pieces:
                async for piece in pieces:
                    if piece is None:
                        yield KEEP_ALIVE
                        continue
                    for step in self._blocks.take(piece):
                        for one in self._step_events(step):
                            yield one
            for step in self._blocks.close():
                for one in self._step_events(step):
                    yield one
            notes |= closing_notes(self._answer)
            last = self.whole()
            yield self._event(f"response.{last['status']}", response=last)
        except Exception as error:
            notes["error"] = True
            problem = problem_of(error)
            failed = {"code": "server_error", "message": str(problem)}
            yield self._event("response.failed", response={**self._response("failed"), "error": failed})

    def _event(self, name: str, /, **rest: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event(name, {"type": name, "sequence_number": number, **rest})

    def _step_events(self, step: Step) -> Iterator[bytes]:
        block = step.block
        at = {"item_id": self._item_id(block), "output_index": block.index}
        part = {**at, "content_index": 0}
        if step.change is Change.OPEN:
            empty = Block(block.index, block.kind, block.call)
            item = self._item(empty, "in_progress")
            if block.kind is Kind.TEXT:
                item["content"] = []
            yield self._event("response.output_item.added", output_index=block.index, item=item)
            if block.kind is Kind.TEXT:
                yield self._event("response.content_part.added", **part, part=_text_part(empty))
        elif step.change is Change.DELTA:
            more = {"logprobs": list(step.logprobs)} if block.kind is Kind.TEXT else {}
            where = at if block.kind is Kind.CALL else part
            yield self._event(f"response.{_NAMES[block.kind]}.delta", **where, delta=step.text, **more)
        else:
            yield from self._closing(block, at, part)

    def _closing(self, block: Block, at: dict[str, Any], part: dict[str, Any]) -> Iterator[bytes]:
        name = f"response.{_NAMES[block.kind]}.done"
        if block.kind is Kind.CALL:
            assert block.call is not None
            yield self._event(name, **at, name=block.call.name, arguments=block.text)
        elif block.kind is Kind.THINKING:
            yield self._event(name, **part, text=block.text)
        else:
            yield self._event(name, **part, text=block.text, logprobs=block.logprobs)
            yield self._event("response.content_part.done", **part, part=_text_part(block))
        item = self._item(block, "completed")
        yield self._event("response.output_item.done", output_index=block.index, item=item)

    def _item_id(self, block: Block) -> str:
        prefix = {Kind.THINKING: "rs", Kind.TEXT: "msg", Kind.CALL: "fc"}[block.kind]
        return self._ids.setdefault(block.index, f"{prefix}_{uuid.uuid4().hex}")

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        head = {"id": self._item_id(block), "status": status}
        if block.kind is Kind.THINKING:
            content = [{"type": "reasoning_text", "text": block.text}] if block.text else []
            return {**head, "type": "reasoning", "summary": [], "content": content}
        if block.kind is Kind.TEXT:
            return {**head, "type": "message", "role": "assistant", "content": [_text_part(block)]}
        assert block.call is not None
        call = {"call_id": block.call.call_id, "name": block.call.name, "arguments": block.text}
        return {**head, "type": "function_call", **call}

    def _response(self, status: str) -> dict[str, Any]:
        """What is known from the beginning; the request's own fields come back as they hold."""
        body, params = self._body, self._answer.ask.params
        text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": params.max_tokens,
            "metadata": body.metadata or {},
            "model": self._answer.ask.model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": False,
            "temperature": params.temperature,
            "text": {"format": {"type": "text"}, **text},
            "tool_choice": body.model_dump(include={"tool_choice"})["tool_choice"] or "auto",
            "tools": [one.model_dump() for one in body.tools or ()],
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self._answer.usage
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.written,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.prompt + usage.written,
        }


_NAMES = {Kind.THINKING: "reasoning_text", Kind.TEXT: "output_text", Kind.CALL: "function_call_arguments"}


def _text_part(block: Block) -> dict[str, Any]:
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": list(block.logprobs)}
