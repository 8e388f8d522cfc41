"""Reasoning, content and calls together."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.pieces import CUTS, cut
from wager.text.answer import AnswerPiece, AnswerReader
from wager.text.reasoning import ReasoningMarks
from wager.text.tools import HERMES, LINES, ToolCall, ToolFormat

TOOLS = [{"type": "function", "function": {"name": "stop"}}]
CALL = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
TEXT = f"<think>\nShould I? {CALL}\n</think>\n\nYes.\n{CALL}\n"


def read(reader: AnswerReader, pieces: list[str]) -> AnswerPiece:
    found = [*(reader.feed(piece) for piece in pieces), reader.flush()]
    calls = tuple(call for one in found for call in one.calls)
    return AnswerPiece("".join(p.reasoning for p in found), "".join(p.content for p in found), calls)


def test_all_three_parts_and_no_calls_in_the_reasoning() -> None:
    reader = AnswerReader(ReasoningMarks(), form=HERMES, tools=TOOLS)
    assert read(reader, [TEXT]) == (f"Should I? {CALL}", "Yes.", (ToolCall(0, "stop", "{}"),))
    assert reader.has_calls and reader.malformed == []


def test_what_is_not_asked_for_is_content() -> None:
    assert read(AnswerReader(), [TEXT]) == ("", TEXT, ())
    assert read(AnswerReader(form=HERMES), [CALL]) == ("", CALL, ())
    assert not AnswerReader().has_calls and AnswerReader().malformed == []
    assert read(AnswerReader(ReasoningMarks()), ["<think>a</think>", CALL]) == ("a", CALL, ())


def test_what_the_splitter_held_back_still_reaches_the_parser() -> None:
    reader = AnswerReader(ReasoningMarks(), form=HERMES, tools=TOOLS)
    assert read(reader, [f"{CALL}<thi"]) == ("", "<thi", (ToolCall(0, "stop", "{}"),))


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(st.sampled_from(["<think>", "</think>", CALL, "a", "\n", "<", "Yes. ", "{"]), max_size=8),
    form=st.sampled_from([HERMES, LINES]),
    starts_open=st.booleans(),
    cuts=CUTS,
)
def test_the_pieces_do_not_matter(
    parts: list[str], form: ToolFormat, starts_open: bool, cuts: list[int]
) -> None:
    text = "".join(parts)
    whole, pieces = (AnswerReader(ReasoningMarks(), starts_open, form, TOOLS) for _ in range(2))
    assert read(whole, [text]) == read(pieces, cut(text, cuts))
    assert whole.malformed == pieces.malformed
