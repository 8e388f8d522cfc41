"""Reasoning and answer are told apart, whatever the pieces in which the text comes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.pieces import CUTS, cut
from wager.errors import InputError
from wager.text.reasoning import ReasoningMarks, ReasoningSplitter
from wager.text.tokenizer import Tokenizer

MARKS = ReasoningMarks()


def split(pieces: list[str], starts_open: bool = False, marks: ReasoningMarks = MARKS) -> tuple[str, str]:
    splitter = ReasoningSplitter(marks, starts_open)
    found = [*(splitter.feed(piece) for piece in pieces), splitter.flush()]
    return "".join(one.reasoning for one in found), "".join(one.content for one in found)


CASES = [
    ("<think>\nso it is\n</think>\n\nYes.\n", False, ("so it is", "Yes.\n")),
    ("so it is\n</think>\n\nYes.", True, ("so it is", "Yes.")),
    ("Yes.", False, ("", "Yes.")),
    ("  Yes.  ", False, ("", "  Yes.  ")),
    ("\n <think>a</think>b", False, ("a", "b")),
    ("Well <think>a</think> b", False, ("a", "Well b")),
    ("<think>cut off", False, ("cut off", "")),
    ("cut off </thi", True, ("cut off </thi", "")),
    ("a < b <th", False, ("", "a < b <th")),
    ("<think></think>b", False, ("", "b")),
    ("<think>a</think>", False, ("a", "")),
    ("<think>a</think>b <think>c</think> d", False, ("a", "b <think>c</think> d")),
    ("<think> <think>\na</think>b", True, ("a", "b")),
    ("a <think> b</think>c", True, ("a <think> b", "c")),
    ("</think>b", False, ("", "b")),
    (" \n", False, ("", " \n")),
    (" \n", True, ("", "")),
    ("", False, ("", "")),
]


@pytest.mark.parametrize(("text", "starts_open", "wanted"), CASES)
def test_the_parts_of_a_text(text: str, starts_open: bool, wanted: tuple[str, str]) -> None:
    assert split([text], starts_open) == wanted
    assert split(list(text), starts_open) == wanted


PARTS = ["<think>", "</think>", "<", ">", "think", "/", "a", " ", "\n", "</", "<thi", "b\n"]


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=14), cuts=CUTS, starts_open=st.booleans())
def test_the_pieces_do_not_matter(parts: list[str], cuts: list[int], starts_open: bool) -> None:
    text = "".join(parts)
    assert split(cut(text, cuts), starts_open) == split([text], starts_open)


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=14), starts_open=st.booleans())
def test_the_same_parts_as_of_the_whole_text(parts: list[str], starts_open: bool) -> None:
    text = "".join(parts)
    reasoning, content = split([text], starts_open)
    wanted_reasoning, wanted_content = whole(text, starts_open)
    assert reasoning == wanted_reasoning
    assert content.split() == wanted_content.split()


def whole(text: str, starts_open: bool) -> tuple[str, str]:
    """The definition, for a text that is there at once; blanks of the content apart."""
    before = ""
    if not starts_open:
        before, mark, text = text.partition("<think>")
        before = before.replace("</think>", "")
        if not mark:
            return "", before
    reasoning, _, answer = text.partition("</think>")
    while (reasoning := reasoning.strip()).startswith("<think>"):
        reasoning = reasoning.removeprefix("<think>")
    return reasoning, before + answer.lstrip()


@settings(max_examples=100, deadline=None)
@given(
    reasoning=st.text(st.characters(exclude_characters="<"), min_size=1).map(str.strip),
    answer=st.text(min_size=1).map(str.strip),
    cuts=CUTS,
)
def test_an_answer_may_say_anything(reasoning: str, answer: str, cuts: list[int]) -> None:
    text = f"<think>\n{reasoning}\n</think>\n\n{answer}"
    assert split(cut(text, cuts)) == (reasoning, answer)


def test_text_is_given_out_as_soon_as_it_is_certain() -> None:
    splitter = ReasoningSplitter(MARKS)
    assert splitter.feed("<thi").content == ""
    assert splitter.feed("nk>so").reasoning == "so"
    assert splitter.is_reasoning
    assert splitter.feed(" it is").reasoning == " it is"
    assert splitter.feed(" <") == ("", "")
    assert splitter.feed("= 3").reasoning == " <= 3"
    assert splitter.feed("</think>\n") == ("", "")
    assert not splitter.is_reasoning
    assert splitter.feed("Yes <").content == "Yes <"


def test_other_marks() -> None:
    marks = ReasoningMarks("[THINK]", "[/THINK]")
    assert split(["[THI", "NK]a[/THINK]b"], marks=marks) == ("a", "b")


def test_which_special_tokens_a_text_must_show(byte_level: Tokenizer) -> None:
    marks = ReasoningMarks("<|start|>", "</think>")
    assert marks.shown_ids(byte_level) == (byte_level.token_id("<|start|>"),)
    assert MARKS.shown_ids(byte_level) == ()


@pytest.mark.parametrize("marks", [("", "b"), ("a", ""), ("a", "a")])
def test_impossible_marks_are_refused(marks: tuple[str, str]) -> None:
    with pytest.raises(InputError, match="marks"):
        ReasoningMarks(*marks)
