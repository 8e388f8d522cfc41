"""Questions of a corpus, and the tokens between turns, for several chat templates."""

import random

import pytest

from tests.train.chat_model import CHATML, FUNCTION, INST, PLAIN, make_tokenizer, template_of
from wager.errors import ModelError
from wager.train.chat_turns import ChatTurns, read_turns
from wager.train.corpus import Record
from wager.train.questions import (
    CODE_TASKS,
    PROSE_TASKS,
    Question,
    QuestionOptions,
    QuestionSource,
    even_shares,
    mixed,
    passages_of,
    python_functions,
    read_messages,
)
from wager.train.texts import Text

TOKENIZER = make_tokenizer()
MARKED = (
    "<|system|>\nBe brief.\n<|user|>\n1 + 1?\n<|assistant|>\n2.\n\nSure.\n"
    "<|user|>\nAnd 2?\n<|assistant|>\n4.\n<|end|>\n"
)


def shown(ids: list[int]) -> str:
    return TOKENIZER.decode(ids, skip_special=False)


def prompts(record: Record, template: str = CHATML, seed: int = 0, **options: float) -> list[str]:
    source = QuestionSource(
        template_of(template), TOKENIZER, QuestionOptions(**{"max_prompt": 2000, **options})
    )
    return [shown(question.prompt_ids) for question in source.of([record], random.Random(seed))]


def turns_of(template: str, end: str = "<|im_end|>") -> ChatTurns:
    return read_turns(template_of(template), make_tokenizer(end))


def test_marked_turns_are_read() -> None:
    assert read_messages(MARKED) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2.\n\nSure."},
        {"role": "user", "content": "And 2?"},
        {"role": "assistant", "content": "4."},
    ]
    assert read_messages("A text that mentions <|user|> in a line.") == []


def test_a_chat_is_asked_up_to_one_of_its_answers() -> None:
    found = {prompts(Record(MARKED, "math"), seed=seed)[0] for seed in range(12)}
    first = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n"
    )
    second = "2.\n\nSure.<|im_end|>\n<|im_start|>user\nAnd 2?<|im_end|>\n<|im_start|>assistant\n"
    assert found == {first, first + second}
    # A template that refuses system messages has no such question, and long ones are dropped.
    assert prompts(Record(MARKED), INST) == []
    assert prompts(Record(MARKED), max_prompt=10) == []
    assert prompts(Record("x", prompt="<|im_start|>user\nHello<|im_end|>")) == [
        "<|im_start|>user\nHello<|im_end|>"
    ]


def test_code_becomes_tasks_about_its_functions() -> None:
    record = Record("# file: a.py\n" + FUNCTION.format(7), "code", source="here")
    (function,) = python_functions(record.text)
    assert (function.name, function.arguments, function.purpose) == (
        "add_one_7",
        "value, step",
        "Adds 7 to a value.",
    )
    assert function.words == "add one 7" and function.head == "def add_one_7(value, step):\n"
    tasks = {task(function, random.Random(seed)) for task in CODE_TASKS for seed in range(9)}
    assert len(tasks) > len(CODE_TASKS) and all("add_one_7" in one or "add one 7" in one for one in tasks)
    found = [prompts(record, seed=seed, beginning_share=0.0) for seed in range(40)]
    assert {len(one) for one in found} == {1, 2}
    assert all("user\n" in text and text.endswith("assistant\n") for one in found for text in one)
    inner = "class A:\n    def go(self):\n        a = 1\n        b = 2\n        c = 3\n        return a\n"
    assert next(iter(python_functions(inner))).source.startswith("def go(self):\n    a = 1")
    assert not list(python_functions("def broken(:\n")) and not list(python_functions("def f():\n    pass\n"))


def test_prose_becomes_tasks_about_its_passages() -> None:
    text = "\n\n".join(["Short.", "It was day one. " + "The wind\nblew. " * 20, "x" * 2000])
    (passage,) = passages_of(text, random.Random(0))
    assert "\n" not in passage and passage.startswith("It was day one. The wind blew.")
    tasks = {task(passage, random.Random(seed)) for task in PROSE_TASKS for seed in range(9)}
    assert len(tasks) > len(PROSE_TASKS) and all("It was day one" in one for one in tasks)
    found = prompts(Record(text, "prose"), beginning_share=1.0)
    assert len(found) == 2 and found[0].startswith("<|im_start|>") and found[1].startswith("Short.")


def test_beginnings_have_a_kind_of_their_own() -> None:
    source = QuestionSource(template_of(CHATML), TOKENIZER, QuestionOptions(60, beginning_share=1.0))
    (question,) = source.of([Record("word " * 200, "prose", source="book")], random.Random(1))
    assert question.kind == "text" and question.source == "book" and 20 <= len(question.prompt_ids) <= 60


def test_a_source_is_not_read_further_than_needed() -> None:
    records = [Record(MARKED, "math", source="ab"[number % 2]) for number in range(20)]
    source = QuestionSource(template_of(CHATML), TOKENIZER)
    found = [question.source for question in source.of(records, random.Random(0), 3)]
    assert sorted(found) == ["a"] * 3 + ["b"] * 3
    assert len(list(source.of(records, random.Random(0)))) == 20


def test_kinds_and_sources_have_even_shares() -> None:
    assert even_shares({"a": 3, "b": 100, "c": 100}, 43) == {"a": 3, "b": 20, "c": 20}
    assert even_shares({"a": 3, "b": 4}, 99) == {"a": 3, "b": 4} and even_shares({}, 5) == {}
    given = [Question("math", "many", [1, i]) for i in range(900)]
    given += [Question("math", "few", [2, i]) for i in range(10)]
    given += [Question("chat", "talks", [3, i]) for i in range(300)]
    found = mixed(given, 400, random.Random(0))
    counts = {source: sum(one.source == source for one in found) for source in ("many", "few", "talks")}
    assert counts == {"few": 40, "many": 160, "talks": 200}
    assert len({one.prompt_ids[1] for one in found if one.source == "many"}) == 160
    assert {sum(one == each for one in found) for each in given[900:910]} == {4}


@pytest.mark.parametrize(
    ("template", "end", "opening", "answering", "asking"),
    [
        (
            CHATML,
            "<|im_end|>",
            "<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\n",
            "<|im_end|>\n<|im_start|>assistant\n",
            "<|im_end|>\n<|im_start|>user\n",
        ),
        (INST, "</s>", "<s>[INST] ", " [/INST]", "</s>[INST] "),
        (PLAIN, "</s>", "user: ", "\nassistant: ", "\nuser: "),
    ],
)
def test_the_tokens_between_turns_are_the_templates_own(
    template: str, end: str, opening: str, answering: str, asking: str
) -> None:
    turns = turns_of(template, end)
    assert shown(turns.opening) == opening
    assert shown(turns.answering) == answering
    assert shown(turns.asking) == asking


def test_an_invented_question_becomes_a_prompt() -> None:
    """As the template itself would render it, for a first question and for a further one."""
    for template, end, close in ((CHATML, "<|im_end|>", "<|im_end|>"), (INST, "</s>", " [/INST]")):
        turns, rendered = turns_of(template, end), template_of(template)
        order = turns.invention(40, 3)
        assert (order.num_output, order.temperature, order.seed) == (40, 1.0, 3)
        output = TOKENIZER.encode("What is new?" + close, add_special=False)
        prompt = turns.question_prompt(order, output)
        assert prompt is not None
        chat = [{"role": "user", "content": "What is new?"}]
        assert shown(prompt) == rendered.render(chat)
        answer = TOKENIZER.encode(" Nothing." + end, add_special=False)
        text = Text(prompt, answer, 0.0, 0)
        assert turns.is_finished(text) and not turns.is_finished(text._replace(output_ids=answer[:-1]))
        further = turns.question_prompt(turns.invention(40, 4, text), output)
        assert further is not None
        assert shown(further) == shown(prompt) + " Nothing." + shown(turns.asking) + "What is new?" + shown(
            turns.answering
        )
        assert turns.question_prompt(order, output[:-1]) is None
        assert turns.question_prompt(order, output[-3:]) is None


def test_a_template_without_marks_has_no_end_of_a_question() -> None:
    assert turns_of(PLAIN).question_ends == frozenset()
    with pytest.raises(ModelError, match="does not show the messages"):
        turns_of("{{ messages | length }}")
