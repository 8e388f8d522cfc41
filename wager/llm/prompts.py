"""Prompts of every kind, as token ids: text, ids, arrays of ids, chats, and dicts in the manner of vLLM.

It also pairs prompts with parameters, and makes a request of every answer that is asked for. It knows the
tokenizer and the chat template, not the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from wager.errors import RequestError
from wager.records import SamplingParams
from wager.text.chat import ChatTemplate
from wager.text.tokenizer import Tokenizer
from wager.text.tools import Tool, ToolFormat, find_format, for_template
from wager.tree import derive_seed

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message] | Mapping[str, Any] | Any
"""A text, token ids (a list, a numpy array or a torch tensor), a chat as a list of messages, or a dict with
`prompt` (a text) or `prompt_token_ids`.
"""
_PROMPT_KEYS = ("prompt", "prompt_token_ids")
_KINDS = "neither text, nor token ids, nor chat messages"


class EncodedPrompt(NamedTuple):
    """The token ids of a prompt, and its text if it has one."""

    token_ids: list[int]
    text: str | None = None


class NewRequest(NamedTuple):
    """One answer that a call asks for."""

    number: int
    """The number of its prompt in the call."""
    choice: int
    """Its number among the answers to that prompt."""
    prompt: EncodedPrompt
    params: SamplingParams


class ChatOptions(NamedTuple):
    """How a chat is rendered."""

    tools: Sequence[Tool] | None = None
    template_kwargs: Mapping[str, Any] | None = None
    """Variables for the chat template, such as `enable_thinking`."""
    add_generation_prompt: bool = True
    continue_final: bool = False
    """The last message is continued instead of answered."""


PLAIN_CHAT = ChatOptions()


class PromptReader:
    """Reads the prompts of one model."""

    def __init__(self, tokenizer: Tokenizer | None, template: ChatTemplate | None) -> None:
        self.tokenizer, self.template = tokenizer, template

    @property
    def tool_format(self) -> ToolFormat | None:
        """How the model writes tool calls; None if its chat template takes no tools."""
        return None if self.template is None else find_format(self.template.sources)

    def encode(self, prompt: Prompt, options: ChatOptions = PLAIN_CHAT) -> EncodedPrompt:
        """Returns the token ids of one prompt; `options` apply to a chat. Raises RequestError."""
        prompt = _plain(prompt)
        if isinstance(prompt, str):
            return EncodedPrompt(self._tokenizer().encode(prompt), prompt)
        if isinstance(prompt, Mapping):
            return self._encode_dict(prompt)
        if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
            raise RequestError(f"is {_KINDS}", field="prompt")
        parts = [_plain(part) for part in prompt]
        if all(type(part) is int for part in parts):
            return EncodedPrompt(parts)
        if not all(isinstance(part, Mapping) for part in parts):
            raise RequestError(f"is {_KINDS}", field="prompt")
        return self.render(parts, options)

    def render(self, messages: Sequence[Message], options: ChatOptions) -> EncodedPrompt:
        """Returns the prompt of a chat. Raises RequestError."""
        tokenizer = self._tokenizer()
        if self.template is None:
            raise RequestError("is a chat, but the model has no chat template", field="prompt")
        has_calls = any(isinstance(one, Mapping) and one.get("tool_calls") for one in messages)
        form = self.tool_format if options.tools or has_calls else None
        if options.tools and form is None:
            raise RequestError("the model's chat template does not support tools", field="tools")
        shown, tools = for_template(form, messages, options.tools)
        text = self.template.render(
            shown,
            tools=tools,
            add_generation_prompt=options.add_generation_prompt and not options.continue_final,
            continue_final=options.continue_final,
            template_kwargs=options.template_kwargs,
        )
        return EncodedPrompt(tokenizer.encode(text, add_special=False), text)

    def with_tool_marks(self, params: SamplingParams) -> SamplingParams:
        """Returns params whose text shows the marks around tool calls, which may be special tokens."""
        form = self.tool_format
        if form is None or self.tokenizer is None:
            return params
        shown = dict.fromkeys([*params.shown_ids, *form.shown_ids(self.tokenizer)])
        return replace(params, shown_ids=tuple(shown))

    def _encode_dict(self, prompt: Mapping[str, Any]) -> EncodedPrompt:
        unknown = [key for key, value in prompt.items() if key not in _PROMPT_KEYS and value is not None]
        if unknown or not any(key in prompt for key in _PROMPT_KEYS):
            keys = " and ".join(_PROMPT_KEYS)
            found = f"has the key {unknown[0]!r}" if unknown else "has none of its keys"
            raise RequestError(f"{found}; a prompt in a dict has the keys {keys}", field="prompt")
        text = prompt.get("prompt")
        if text is not None and not isinstance(text, str):
            raise RequestError(f"expected text under the key 'prompt', found {text!r}", field="prompt")
        ids = prompt.get("prompt_token_ids")
        if ids is None:
            return self.encode(text)
        encoded = self.encode(ids)
        if encoded.text is not None:
            raise RequestError("expected a list of ids", field="prompt_token_ids")
        return encoded._replace(text=text)

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                "is text, but the model folder has no tokenizer: give token ids", field="prompt"
            )
        return self.tokenizer


def as_batch(prompts: Any) -> list[Prompt]:
    """Returns a list of prompts. A text, ids, a list of messages and a dict are one prompt each."""
    prompts = _plain(prompts)
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        return [prompts]
    parts = list(prompts)
    if not parts:
        raise RequestError("is empty", field="prompt")
    is_chat = all(isinstance(part, Mapping) for part in parts)
    if is_chat and not any(key in part for part in parts for key in _PROMPT_KEYS):
        return [parts]
    return [parts] if all(_is_number(part) for part in parts) else parts


def as_conversations(messages: Any) -> list[Sequence[Message]]:
    """Returns a list of conversations; a list of messages is one conversation."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise RequestError("expected a list of messages, or a list of such lists", field="messages")
    return [messages] if isinstance(messages[0], Mapping) else list(messages)


def as_params(params: Any, count: int, default: SamplingParams) -> list[SamplingParams]:
    """Returns the parameters of each prompt."""
    if params is None:
        return [default] * count
    each = [params] * count if isinstance(params, SamplingParams) else None
    if each is None and isinstance(params, Iterable):
        each = list(params)
    if each is None or not all(isinstance(one, SamplingParams) for one in each):
        raise RequestError(f"{params!r} is not a SamplingParams, nor a list of them", field="params")
    if len(each) != count:
        raise RequestError(f"has {len(each)} entries for {count} prompts", field="params")
    return each


def new_requests(prompts: Iterable[EncodedPrompt], params: Iterable[SamplingParams]) -> list[NewRequest]:
    """One request for every answer: a prompt has `params.n` of them, with derived seeds."""
    return [
        NewRequest(index, choice, prompt, choice_params(own, choice))
        for index, (prompt, own) in enumerate(zip(prompts, params, strict=True))
        for choice in range(own.n)
    ]


def choice_params(params: SamplingParams, choice: int) -> SamplingParams:
    """The parameters of one of `n` answers: of a request of its own, with its own seed."""
    if params.n == 1:
        return params
    return replace(params, n=1, seed=None if params.seed is None else derive_seed(params.seed, choice))


def _is_array(value: object) -> bool:
    return hasattr(value, "tolist") and hasattr(value, "ndim")


def _plain(value: Any) -> Any:
    """Returns numpy arrays, numpy numbers and torch tensors as lists and numbers of Python."""
    return value.tolist() if _is_array(value) else value


def _is_number(value: object) -> bool:
    return isinstance(_plain(value) if getattr(value, "ndim", None) == 0 else value, int | float)
