"""/v1/chat/completions: reads the request body and writes the answer, whole or in chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from wager.errors import RequestError
from wager.server.answer_writer import ChunkWriter, finish_details, respond
from wager.server.generation import Choice, Generation, Piece, ToolCall
from wager.server.generation_request import ChatRequest, ThinkingOptions, ToolOptions
from wager.server.middleware import access_record
from wager.server.model_service import service_of
from wager.server.request_builder import choice_count, grammar_of, logit_bias
from wager.server.schemas.chat import ChatBody, NamedTool

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """Answer a conversation."""
    service, client = service_of(request), access_record(request.scope).client
    model = service.model_name(body.model)
    built = await service.builder.build_chat(chat_request(body, client), model)
    return await respond(request, built, lambda generation: ChatWriter(generation, body), body.stream)


def chat_request(body: ChatBody, client: str) -> ChatRequest:
    """The conversation in a body. Raises RequestError."""
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise RequestError("contradicts max_completion_tokens", "max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("requires logprobs", "top_logprobs")
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return ChatRequest(
        messages=[message.model_dump(exclude_none=True) for message in body.messages],
        sampling={**body.given(), "logit_bias": logit_bias(body.logit_bias), "logprobs": num_logprobs},
        max_tokens=body.max_completion_tokens if body.max_tokens is None else body.max_tokens,
        n=choice_count(body.n),
        tools=ToolOptions(
            [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
            _tool_choice(body.tool_choice),
            body.parallel_tool_calls is not False,
        ),
        grammar=grammar_of(body.response_format),
        thinking=thinking_options(body),
        template_kwargs=body.chat_template_kwargs or {},
        continue_final=_continues_final(body),
        speculation=body.speculation,
        client=client,
    )


def thinking_options(body: ChatBody) -> ThinkingOptions:
    """What a body says about thinking under any of the field names. The smallest budget counts."""
    thinking, reasoning = body.thinking, body.reasoning
    budgets = [
        body.thinking_token_budget,
        body.thinking_budget,
        thinking.budget_tokens if thinking is not None else None,
        reasoning.max_tokens if reasoning is not None else None,
    ]
    given = [budget for budget in budgets if budget is not None]
    efforts = {
        effort for effort in (body.reasoning_effort, reasoning.effort if reasoning else None) if effort
    }
    if len(efforts) > 1:
        raise RequestError("contradicts reasoning.effort", "reasoning_effort")
    enabled = None if thinking is None or thinking.type == "adaptive" else thinking.type == "enabled"
    in_template = (body.chat_template_kwargs or {}).get("enable_thinking")
    if isinstance(in_template, bool):
        enabled = in_template if enabled is None else enabled and in_template
    return ThinkingOptions(enabled, min(given, default=None), next(iter(efforts), None))


def _tool_choice(choice: str | NamedTool | None) -> str:
    return f"={choice.function.name}" if isinstance(choice, NamedTool) else choice or "auto"


def _continues_final(body: ChatBody) -> bool:
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise RequestError("cannot be combined with add_generation_prompt", "continue_final_message")
    if body.add_generation_prompt is False and not continues:
        raise RequestError("can only be false with continue_final_message", "add_generation_prompt")
    return continues


class ChatWriter(ChunkWriter):
    """Writes an answer in the form of chat completions."""

    id_prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"

    def __init__(self, generation: Generation, body: ChatBody) -> None:
        super().__init__(generation, body.stream_options)
        self._wants_logprobs = bool(body.logprobs)
        self._started: set[int] = set()

    def whole(self) -> dict[str, Any]:
        return {
            **self.head,
            "object": "chat.completion",
            "choices": [self._whole_choice(choice) for choice in self.generation.choices],
            **self.totals(),
            "service_tier": None,
            "system_fingerprint": None,
        }

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """The first chunk of a choice names the role; the last one says why the choice ended."""
        delta: dict[str, Any] = {}
        if piece.index not in self._started:
            self._started.add(piece.index)
            delta = {"role": "assistant", "content": ""}
        if piece.reasoning:
            delta["reasoning_content"] = piece.reasoning
        if piece.content:
            delta["content"] = piece.content
        if piece.calls:
            delta["tool_calls"] = [{"index": call.index, **_call_body(call)} for call in piece.calls]
        chunks = []
        if delta or piece.tokens or piece.logprobs:
            logprobs = self._logprobs(piece.logprobs)
            chunks.append(self.chunk(piece, {"delta": delta, "finish_reason": None, "logprobs": logprobs}))
        if piece.finish is not None:
            last: dict[str, Any] = {"delta": {}, "finish_reason": piece.finish, "logprobs": None}
            last |= finish_details(self.generation.choices[piece.index])
            chunks.append(self.chunk(Piece(piece.index), last))
        return chunks

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        content, reasoning = choice.content, choice.reasoning
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if choice.calls:
            message["content"] = content or None
            message["tool_calls"] = [_call_body(call) for call in choice.calls]
        fields = {"message": message, "logprobs": self._logprobs(choice.logprobs)}
        return self.whole_choice(choice, fields)

    def _logprobs(self, logprobs: Any) -> Mapping[str, Any] | None:
        return {"content": list(logprobs), "refusal": None} if self._wants_logprobs else None


def _call_body(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}
