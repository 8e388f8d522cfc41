"""Questions for a chat model from a corpus: chats, tasks about code and about prose, and beginnings of texts.

Chats are JSON lines with `messages`, or texts whose turns are marked `<|user|>`, `<|assistant|>` and so on.
Python code becomes tasks about its functions, other text becomes tasks about its passages, and some of both
is given to the target as it is. The model's own chat template renders the questions, so they fit any chat
model. chat_turns.py has the questions that a target invents itself.
"""

from __future__ import annotations

import ast
import random
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from wager.errors import RequestError
from wager.text.chat import ChatTemplate
from wager.text.tokenizer import Tokenizer
from wager.train.corpus import Record

_MARK = re.compile(r"^<\|(system|user|assistant|tool)\|>\n", re.MULTILINE)
_END = re.compile(r"<\|end\|>\n?")
_PASSAGE = (200, 1400)
_PASSAGES_PER_TEXT = _FUNCTIONS_PER_TEXT = 8
_FUNCTION_LINES = (4, 40)
_BEGINNING = (20, 250)
"""Length of the beginning of a text, in tokens."""
_CHARACTERS_PER_TOKEN = 24
"""More than a token has on average, so that enough of a text is encoded."""
_PROMPTS_AT_ONCE = 1024
_LEAST_PROMPT = 4

BEGINNINGS = "text"
"""The kind of prompts that are beginnings of texts, which the target continues without a chat."""

Message = dict[str, str]


class Question(NamedTuple):
    """A prompt that the target answers or continues; kind and source are those of its record."""

    kind: str
    source: str
    prompt_ids: list[int]


class _Prompt(NamedTuple):
    """A prompt before it is encoded; `num_tokens` cuts a text that is no chat."""

    kind: str
    source: str
    text: str
    num_tokens: int = 0


@dataclass(frozen=True)
class QuestionOptions:
    """The lengths and shares of questions."""

    max_prompt: int = 420
    """Longest prompt in tokens; longer ones are dropped."""
    beginning_share: float = 0.1
    """Share of the texts that are no chats whose beginning is a prompt as it is."""
    second_task_share: float = 0.35
    """Share of functions with two tasks."""


def read_messages(text: str) -> list[Message]:
    """Returns the turns of a text with marked turns; none if it has no marks."""
    parts = _MARK.split(_END.sub("", text))[1:]
    return [
        {"role": role, "content": content.strip("\n")}
        for role, content in zip(parts[::2], parts[1::2], strict=True)
    ]


class QuestionSource:
    """Makes the questions of a corpus for one chat model."""

    def __init__(
        self, template: ChatTemplate, tokenizer: Tokenizer, options: QuestionOptions | None = None
    ) -> None:
        self.template, self.tokenizer = template, tokenizer
        self.options = options or QuestionOptions()
        around = tokenizer.encode("")
        self._begin = [token_id for token_id in around[:1] if token_id not in tokenizer.eos_ids]

    def of(
        self, records: Iterable[Record], chance: random.Random, most_per_source: int | None = None
    ) -> Iterator[Question]:
        """Yields the questions of records, of each source at most about `most_per_source`.

        All random choices come from `chance`. Prompts are encoded many at once, which uses all cores.
        """
        counts = Counter[tuple[str, str]]()
        prompts = self._prompts(records, chance, most_per_source, counts)
        while batch := list(islice(prompts, _PROMPTS_AT_ONCE)):
            texts = [prompt.text for prompt in batch]
            marked = self.tokenizer.backend.encode_batch(texts, add_special_tokens=False)
            for prompt, found in zip(batch, marked, strict=True):
                ids = found.ids
                if prompt.num_tokens:  # a text that is no chat begins as the tokenizer begins texts
                    ids = [*self._begin, *ids][: prompt.num_tokens]
                if _LEAST_PROMPT <= len(ids) <= self.options.max_prompt:
                    yield Question(prompt.kind, prompt.source, ids)

    def _prompts(
        self,
        records: Iterable[Record],
        chance: random.Random,
        most: int | None,
        counts: Counter[tuple[str, str]],
    ) -> Iterator[_Prompt]:
        for record in records:
            source = (record.kind, record.source)
            if most is None or counts[source] < most:
                found = self._of_record(record, chance)
                counts[source] += len(found)
                yield from found

    def _of_record(self, record: Record, chance: random.Random) -> list[_Prompt]:
        kind, source, text = record.kind, record.source, record.text
        if record.prompt:
            return [_Prompt(kind, source, record.prompt)]
        messages = read_messages(text)
        if messages:
            rendered = self._rendered(_up_to_an_answer(messages, chance))
            return [_Prompt(kind, source, one) for one in rendered]
        asked = [{"role": "user", "content": task} for task in self._tasks(record, chance)]
        found = [_Prompt(kind, source, one) for ask in asked for one in self._rendered([ask])]
        if chance.random() < self.options.beginning_share:
            size = min(chance.randint(*_BEGINNING), self.options.max_prompt)
            found.append(_Prompt(BEGINNINGS, source, text[: size * _CHARACTERS_PER_TOKEN], size))
        return found

    def _tasks(self, record: Record, chance: random.Random) -> Iterator[str]:
        functions = list(islice(python_functions(record.text), _FUNCTIONS_PER_TEXT))
        for function in functions:
            count = 2 if chance.random() < self.options.second_task_share else 1
            for task in chance.sample(CODE_TASKS, count):
                yield task(function, chance)
        for passage in () if functions else passages_of(record.text, chance):
            yield chance.choice(PROSE_TASKS)(passage, chance)

    def _rendered(self, messages: Sequence[Message]) -> list[str]:
        try:
            return [self.template.render(messages)]
        except RequestError:  # many templates refuse some roles, or some orders of turns
            return []


def _up_to_an_answer(messages: list[Message], chance: random.Random) -> list[Message]:
    """Returns a chat up to one of its answers; a chat without an answer is a question as a whole."""
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i > 0]
    return messages[: chance.choice(answers)] if answers else messages


def mixed(
    questions: Iterable[Question], count: int, chance: random.Random, most_repeats: int = 4
) -> list[Question]:
    """Returns about `count` questions: every kind has the same share, and so has every source of a kind.

    A kind or source with few questions gives each of them up to `most_repeats` times.
    """
    found: dict[str, dict[str, list[Question]]] = {}
    for question in questions:
        found.setdefault(question.kind, {}).setdefault(question.source, []).append(question)
    room = {kind: most_repeats * sum(map(len, own.values())) for kind, own in found.items()}
    chosen: list[Question] = []
    for kind, share in even_shares(room, count).items():
        sources = {source: most_repeats * len(own) for source, own in found[kind].items()}
        for source, part in even_shares(sources, share).items():
            own = chance.sample(found[kind][source], len(found[kind][source]))
            chosen += (own * (part // len(own) + 1))[:part]
    chance.shuffle(chosen)
    return chosen


def even_shares(room: Mapping[str, int], count: int) -> dict[str, int]:
    """Divides `count` evenly; what does not fit into one place goes to the others."""
    shares, left = {}, count
    for place, name in enumerate(sorted(room, key=lambda name: (room[name], name))):
        shares[name] = min(room[name], left // (len(room) - place))
        left -= shares[name]
    return shares


class Function(NamedTuple):
    """A Python function from a corpus."""

    name: str
    arguments: str
    purpose: str
    """The first line of its docstring, else the words of its name."""
    head: str
    source: str

    @property
    def words(self) -> str:
        return self.name.strip("_").replace("_", " ")


def python_functions(text: str) -> Iterator[Function]:
    """Yields the functions of a Python file that are neither very short nor very long; none of other text."""
    try:
        with warnings.catch_warnings():  # about the files of others
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    lines = text.split("\n")
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.end_lineno is None:
            continue
        if _FUNCTION_LINES[0] <= node.end_lineno - node.lineno <= _FUNCTION_LINES[1]:
            source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            words = node.name.strip("_").replace("_", " ")
            purpose = (ast.get_docstring(node) or "").split("\n")[0] or words
            arguments = ", ".join(argument.arg for argument in node.args.args)
            head = source.split(":\n")[0] + ":\n"
            yield Function(node.name, arguments, purpose, head, source)


def passages_of(text: str, chance: random.Random) -> list[str]:
    """Returns some paragraphs of a text, each as one line."""
    paragraphs = [part.strip().replace("\n", " ") for part in text.split("\n\n")]
    fitting = [part for part in paragraphs if _PASSAGE[0] < len(part) < _PASSAGE[1]]
    return chance.sample(fitting, min(len(fitting), _PASSAGES_PER_TEXT))


def _first_sentence(passage: str) -> str:
    return passage.split(". ")[0][:160].rstrip(".")


_LANGUAGES = ("JavaScript", "Java", "C++", "Go", "Rust", "TypeScript", "C")
_FORMS = (
    "a short story",
    "a poem",
    "an essay",
    "a blog post",
    "a letter",
    "a news article",
    "a scene with dialogue",
    "a speech",
    "a diary entry",
)
_TONGUES = ("French", "Spanish", "German", "Italian")


def _quoted(source: str) -> str:
    return f"```python\n{source}\n```"


CodeTask = Callable[[Function, random.Random], str]
CODE_TASKS: tuple[CodeTask, ...] = (
    lambda f, _: f"Write a Python function `{f.name}({f.arguments})` for the following: {f.purpose}",
    lambda f, _: f"Write a Python function to {f.words}.",
    lambda f, _: "Complete the following Python function:\n" + _quoted(f'{f.head}    """{f.purpose}"""'),
    lambda f, _: f"Explain what this code does:\n{_quoted(f.source)}",
    lambda f, _: f"Add type hints and a docstring to this function:\n{_quoted(f.source)}",
    lambda f, _: f"Write unit tests for this function:\n{_quoted(f.source)}",
    lambda f, chance: f"Rewrite this function in {chance.choice(_LANGUAGES)}:\n{_quoted(f.source)}",
    lambda f, chance: f"Implement {f.words} in {chance.choice(('Python', *_LANGUAGES))}, with an example.",
    lambda f, _: f"Find and fix any bugs in the following code.\n\n{f.source}",
    lambda f, _: f"Refactor this function so that it is easier to read:\n{_quoted(f.source)}",
)
ProseTask = Callable[[str, random.Random], str]
PROSE_TASKS: tuple[ProseTask, ...] = (
    lambda p, _: f"Summarize the following passage:\n\n{p}",
    lambda p, _: f"Continue this text:\n\n{p}",
    lambda p, _: f"Rewrite this paragraph in simple modern English:\n\n{p}",
    lambda p, _: f"What is the main idea of this text?\n\n{p}",
    lambda p, chance: f'Write {chance.choice(_FORMS)} that begins with: "{_first_sentence(p)}."',
    lambda p, chance: f"Write {chance.choice(_FORMS)} inspired by this: {_first_sentence(p)}.",
    lambda p, chance: f"Translate into {chance.choice(_TONGUES)}:\n\n{_first_sentence(p)}.",
    lambda p, _: f"List the people and places mentioned here, then describe the mood.\n\n{p}",
    lambda p, _: f"Expand this sentence into a paragraph: {_first_sentence(p)}.",
)
