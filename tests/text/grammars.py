"""Grammars for the tests of this folder, and what a constraint allows."""

from typing import Any

import numpy as np

from wager.records import GrammarSpec, SamplingParams, ThinkingLimit
from wager.text.constraint import Constraint
from wager.text.grammar import Grammars, json_spec
from wager.text.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "ab", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
LINKED = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["next"],
            "additionalProperties": False,
        }
    },
}
SPECS = {
    "object": json_spec(PERSON),
    "recursive": json_spec(LINKED),
    "regex": GrammarSpec("regex", r"(yes|yesterday|no)( [a-z]{1,4}){1,2}\."),
    "lark": GrammarSpec("lark", 'start: "<" WORD ">" ("," WORD){0,3}\nWORD: /[a-z]{1,4}/'),
}


def make_grammars(tokenizer: Tokenizer | None) -> Grammars:
    size = 340 if tokenizer is None else tokenizer.vocab_size + 10
    return Grammars(tokenizer, size, () if tokenizer is None else tokenizer.eos_ids)


def begin(grammars: Grammars, spec: GrammarSpec, thinking: ThinkingLimit | None = None) -> Constraint:
    found = grammars.begin(SamplingParams(grammar=spec, thinking=thinking))
    assert found is not None
    return found


def follow(constraint: Constraint, tokens: list[int], forced: tuple[int, ...] = ()) -> None:
    constraint.follow(tokens, ["forced" if i in forced else "target" for i in range(len(tokens))])


def allowed(constraint: Constraint) -> set[int]:
    return bits(constraint.masks([], [])[0])


def bits(mask: Any) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())
