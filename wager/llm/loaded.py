"""A loaded model: what `LLM` and `AsyncLLM` have in common. It prepares requests and runs none."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wager.cards import ModelCard, card_for, decide_budget
from wager.config import EngineConfig, with_values
from wager.engine.assemble import build_engine
from wager.engine.engine import Engine
from wager.errors import ConfigError, ModelError, RequestError
from wager.llm.calls import Calls
from wager.llm.prompts import (
    ChatOptions,
    NewRequest,
    Prompt,
    PromptReader,
    as_batch,
    as_conversations,
    as_params,
    new_requests,
)
from wager.pairs import DEMO
from wager.records import SamplingParams
from wager.text.chat import ChatTemplate
from wager.text.thinking import ThinkingMarks, ends_inside, thinking_marks
from wager.text.tools import Tool

log = logging.getLogger("wager.llm")

GENERATION_CONFIG = ("auto", "off", "vllm")


class LoadedModel:
    """A loaded model, its drafter and its policy."""

    def __init__(
        self,
        model: str | Path | None = None,
        drafter: str | Path | None = "auto",
        policy: str | None = None,
        dtype: Any = None,
        device: Any = None,
        *,
        config: EngineConfig | None = None,
        seed: int = 0,
        generation_config: str = "auto",
        **settings: Any,
    ) -> None:
        """Loads the model; without a model and a config it loads the demo pair.

        `drafter` is "auto", None, "lookup", a folder or a published name. `generation_config` is "auto", or
        "off" for calls without params to be greedy whatever the model's authors recommend; vLLM's name for
        that, "vllm", is the same. `settings` are fields of the config by name.
        """
        if model is None and config is None:
            log.warning("no model was named: using %s, the small pair that ships with Wager", DEMO)
        if generation_config not in GENERATION_CONFIG:
            raise ConfigError("generation_config", generation_config, "auto, off or vllm")
        given = {"model": model, "policy": policy, "dtype": dtype, "device": device}
        texts = {
            name: str(value).removeprefix("torch.") for name, value in given.items() if value is not None
        }
        if drafter != "auto":
            texts["drafter"] = str(drafter or "none")
        config = with_values(config or EngineConfig(), **texts, **settings)
        self._calls = Calls(build_engine(config, seed))
        self._finalizer = weakref.finalize(self, self._calls.stop)
        self.config = config
        parts = self.engine.parts
        self._prompts = PromptReader(parts.tokenizer, ChatTemplate.from_folder(parts.folder))
        self.default_params = self._default_params(generation_config)
        """The parameters of calls without any: what the model's authors recommend."""

    @property
    def engine(self) -> Engine:
        """The engine, for reading, and for use while nothing runs. Raises WagerError after `close`."""
        return self._calls.engine

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The template that renders chats; another one may be set. None if the model has none."""
        return self._prompts.template

    @chat_template.setter
    def chat_template(self, template: ChatTemplate | None) -> None:
        self._prompts.template = template

    @property
    def notes(self) -> dict[str, object]:
        """Effective values and their sources."""
        return self.engine.parts.notes

    def card(self, terminator: str | None = None) -> ModelCard:
        """Returns the model card; `terminator` replaces the text that closes thinking."""
        model_type, folder = str(self.notes["model_type"]), self.engine.parts.folder
        return card_for(self.config.model.model, model_type, {"thinking": terminator}, folder)

    def thinking_marks(self, card: ModelCard | None = None) -> ThinkingMarks | None:
        """Returns the marks around the thinking of this model, or None if it does not think."""
        tokenizer, found = self.engine.parts.tokenizer, (card or self.card()).thinking
        if tokenizer is None or found.value is None:
            return None
        return thinking_marks(tokenizer, found.value, known_only=found.source == "fallback")

    def limit_thinking(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        budget: int | None = None,
        effort: str | None = None,
        card: ModelCard | None = None,
    ) -> SamplingParams:
        """Returns params that limit the thinking after this prompt to a budget or an effort, and that show
        its marks.

        The budget never exceeds what the model card leaves beside the answer. Raises RequestError if the
        model does not think.
        """
        card = card or self.card()
        marks, tokenizer = self.thinking_marks(card), self.engine.parts.tokenizer
        if marks is None or tokenizer is None:
            raise RequestError("this model does not think", field="thinking")
        decided = decide_budget(card, params.max_tokens, budget, effort)
        limit = marks.limit(decided.budget, starts_open=ends_inside(tokenizer, prompt_ids, marks))
        shown = dict.fromkeys([*params.shown_ids, *marks.open_ids, *marks.natural_ids])
        return replace(params, thinking=limit, shown_ids=tuple(shown))

    def encode(
        self,
        prompt: Prompt,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Tool] | None = None,
    ) -> list[int]:
        """Returns the token ids of a prompt of any kind; `template_kwargs` are variables for the chat
        template.
        """
        return self._prompts.encode(prompt, ChatOptions(tools, template_kwargs)).token_ids

    def _requests(self, prompts: Any, params: Any, sampling_params: Any) -> list[NewRequest]:
        """The requests of a call of `generate` or `stream`."""
        batch = as_batch(prompts)
        each = as_params(_only(params, sampling_params), len(batch), self.default_params)
        return new_requests([self._prompts.encode(prompt) for prompt in batch], each)

    def _chat_requests(
        self,
        messages: Any,
        params: Any,
        sampling_params: Any,
        options: ChatOptions,
        enable_thinking: bool | None,
    ) -> list[NewRequest]:
        """The requests of a call of `chat`."""
        conversations = as_conversations(messages)
        each = as_params(_only(params, sampling_params), len(conversations), self.default_params)
        if enable_thinking is not None:
            if enable_thinking and self.thinking_marks() is None:
                raise RequestError("this model does not think", field="enable_thinking")
            kwargs = {"enable_thinking": enable_thinking, **(options.template_kwargs or {})}
            options = options._replace(template_kwargs=kwargs)
        if options.tools:
            each = [self._prompts.with_tool_marks(own) for own in each]
        return new_requests([self._prompts.render(one, options) for one in conversations], each)

    def _default_params(self, generation_config: str) -> SamplingParams:
        card = self.card()
        found, source = dict[str, Any](card.sampling.value), card.sampling.source
        if card.max_tokens.source == "generation_config.json":
            found["max_tokens"] = card.max_tokens.value
        if generation_config != "auto":
            found, source = {}, f"generation_config = {generation_config}"
        self.notes["default_params"] = {"value": found, "source": source}
        try:
            return SamplingParams(**found)
        except RequestError as error:
            raise ModelError(f"the sampling that {source} recommends: {error}") from error


def _only(params: Any, sampling_params: Any) -> Any:
    """The parameters of a call, by either of their names."""
    if params is not None and sampling_params is not None:
        raise RequestError("is another name of params: give one of them", field="sampling_params")
    return sampling_params if params is None else params
