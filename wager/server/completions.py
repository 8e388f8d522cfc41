"""/v1/completions: text or token ids continued as they are, without a chat template."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from wager.errors import RequestError
from wager.server.answers import Answer, Ask, Choice, Piece
from wager.server.asks import grammar_of, logit_bias, make_reading, sampling_params
from wager.server.chat import closing_notes, count_of, details_of, usage_of
from wager.server.doors import visit_of
from wager.server.problems import json_response, problem_of
from wager.server.prompts import Prompt
from wager.server.schemas.chat import CompletionBody
from wager.server.service import Service
from wager.server.stream import DONE, KEEP_ALIVE, EventStream, data, unless_gone

router = APIRouter()

DEFAULT_TOKENS = 16
"""What this dialect writes where nobody says."""
MAX_PROMPTS = 64


@router.post("/v1/completions")
async def completions(body: CompletionBody, request: Request) -> Response:
    """Continue a text."""
    service: Service = request.app.state.service
    visit = visit_of(request.scope)
    prompts = await _prompts(service, body)
    ask = _ask(service, body, prompts, visit.client)
    visit.notes |= {
        "model": ask.model,
        "prompt_tokens": sum(len(one.token_ids) for one in prompts),
        "stream": bool(body.stream),
    }
    answer = await service.answer(ask)
    writer = CompletionWriter(answer, body, prompts)
    if body.stream:
        return EventStream(writer.stream(visit.notes), service.config.request_timeout_s + 5.0)
    await unless_gone(request.receive, answer.whole)
    visit.notes |= closing_notes(answer)
    return json_response(writer.whole())


async def _prompts(service: Service, body: CompletionBody) -> list[Prompt]:
    given = body.prompt
    if isinstance(given, str):
        given = [given]
    if not given:
        raise RequestError("is empty", "prompt")
    if isinstance(given[0], int):
        given = [given]  # type: ignore[list-item]
    if len(given) > MAX_PROMPTS:
        raise RequestError(f"{len(given)} prompts; at most {MAX_PROMPTS}", "prompt")
    return [await _prompt(service, one, bool(body.echo)) for one in given]  # type: ignore[arg-type]


async def _prompt(service: Service, given: str | list[int], needs_text: bool) -> Prompt:
    if isinstance(given, str):
        return service.prompts.checked(await service.prompts.text(given))
    text = service.prompts.tokenizer.decode(given) if needs_text else ""
    return service.prompts.checked(Prompt(text, given))


def _ask(service: Service, body: CompletionBody, prompts: Sequence[Prompt], client: str) -> Ask:
    model, n = service.model_name(body.model), count_of(body.n)
    if body.best_of is not None and body.best_of != n:
        raise RequestError("only the same as n: choose among n yourself", "best_of")
    if body.echo and body.logprobs is not None:
        raise RequestError("prompts have no log-probabilities here", "echo")
    values = {
        **body.given(),
        "logit_bias": logit_bias(body.logit_bias),
        "logprobs": body.logprobs,
        "grammar": grammar_of(body.response_format),
    }
    longest = max(prompts, key=lambda one: len(one.token_ids))
    wanted = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    params = sampling_params(service, values, len(longest.token_ids), wanted, body.speculation)
    ids = [one.token_ids for one in prompts]
    return Ask(model, ids, params, make_reading(service, params), n, client)


class CompletionWriter:
    """Writes one answer in the form of text completions."""

    def __init__(self, answer: Answer, body: CompletionBody, prompts: Sequence[Prompt]) -> None:
        self._answer = answer
        self._body = body
        self._prompts = prompts
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": answer.ask.model,
        }
        self._written: dict[int, int] = {}
        """Characters of each choice that were sent, the echo included."""

    def whole(self) -> dict[str, Any]:
        choices = [self._choice(index, choice) for index, choice in enumerate(self._answer.choices)]
        return {**self._head, "choices": choices, **self._closing()}

    async def stream(self, notes: dict[str, Any]) -> AsyncGenerator[bytes, None]:
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
                    chunk = self._chunk(piece)
                    yield data(chunk if left or usage_wanted is not None else {**chunk, **self._closing()})
            notes |= closing_notes(answer)
            if usage_wanted:
                yield data({**self._head, "choices": [], **self._closing()})
        except Exception as error:
            notes["error"] = True
            yield data(problem_of(error).body())
        yield DONE

    def _chunk(self, piece: Piece) -> dict[str, Any]:
        text = self._echo(piece.index) if piece.index not in self._written else ""
        offset = self._written.get(piece.index, 0) + len(text)
        text += piece.content
        self._written[piece.index] = offset + len(piece.content)
        choice = {
            "index": piece.index,
            "text": text,
            "finish_reason": piece.finish,
            "logprobs": self._logprobs(piece.logprobs, offset),
        }
        if piece.finish is not None:
            choice |= details_of(self._answer.choices[piece.index])
        chunk = {**self._head, "choices": [choice]}
        if piece.tokens:
            chunk["wager"] = {"tokens": piece.tokens, "step_ms": round(piece.step_ms, 3)}
        return chunk

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        echo = self._echo(index)
        return {
            "index": index,
            "text": echo + choice.text,
            "finish_reason": choice.finish,
            "logprobs": self._logprobs(choice.logprobs, len(echo)),
            **details_of(choice),
        }

    def _echo(self, index: int) -> str:
        return self._prompts[index // self._answer.ask.n].text if self._body.echo else ""

    def _logprobs(self, found: Sequence[dict[str, Any]], offset: int) -> dict[str, Any] | None:
        """The older form: parallel lists."""
        if self._body.logprobs is None:
            return None
        offsets = []
        for one in found:
            offsets.append(offset)
            offset += len(one["token"])
        return {
            "tokens": [one["token"] for one in found],
            "token_logprobs": [one["logprob"] for one in found],
            "top_logprobs": [{top["token"]: top["logprob"] for top in one["top_logprobs"]} for one in found],
            "text_offset": offsets,
        }

    def _closing(self) -> dict[str, Any]:
        return {"usage": usage_of(self._answer.usage), "metrics": self._answer.statistics()}
