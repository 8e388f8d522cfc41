"""The marks around thinking as token ids, and whether a prompt ends inside it."""

import pytest
from tokenizers import AddedToken

from tests.text.conftest import train_byte_level
from wager.errors import RequestError
from wager.records import ThinkingLimit
from wager.text.thinking import ThinkingMarks, ends_inside, last_index, thinking_marks
from wager.text.tokenizer import Tokenizer

TEXTS = ("<think>", "</think>", "\nenough.\n</think>\n\n")


def tokenizer(*added: str) -> Tokenizer:
    backend = train_byte_level()
    backend.add_special_tokens([AddedToken(one, special=True) for one in added])
    return Tokenizer(backend)


@pytest.fixture(scope="module")
def knowing() -> Tokenizer:
    return tokenizer("<think>", "</think>")


def marks_of(one: Tokenizer) -> ThinkingMarks:
    found = thinking_marks(one, TEXTS)
    assert found is not None
    return found


def test_special_tokens_are_one_id_each(knowing: Tokenizer) -> None:
    marks = marks_of(knowing)
    assert len(marks.open_ids) == len(marks.natural_ids) == 1
    assert marks.natural_ids[0] in marks.close_ids and len(marks.close_ids) > 3
    assert knowing.decode(marks.close_ids, skip_special=False) == TEXTS[2]


def test_marks_that_are_no_tokens_are_spelt_out() -> None:
    plain = tokenizer()
    marks = marks_of(plain)
    assert len(marks.open_ids) > 1
    assert thinking_marks(plain, TEXTS, known_only=True) is None


def test_what_is_forced_must_close(knowing: Tokenizer) -> None:
    with pytest.raises(RequestError, match="thinking"):
        thinking_marks(knowing, ("<think>", "</think>", "enough."))


@pytest.mark.parametrize(
    ("prompt", "inside"),
    [
        ("Hello", False),
        ("Hello <think>", True),
        ("Hello <think>\n", True),
        ("Hello <think>\n \n", True),
        ("Hello <think>\nso", False),
        ("Hello <think>\n</think>\n", False),
        ("<think> of a user, and then <think>\n", True),
        ("what is <think> then?", False),
    ],
)
def test_a_prompt_that_ends_inside(knowing: Tokenizer, prompt: str, inside: bool) -> None:
    ids = knowing.encode(prompt, add_special=False)
    assert ends_inside(knowing, ids, marks_of(knowing)) is inside


def test_a_limit_has_these_marks(knowing: Tokenizer) -> None:
    marks = marks_of(knowing)
    limit = marks.limit(7, starts_open=True)
    assert limit == ThinkingLimit(7, marks.open_ids, marks.close_ids, True, marks.natural_ids)


def test_the_last_index() -> None:
    assert last_index([1, 2], [1, 2, 3, 1, 2, 1]) == 3
    assert last_index([9], [1, 2]) is None and last_index([1, 2, 3], [1, 2]) is None
