"""/v1/completions: continues text or token ids as they are, without a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from wager.errors import RequestError
from wager.server.answer_writer import ChunkWriter, finish_details, respond
from wager.server.generation import Choice, Generation, Piece
from wager.server.generation_request import GenerationRequest
from wager.server.middleware import access_record
from wager.server.model_service import ModelService, service_of
from wager.server.request_builder import Prompt, choice_count, grammar_of, logit_bias
from wager.server.schemas.chat import CompletionBody

router = APIRouter()

DEFAULT_MAX_TOKENS = 16
"""The default of this API."""
MAX_PROMPTS = 64


@router.post("/v1/completions")
async def completions(body: CompletionBody, request: Request) -> Response:
    """Continue one or several prompts."""
    service = service_of(request)
    prompts = await _prompts(service, body)
    built = _generation_request(service, body, prompts, access_record(request.scope).client)
    return await respond(request, built, lambda it: CompletionWriter(it, body, prompts), body.stream)


async def _prompts(service: ModelService, body: CompletionBody) -> list[Prompt]:
    given = body.prompt
    if isinstance(given, str):
        given = [given]
    if not given:
        raise RequestError("is empty", "prompt")
    if isinstance(given[0], int):
        given = [given]  # type: ignore[list-item]
    if len(given) > MAX_PROMPTS:
        raise RequestError(f"{len(given)} prompts; at most {MAX_PROMPTS} are allowed", "prompt")
    return [await _prompt(service, prompt, bool(body.echo)) for prompt in given]  # type: ignore[arg-type]


async def _prompt(service: ModelService, given: str | list[int], needs_text: bool) -> Prompt:
    encoder = service.builder.prompts
    if isinstance(given, str):
        return encoder.check_length(await encoder.encode(given))
    text = encoder.tokenizer.decode(given) if needs_text else ""
    return encoder.check_length(Prompt(text, given))


def _generation_request(
    service: ModelService, body: CompletionBody, prompts: Sequence[Prompt], client: str
) -> GenerationRequest:
    model, n = service.model_name(body.model), choice_count(body.n)
    if body.best_of is not None and body.best_of != n:
        raise RequestError("must equal n; select an answer in the client", "best_of")
    if body.echo and body.logprobs is not None:
        raise RequestError("cannot be combined with logprobs: prompts have no log-probabilities", "echo")
    values = {
        **body.given(),
        "logit_bias": logit_bias(body.logit_bias),
        "logprobs": body.logprobs,
        "grammar": grammar_of(body.response_format),
    }
    prompt_ids = [prompt.token_ids for prompt in prompts]
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    longest = max(map(len, prompt_ids))
    params = service.builder.sampling_params(values, longest, max_tokens, body.speculation)
    return GenerationRequest(model, prompt_ids, params, n, client, service.engine.parts.tokenizer)


class CompletionWriter(ChunkWriter):
    """Writes an answer in the form of text completions."""

    id_prefix = "cmpl"
    chunk_object = "text_completion"

    def __init__(self, generation: Generation, body: CompletionBody, prompts: Sequence[Prompt]) -> None:
        super().__init__(generation, body.stream_options)
        self._wants_logprobs = body.logprobs is not None
        n = generation.request.n
        self._echoes = [prompt.text if body.echo else "" for prompt in prompts for _ in range(n)]
        self._num_sent: dict[int, int] = {}
        """Characters sent of each choice, the echo included."""

    def whole(self) -> dict[str, Any]:
        choices = [self._whole_choice(choice) for choice in self.generation.choices]
        return {**self.head, "choices": choices, **self.totals()}

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        echo = "" if piece.index in self._num_sent else self._echoes[piece.index]
        offset = self._num_sent.get(piece.index, 0) + len(echo)
        self._num_sent[piece.index] = offset + len(piece.content)
        choice = {
            "text": echo + piece.content,
            "finish_reason": piece.finish,
            "logprobs": self._logprobs(piece.logprobs, offset),
        }
        if piece.finish is not None:
            choice |= finish_details(self.generation.choices[piece.index])
        return [self.chunk(piece, choice)]

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        echo = self._echoes[choice.index]
        logprobs = self._logprobs(choice.logprobs, len(echo))
        return self.whole_choice(choice, {"text": echo + choice.content, "logprobs": logprobs})

    def _logprobs(self, found: Sequence[dict[str, Any]], offset: int) -> dict[str, Any] | None:
        """This API has parallel lists instead of one object per token."""
        if not self._wants_logprobs:
            return None
        offsets = []
        for token in found:
            offsets.append(offset)
            offset += len(token["token"])
        return {
            "tokens": [token["token"] for token in found],
            "token_logprobs": [token["logprob"] for token in found],
            "top_logprobs": [
                {top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in found
            ],
            "text_offset": offsets,
        }
