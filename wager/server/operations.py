"""Everything that is not an answer: health, models, tokens, settings, metrics, the live state, the policy."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from wager.errors import RequestError
from wager.server.asks import plain_role
from wager.server.metrics import CONTENT_TYPE
from wager.server.problems import Problem, json_response
from wager.server.prompts import Chat
from wager.server.schemas.chat import DetokenizeBody, PolicyBody, TokenizeBody
from wager.server.service import Service
from wager.server.stream import EventStream, data
from wager.server_config import SECRETS
from wager.text.token_bytes import TokenBytes

router = APIRouter()

POLICIES = (
    "auto",
    "ar",
    "fixed:2",
    "fixed:4",
    "fixed:8",
    "tree:16",
    "bod",
    "bod:tree",
    "ema+auto",
    "entropy+auto",
)
"""Some that are worth trying; any name that the flag --policy takes is taken."""


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.get("/health")
async def health(request: Request) -> Response:
    """200 when requests are taken; 503 while the model is loaded, when it failed, and while draining."""
    bridge = service_of(request).bridge
    if bridge.is_ready:
        return json_response({"status": "ok"})
    status = "failed" if bridge.failure else "draining" if bridge.draining else "loading"
    return json_response({"status": status, "reason": bridge.failure}, 503, {"Retry-After": "2"})


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The model, under each of its names."""
    service = service_of(request)
    return json_response({"object": "list", "data": [_model(service, name) for name in service.names]})


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> Response:
    """One of them."""
    service = service_of(request)
    return json_response(_model(service, service.model_name(name)))


def _model(service: Service, name: str) -> dict[str, Any]:
    """In the words of both dialects that list models."""
    return {
        "id": name,
        "object": "model",
        "created": int(service.began_s),
        "owned_by": "wager",
        "type": "model",
        "display_name": name,
        "max_model_len": service.engine.parts.max_context,
    }


@router.post("/tokenize")
async def tokenize(body: TokenizeBody, request: Request) -> Response:
    """Token ids of a text, or of a conversation as the chat template puts it."""
    service = service_of(request)
    service.model_name(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give prompt or messages, one of them", "prompt")
    if body.prompt is not None:
        prompt = await service.prompts.text(body.prompt, body.add_special_tokens)
    else:
        messages = [plain_role(message.model_dump(exclude_none=True)) for message in body.messages or ()]
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
        kwargs = body.chat_template_kwargs or {}
        prompt = await service.prompts.chat(Chat(messages, tools, kwargs, body.add_generation_prompt))
    found: dict[str, Any] = {
        "tokens": prompt.token_ids,
        "count": len(prompt.token_ids),
        "max_model_len": service.engine.parts.max_context,
    }
    if body.return_token_strs:
        known = TokenBytes(service.prompts.tokenizer)
        found["token_strs"] = [known.text(token_id) for token_id in prompt.token_ids]
    return json_response(found)


@router.post("/detokenize")
async def detokenize(body: DetokenizeBody, request: Request) -> Response:
    """The text of token ids."""
    service = service_of(request)
    service.model_name(body.model)
    tokenizer = service.prompts.tokenizer
    for token_id in body.tokens:
        if not 0 <= token_id < service.engine.runner.vocab_size:
            raise RequestError(f"{token_id} is no token of this model", "tokens")
    return json_response({"prompt": tokenizer.decode(body.tokens, body.skip_special_tokens)})


@router.get("/props")
async def props(request: Request) -> Response:
    """Every effective setting with its source, what the engine decided, and the policies to choose from."""
    service = service_of(request)
    settings = {
        row.setting.key: {"value": _shown(row.setting.name, row.value), "source": row.source}
        for row in service.settings.rows()
    }
    engine, card = service.engine, service.model_card
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
            "thinks": service.thinker is not None,
            "policy_may_change": not service.is_open,
        }
    )


def _shown(name: str, value: object) -> object:
    return "***" if name in SECRETS and value else value


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    return Response(service_of(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE})


@router.get("/wager/state")
async def state(request: Request) -> Response:
    """What the engine is doing now."""
    return json_response(service_of(request).meter.state())


@router.get("/wager/live")
async def live(request: Request) -> Response:
    """The same as events, twice a second."""
    service = service_of(request)
    _ = service.meter  # refuses before the stream begins

    async def events() -> AsyncGenerator[bytes, None]:
        async with aclosing(service.states()) as states:
            async for one in states:
                yield data(one)

    return EventStream(events())


@router.post("/wager/policy")
async def policy(body: PolicyBody, request: Request) -> Response:
    """Change the policy from the next step on; what was learned about costs stays."""
    service = service_of(request)
    if service.is_open:
        raise Problem(403, "the policy can be changed only where API keys are set, or on loopback")
    return json_response({"policy": await service.set_policy(body.policy)})
