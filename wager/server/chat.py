"""/v1/chat/completions: its body into a conversation, and its answer whole or in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from wager.errors import RequestError
from wager.server.answers import Answer, Choice, Piece, Usage
from wager.server.asks import Talk, ToolWish, ask_for_talk, grammar_of, logit_bias
from wager.server.doors import visit_of
from wager.server.problems import json_response, problem_of
from wager.server.reading import Call
from wager.server.schemas.chat import ChatBody, NamedTool
from wager.server.service import Service
from wager.server.stream import DONE, KEEP_ALIVE, EventStream, data, unless_gone
from wager.server.thinking import Wish

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    visit = visit_of(request.scope)
    ask = await ask_for_talk(service, talk_of(body, visit.client))
    visit.notes |= {"model": ask.model, "prompt_tokens": len(ask.prompts[0]), "stream": bool(body.stream)}
    answer = await service.answer(ask)
    writer = ChatWriter(answer, body)
    if body.stream:
        return EventStream(writer.stream(visit.notes), service.config.request_timeout_s + 5.0)
    await unless_gone(request.receive, answer.whole)
    visit.notes |= closing_notes(answer)
    return json_response(writer.whole())


def talk_of(body: ChatBody, client: str) -> Talk:
    """The conversation a body asks for. Raises RequestError."""
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise RequestError("says something else than max_completion_tokens", "max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("needs logprobs", "top_logprobs")
    top = (body.top_logprobs or 0) if body.logprobs else None
    return Talk(
        model=body.model,
        messages=[message.model_dump(exclude_none=True) for message in body.messages],
        sampling={**body.given(), "logit_bias": logit_bias(body.logit_bias), "logprobs": top},
        max_tokens=body.max_completion_tokens if body.max_tokens is None else body.max_tokens,
        n=count_of(body.n),
        tools=ToolWish(
            [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
            _tool_choice(body.tool_choice),
            body.parallel_tool_calls is not False,
        ),
        grammar=grammar_of(body.response_format),
        wish=wish_of(body),
        template_kwargs=body.chat_template_kwargs or {},
        continue_final=_continues(body),
        speculation=body.speculation,
        client=client,
    )


def wish_of(body: ChatBody) -> Wish:
    """What a body says about thinking, under any of its names; of several budgets the least holds."""
    thinking, reasoning = body.thinking, body.reasoning
    budgets = [
        body.thinking_token_budget,
        body.thinking_budget,
        thinking.budget_tokens if thinking is not None else None,
        reasoning.max_tokens if reasoning is not None else None,
    ]
    efforts = {one for one in (body.reasoning_effort, reasoning.effort if reasoning else None) if one}
    if len(efforts) > 1:
        raise RequestError("says something else than reasoning.effort", "reasoning_effort")
    told = (body.chat_template_kwargs or {}).get("enable_thinking")
    enabled = None if thinking is None or thinking.type == "adaptive" else thinking.type == "enabled"
    if isinstance(told, bool):
        enabled = told if enabled is None else enabled and told
    given = [budget for budget in budgets if budget is not None]
    return Wish(enabled, min(given, default=None), next(iter(efforts), None))


def count_of(n: int | None) -> int:
    if n is not None and n < 1:
        raise RequestError(f"{n} is not a whole number from 1", "n")
    return n or 1


def _tool_choice(choice: str | NamedTool | None) -> str:
    return f"={choice.function.name}" if isinstance(choice, NamedTool) else choice or "auto"


def _continues(body: ChatBody) -> bool:
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise RequestError("cannot go with add_generation_prompt", "continue_final_message")
    if body.add_generation_prompt is False and not continues:
        raise RequestError("an answer needs it, or continue_final_message", "add_generation_prompt")
    return continues


class ChatWriter:
    """Writes one answer in the form of chat completions."""

    def __init__(self, answer: Answer, body: ChatBody) -> None:
        self._answer = answer
        self._body = body
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": answer.ask.model,
        }
        self._begun: set[int] = set()

    def whole(self) -> dict[str, Any]:
        answer = self._answer
        choices = [self._choice(index, choice) for index, choice in enumerate(answer.choices)]
        head = {**self._head, "object": "chat.completion"}
        return {
            **head,
            "choices": choices,
            "usage": usage_of(answer.usage),
            "metrics": answer.statistics(),
            "service_tier": None,
            "system_fingerprint": None,
        }

    async def stream(self, notes: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        """Chunks, then `[DONE]`; an error on the way is the last event."""
        answer, options = self._answer, self._body.stream_options
        usage_wanted = options.include_usage if options is not None else None
        left = answer.ask.num_choices
        try:
            async with aclosing(answer.pieces()) as pieces:
                async for piece in pieces:
                    if piece is None:
                        yield KEEP_ALIVE
                        continue
                    left -= piece.finish is not None
                    with_usage = not left and usage_wanted is None
                    for chunk in self._chunks(piece, with_usage):
                        yield data(chunk)
            notes |= closing_notes(answer)
            if usage_wanted:
                yield data({**self._chunk([]), **self._closing()})
        except Exception as error:
            notes["error"] = True
            yield data(problem_of(error).body())
        yield DONE

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.thought:
            message["reasoning_content"] = choice.thought
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = [whole_call(call) for call in choice.calls]
        found = {"index": index, "message": message, "finish_reason": choice.finish, **details_of(choice)}
        found["logprobs"] = {"content": choice.logprobs, "refusal": None} if self._body.logprobs else None
        return found

    def _chunks(self, piece: Piece, with_usage: bool) -> list[dict[str, Any]]:
        """The chunks of a piece: the first of a choice names the role, the last says why it ended."""
        delta: dict[str, Any] = {}
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            delta = {"role": "assistant", "content": ""}
        if piece.reasoning:
            delta["reasoning_content"] = piece.reasoning
        if piece.content:
            delta["content"] = piece.content
        if piece.calls:
            delta["tool_calls"] = [{"index": call.index, **whole_call(call)} for call in piece.calls]
        chunks = []
        if delta or piece.tokens or piece.logprobs:
            chunks.append(self._with_tokens(self._delta(piece, delta, None), piece))
        if piece.finish is not None:
            chunk = self._delta(piece, {}, piece.finish)
            chunk["choices"][0] |= details_of(self._answer.choices[piece.index])
            chunks.append({**chunk, **self._closing()} if with_usage else chunk)
        return chunks

    def _delta(self, piece: Piece, delta: Mapping[str, Any], finish: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": piece.index, "delta": delta, "finish_reason": finish}
        if self._body.logprobs and finish is None:
            choice["logprobs"] = {"content": list(piece.logprobs), "refusal": None}
        else:
            choice["logprobs"] = None
        return self._chunk([choice])

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk", "choices": choices}

    def _with_tokens(self, chunk: dict[str, Any], piece: Piece) -> dict[str, Any]:
        if piece.tokens:
            chunk["wager"] = {"tokens": piece.tokens, "step_ms": round(piece.step_ms, 3)}
        return chunk

    def _closing(self) -> dict[str, Any]:
        return {"usage": usage_of(self._answer.usage), "metrics": self._answer.statistics()}


def whole_call(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def usage_of(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.written,
        "total_tokens": usage.prompt + usage.written,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def details_of(choice: Choice) -> dict[str, Any]:
    """What became of its thinking, and which stop text ended it."""
    sequence = choice.end.sequence if choice.end is not None else None
    if sequence is None:
        return {}
    matched = sequence.matched_stop
    own = isinstance(matched, str) or matched in sequence.params.stop_token_ids
    found: dict[str, Any] = {"stop_reason": matched if own else None}
    if sequence.close is not None:
        found["finish_details"] = {
            "close_kind": sequence.close.kind.value,
            "thinking_tokens": sequence.close.thinking_tokens,
            "content_tokens": sequence.close.content_tokens,
            "repeat_stopped": sequence.repeat_stopped,
        }
    return found


def closing_notes(answer: Answer) -> dict[str, Any]:
    """For the access line."""
    reasons = sorted({choice.finish or "" for choice in answer.choices})
    return {"output_tokens": answer.usage.written, "finish": ",".join(reasons)}
