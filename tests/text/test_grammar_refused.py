"""Grammars that cannot be used: refused in one clear line that says why."""

import sys
from typing import Any

import pytest

from tests.text.grammars import SPECS, make_grammars
from wager.errors import RequestError
from wager.records import GrammarSpec, SamplingParams
from wager.text.grammar import MAX_TEXT, Grammars, json_spec
from wager.text.tokenizer import Tokenizer

REFUSED = [
    (json_spec({"type": "dict"}), "JSON schema is refused: Invalid type: dict"),
    (json_spec({"not": {"type": "string"}}), 'Unimplemented keys: \\["not"\\]'),
    (json_spec({"type": "array", "uniqueItems": True}), "uniqueItems"),
    (json_spec({"type": "string", "format": "weird"}), "Unknown format: weird"),
    (json_spec({"not": {}, "x-guidance": {"lenient": True}}), "Unimplemented"),
    (json_spec({"$ref": "http://example.com/schema"}), "example.com"),
    (json_spec({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "no text matches it"),
    (GrammarSpec("json_schema", "[1]"), "object"),
    (json_spec({"enum": []}), "[Uu]nsatisfiable"),
    (json_spec({"type": "string", "pattern": "(?=a)b"}), "look-around"),
    (GrammarSpec("json_schema", "{broken"), "JSON schema is refused"),
    (GrammarSpec("json_schema", '{"items":' * 3000 + "{}" + "}" * 3000), "recursion limit"),
    (GrammarSpec("json_schema", '{"enum":["' + "a" * MAX_TEXT + '"]}'), f"at most {MAX_TEXT}"),
    (GrammarSpec("regex", "(a"), "regular expression is refused: unclosed group"),
    (GrammarSpec("regex", "(?=a)b"), "look-around"),
    (GrammarSpec("lark", "nonsense"), "Lark grammar is refused: .*Expected token ':'"),
    (GrammarSpec("lark", 'start: start "a"'), "no text matches it"),
    (GrammarSpec("lark", "start: <|nobody|>"), "special token"),
]


@pytest.mark.parametrize(
    ("spec", "message"), REFUSED, ids=[f"{s.kind}-{i}" for i, (s, _) in enumerate(REFUSED)]
)
def test_what_cannot_be_used_is_refused_in_one_clear_line(
    grammars: Grammars, spec: GrammarSpec, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        grammars.check(spec)
    assert caught.value.field == "grammar"
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


@pytest.mark.parametrize("schema", ["text", 3, None, True, [1], {"enum": [object()]}])
def test_what_is_no_schema_is_refused(schema: object) -> None:
    with pytest.raises(RequestError, match="grammar"):
        json_spec(schema)


def test_a_schema_too_deep_to_write_down_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(RequestError, match="grammar"):
        json_spec(schema)


@pytest.mark.parametrize("values", [{"ignore_eos": True}, {"min_tokens": 3}])
def test_the_grammar_alone_says_where_the_text_ends(grammars: Grammars, values: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=f"{next(iter(values))}.*grammar"):
        grammars.begin(SamplingParams(grammar=SPECS["regex"], **values))


def test_a_model_must_have_a_tokenizer_and_an_end(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match="no tokenizer"):
        make_grammars(None).check(SPECS["regex"])
    with pytest.raises(RequestError, match="no end token"):
        Grammars(byte_level, 400, ()).check(SPECS["regex"])


def test_a_tokenizer_that_cannot_follow_a_grammar_is_refused(metaspaced: Tokenizer) -> None:
    with pytest.raises(RequestError, match="tokenizer cannot follow a grammar"):
        Grammars(metaspaced, 6, (0,)).check(SPECS["regex"])


def test_without_the_library_the_message_says_how_to_get_it(
    byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match="pip install"):
        make_grammars(byte_level).check(SPECS["regex"])
