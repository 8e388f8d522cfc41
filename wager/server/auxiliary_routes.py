"""The routes that generate no text: health, models, tokenizer, settings, metrics, state and policy."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from wager.errors import RequestError
from wager.server.answer_writer import EventStream, data_event
from wager.server.api_errors import ApiError, json_response
from wager.server.generation_request import ChatRequest, ToolOptions
from wager.server.metrics import CONTENT_TYPE
from wager.server.model_service import ModelService, service_of
from wager.server.request_builder import Prompt
from wager.server.schemas.chat import DetokenizeBody, PolicyBody, TokenizeBody
from wager.server_config import SECRETS
from wager.text.token_bytes import TokenBytes

router = APIRouter()

POLICIES = (
    *("auto", "ar", "fixed:2", "fixed:4", "fixed:8"),
    *("tree:16", "bod", "bod:tree", "ema+auto", "entropy+auto"),
)
"""Suggestions for clients. Every name that the flag --policy accepts is accepted."""


@router.get("/health")
async def health(request: Request) -> Response:
    """200 if requests are accepted; 503 while the model loads, after a failure and during a drain."""
    bridge = service_of(request).bridge
    if bridge.is_ready:
        return json_response({"status": "ok"})
    status = "failed" if bridge.failure else "draining" if bridge.draining else "loading"
    return json_response({"status": status, "reason": bridge.failure}, 503, {"Retry-After": "2"})


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The model under each of its names."""
    service = service_of(request)
    return json_response({"object": "list", "data": [_model(service, name) for name in service.names]})


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> Response:
    """The model under one of its names."""
    service = service_of(request)
    return json_response(_model(service, service.model_name(name)))


def _model(service: ModelService, name: str) -> dict[str, Any]:
    """The fields of both OpenAI's and Anthropic's model lists."""
    return {
        "id": name,
        "object": "model",
        "created": int(service.started_s),
        "owned_by": "wager",
        "type": "model",
        "display_name": name,
        "max_model_len": service.engine.parts.max_context,
    }


@router.post("/tokenize")
async def tokenize(body: TokenizeBody, request: Request) -> Response:
    """Token ids of a text, or of a conversation rendered with the chat template."""
    service = service_of(request)
    service.model_name(body.model)
    prompt = await _tokenized(service, body)
    found: dict[str, Any] = {
        "tokens": prompt.token_ids,
        "count": len(prompt.token_ids),
        "max_model_len": service.engine.parts.max_context,
    }
    if body.return_token_strs:
        token_bytes = TokenBytes(service.builder.prompts.tokenizer)
        found["token_strs"] = [token_bytes.text(token_id) for token_id in prompt.token_ids]
    return json_response(found)


async def _tokenized(service: ModelService, body: TokenizeBody) -> Prompt:
    prompts = service.builder.prompts
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", "prompt")
    if body.prompt is not None:
        for name in ("tools", "chat_template_kwargs"):
            if getattr(body, name):
                raise RequestError("is only allowed with messages", name)
        return await prompts.encode(body.prompt, body.add_special_tokens)
    chat = ChatRequest(
        [message.model_dump(exclude_none=True) for message in body.messages or ()],
        tools=ToolOptions([tool.model_dump(exclude_none=True) for tool in body.tools or ()]),
        template_kwargs=body.chat_template_kwargs or {},
        add_generation_prompt=body.add_generation_prompt,
    )
    return await prompts.render(chat)


@router.post("/detokenize")
async def detokenize(body: DetokenizeBody, request: Request) -> Response:
    """The text of token ids."""
    service = service_of(request)
    service.model_name(body.model)
    tokenizer = service.builder.prompts.tokenizer
    for token_id in body.tokens:
        if not 0 <= token_id < service.engine.runner.vocab_size:
            raise RequestError(f"{token_id} is not a token id of this model", "tokens")
    return json_response({"prompt": tokenizer.decode(body.tokens, body.skip_special_tokens)})


@router.get("/props")
async def props(request: Request) -> Response:
    """Every effective setting with its source, the engine's decisions, the model card and the policies."""
    service = service_of(request)
    settings = {
        row.setting.key: {"value": _masked(row.setting.name, row.value), "source": row.source}
        for row in service.settings.rows()
    }
    engine, card = service.engine, service.builder.card
    return json_response(
        {
            "model": service.names[0],
            "names": service.names,
            "settings": settings,
            "engine": engine.parts.notes,
            "policy": engine.controller.policy.name,
            "policies": POLICIES,
            "max_context": engine.parts.max_context,
            "card": {name: {"value": value, "source": source} for name, value, source in card.rows()},
            "thinks": service.builder.thinking is not None,
            "policy_may_change": not service.is_open,
        }
    )


def _masked(name: str, value: object) -> object:
    return "***" if name in SECRETS and value else value


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Metrics in the format of Prometheus."""
    return Response(service_of(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE})


@router.get("/wager/state")
async def engine_state(request: Request) -> Response:
    """The current state of the engine."""
    return json_response(service_of(request).monitor.state())


@router.get("/wager/live")
async def live(request: Request) -> Response:
    """The state of the engine as events, twice a second."""
    service = service_of(request)
    _ = service.monitor  # raises NotReady before the stream begins

    async def events() -> AsyncGenerator[bytes, None]:
        async with aclosing(service.states()) as states:
            async for state in states:
                yield data_event(state)

    return EventStream(events())


@router.post("/wager/policy")
async def policy(body: PolicyBody, request: Request) -> Response:
    """Change the policy from the next step on. What was learned about costs is kept."""
    service = service_of(request)
    if service.is_open:
        raise ApiError(403, "the policy can only be changed with an API key or on loopback")
    return json_response({"policy": await service.set_policy(body.policy)})
