"""From what a dialect wants to what the engine takes: defaults, limits, thinking, tools, forms of text.

A dialect fills a `Talk`, a conversation, and gets an `Ask`; /v1/completions takes the parts it needs. Every
limit of the server is applied in this file, and what was tightened is noted for the answer. Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wager.errors import RequestError
from wager.records import GrammarSpec, SamplingParams
from wager.server.answers import Ask
from wager.server.prompts import Chat, Prompt
from wager.server.reading import Reading
from wager.server.schemas.base import Speculation
from wager.server.schemas.chat import ResponseFormat
from wager.server.service import Service
from wager.server.thinking import Wish
from wager.text.grammar import json_spec
from wager.text.token_bytes import TokenBytes
from wager.text.tool_grammar import tool_grammar
from wager.text.tools import Tool, function_of

MAX_BIAS = 1024


@dataclass(frozen=True)
class ToolWish:
    """Tools, in the form of chat completions, and which of them are to be called."""

    tools: Sequence[Tool] = ()
    choice: str = "auto"
    """auto, none, required, or `=name` of the one to call."""
    parallel: bool = True

    @property
    def offered(self) -> list[Tool]:
        """What the model is told of: nothing where nothing may be called."""
        return [] if self.choice == "none" else list(self.tools)

    @property
    def forced(self) -> list[Tool] | None:
        """Those of which one must be called; None where the model is free. Raises RequestError."""
        if self.choice in ("auto", "none"):
            return None
        if self.choice == "required":
            found = list(self.tools)
        else:
            found = [tool for tool in self.tools if function_of(tool).get("name") == self.choice[1:]]
        if not found:
            what = "there are no tools" if not self.tools else f"there is no tool {self.choice[1:]!r}"
            raise RequestError(what, "tool_choice")
        return found


@dataclass(frozen=True)
class Talk:
    """A conversation that wants an answer, in the words of chat completions."""

    model: str | None
    messages: Sequence[Mapping[str, Any]]
    sampling: Mapping[str, Any]
    max_tokens: int | None = None
    n: int = 1
    tools: ToolWish = field(default_factory=ToolWish)
    grammar: GrammarSpec | None = None
    wish: Wish = field(default_factory=Wish)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    continue_final: bool = False
    speculation: Speculation | None = None
    client: str = ""


async def ask_for_talk(service: Service, talk: Talk) -> Ask:
    """Render, encode and check a conversation. Raises RequestError and Problem."""
    model = service.model_name(talk.model)
    prompt = service.prompts.checked(await render(service, talk), "messages")
    grammar = _grammar(service, talk)
    if grammar is not None:
        await service.prompts.check_grammar(grammar)
    values = {**talk.sampling, "grammar": grammar}
    params = sampling_params(service, values, len(prompt.token_ids), talk.max_tokens, talk.speculation)
    reading = make_reading(service, params)
    ask = Ask(model, [prompt.token_ids], params, reading, talk.n, talk.client)
    return _with_tools(service, _with_thinking(service, ask, talk, prompt), talk.tools)


async def render(service: Service, talk: Talk) -> Prompt:
    """The prompt of a conversation."""
    kwargs = dict(talk.template_kwargs)
    if talk.wish.is_on is not None:
        if service.thinker is None and talk.wish.is_on:
            raise RequestError("this model does not think", "thinking")
        kwargs.setdefault("enable_thinking", talk.wish.is_on)
    chat = Chat(
        [plain_role(message) for message in talk.messages],
        [_without_strict(tool) for tool in talk.tools.offered],
        kwargs,
        add_generation_prompt=not talk.continue_final,
        continue_final=talk.continue_final,
    )
    return await service.prompts.chat(chat)


def _without_strict(tool: Tool) -> Tool:
    """As the model is told of it: that it is held to the schema is not its business."""
    function = {key: value for key, value in function_of(tool).items() if key != "strict"}
    return {**tool, "function": function}


def sampling_params(
    service: Service,
    values: Mapping[str, Any],
    num_prompt: int,
    max_tokens: int | None,
    speculation: Speculation | None,
) -> SamplingParams:
    """Given values over defaults, within the server's limits. Raises RequestError."""
    given = {name: value for name, value in values.items() if value is not None}
    params: dict[str, Any] = {"temperature": 1.0, **service.model_card.sampling.value, **given}
    params["max_tokens"] = token_limit(service, num_prompt, max_tokens)
    if speculation is not None:
        params["speculation"] = speculation_word(speculation)
        params["token_details"] = speculation.report == "tokens"
    return SamplingParams(**params)


def token_limit(service: Service, num_prompt: int, asked: int | None) -> int:
    """Tokens that may be written: what was asked for, the server's limit and the context's end, the least."""
    room = max(service.engine.parts.max_context - num_prompt, 1)
    most = min(room, service.config.max_output_tokens or room)
    if asked is None:
        return min(most, service.model_card.max_tokens.value)
    if asked < 1:
        raise RequestError(f"{asked} is not a whole number from 1", "max_tokens")
    return min(asked, most)


def speculation_word(wish: Speculation) -> str:
    if wish.mode != "fixed":
        if wish.nodes is not None:
            raise RequestError("belongs to the mode `fixed`", "speculation.nodes")
        return wish.mode
    if wish.nodes is None:
        raise RequestError("the mode `fixed` needs it", "speculation.nodes")
    return f"fixed:{wish.nodes}"


def logit_bias(given: Mapping[str, float] | None) -> dict[int, float] | None:
    """Token ids arrive as texts, as keys of JSON objects are."""
    if not given:
        return None
    if len(given) > MAX_BIAS:
        raise RequestError(f"{len(given)} entries; at most {MAX_BIAS}", "logit_bias")
    try:
        return {int(token_id): bias for token_id, bias in given.items()}
    except ValueError:
        raise RequestError("its keys are token ids", "logit_bias") from None


def plain_role(message: Mapping[str, Any]) -> dict[str, Any]:
    """Templates know no developer: it speaks as the system does."""
    role = "system" if message.get("role") == "developer" else message.get("role")
    return {**message, "role": role}


def grammar_of(form: ResponseFormat | None) -> GrammarSpec | None:
    """The grammar of the form that was asked for; None where the text is free. Raises RequestError."""
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return json_spec({"type": "object"})
    if form.type == "json_schema":
        if form.json_schema is None or form.json_schema.schema_ is None:
            raise RequestError("expected a schema", "response_format.json_schema")
        return json_spec(form.json_schema.schema_)
    text = form.regex if form.type == "regex" else form.lark
    if not text:
        raise RequestError(f"expected a text under {form.type!r}", "response_format")
    return GrammarSpec(form.type, text)


def make_reading(service: Service, params: SamplingParams) -> Reading:
    tokenizer = service.engine.parts.tokenizer
    wants = params.logprobs is not None and tokenizer is not None
    return Reading(tokenizer, TokenBytes(tokenizer) if wants and tokenizer else None, params.token_details)


def _grammar(service: Service, talk: Talk) -> GrammarSpec | None:
    """What the text must follow: the calls that are required, or the form that was asked for."""
    if talk.tools.offered and service.prompts.form is None:
        raise RequestError("the model's chat template takes no tools", "tools")
    forced, offered, form = talk.tools.forced, talk.tools.offered, service.prompts.form
    if form is None or not offered:
        return talk.grammar
    if talk.grammar is not None:
        raise RequestError("cannot go with tools that may be called: tool_choice none", "response_format")
    if forced is not None:
        return tool_grammar(form, forced, service.prompts.tokenizer, talk.tools.parallel)
    if any(function_of(tool).get("strict") for tool in offered):
        return service.prompts.strict_grammar(form, offered)
    return None


def _with_thinking(service: Service, ask: Ask, talk: Talk, prompt: Prompt) -> Ask:
    """The same, with its thinking limited and told apart, where the model thinks."""
    thinker = service.thinker
    if thinker is None:
        return ask
    follows = ask.params.grammar is not None
    decided = thinker.limit(talk.wish, prompt.token_ids, ask.params.max_tokens, follows)
    shown = (*ask.params.shown_ids, *thinker.shown_ids)
    reading = replace(
        ask.reading, marks=thinker.texts, starts_open=decided.limit.starts_open, shown_ids=shown
    )
    params = replace(ask.params, thinking=decided.limit, shown_ids=shown)
    return replace(ask, params=params, reading=reading, notes={**ask.notes, "thinking": decided.note})


def _with_tools(service: Service, ask: Ask, wish: ToolWish) -> Ask:
    """The same, with its calls read."""
    form = service.prompts.form
    if not wish.offered or form is None:
        return ask
    shown = (*ask.params.shown_ids, *form.shown_ids(service.prompts.tokenizer))
    reading = replace(
        ask.reading, form=form, tools=tuple(wish.offered), parallel_calls=wish.parallel, shown_ids=shown
    )
    return replace(ask, params=replace(ask.params, shown_ids=shown), reading=reading)
