"""Compiles grammars for a model's tokenizer: JSON schema, regular expression and Lark.

`Grammars` compiles and caches grammars, and returns a `Constraint` (constraint.py) for one text. The library
llguidance does the parsing; it is imported when the first grammar is compiled. The engine has one `Grammars`;
the server checks a grammar with it before the request is queued.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from wager.errors import RequestError
from wager.records import GrammarSpec, SamplingParams
from wager.text.constraint import Constraint, short_reason
from wager.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["JSON_STYLE", "Grammars", "json_spec"]

MAX_TEXT = 256 << 10
MAX_KNOWN = 64

JSON_STYLE: dict[str, object] = {
    # At most one space is allowed between two parts of a JSON text; otherwise a weak model may write white
    # space up to its token limit.
    "whitespace_pattern": " ",
    # A keyword that cannot be enforced is refused instead of ignored.
    "lenient": False,
}


def json_spec(schema: object) -> GrammarSpec:
    """Returns the grammar of a JSON schema that a caller sent as data. Raises RequestError."""
    if not isinstance(schema, dict):
        raise RequestError("a JSON schema is an object", "grammar")
    try:
        return GrammarSpec("json_schema", json.dumps(schema, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"the JSON schema is not plain JSON data ({error})", "grammar") from error


class Grammars:
    """The grammars of one model. Several threads may use it; compiling does not block other callers."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, end_ids: Iterable[int]) -> None:
        """`vocab_size` is the number of scores of the model; `end_ids` are the tokens that may end a text."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = tuple(end for end in end_ids if end < vocab_size)
        self._vocabulary: LLTokenizer | None = None
        self._known: OrderedDict[GrammarSpec, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._reading = threading.Lock()

    def check(self, spec: GrammarSpec) -> None:
        """Compiles a grammar and caches it for `begin`. Raises RequestError if it cannot be used."""
        self._matcher(spec)

    def is_mark(self, token_id: int) -> bool:
        """Whether grammars treat this token as a special token instead of its text. Raises RequestError."""
        return bool(self._read_vocabulary().is_special_token(token_id))

    def begin(self, params: SamplingParams) -> Constraint | None:
        """Returns the constraint of a new text, or None if the request has no grammar. Raises
        RequestError.
        """
        if params.grammar is None:
            return None
        if params.ignore_eos:
            raise RequestError(
                "cannot be combined with a grammar, which determines where the text ends", "ignore_eos"
            )
        if params.min_tokens:
            raise RequestError(
                "cannot be combined with a grammar, which determines where the text ends", "min_tokens"
            )
        matcher = self._matcher(params.grammar).deep_copy()
        return Constraint(matcher, self._vocab_size, self._end_ids, params.thinking)

    def _matcher(self, spec: GrammarSpec) -> LLMatcher:
        """Returns the cached matcher at the beginning of the grammar; callers copy it before they use it."""
        with self._lock:
            known = self._known.get(spec)
            if known is not None:
                self._known.move_to_end(spec)
                return known
        made = self._compile(spec)
        with self._lock:
            self._known[spec] = made
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return made

    def _compile(self, spec: GrammarSpec) -> LLMatcher:
        if len(spec.text) > MAX_TEXT:
            raise RequestError(f"has {len(spec.text)} characters; at most {MAX_TEXT}", "grammar")
        vocabulary = self._read_vocabulary()
        from llguidance import LLMatcher, LLParserLimits

        try:
            limits = LLParserLimits(verbose_errors=False)
            matcher = LLMatcher(vocabulary, _source(spec), log_level=0, limits=limits)
        except (ValueError, TypeError, UnicodeError) as error:
            raise RequestError(
                f"the {_NAMES[spec.kind]} is refused: {short_reason(str(error))}", "grammar"
            ) from None
        if not matcher.is_error():
            matcher.compute_bitmask()  # fails if no text matches the grammar
        if matcher.is_error():
            raise RequestError(
                f"the {_NAMES[spec.kind]} is refused: {short_reason(matcher.get_error())}", "grammar"
            )
        return matcher

    def _read_vocabulary(self) -> LLTokenizer:
        """Returns the tokenizer in the library's form; it is converted once, which takes a second for a large
        vocabulary.
        """
        if self._tokenizer is None:
            raise RequestError("the model has no tokenizer, so its text cannot follow a grammar", "grammar")
        if not self._end_ids:
            raise RequestError("the model has no end token, so a grammar could not end", "grammar")
        with self._reading:
            if self._vocabulary is None:
                self._vocabulary = _vocabulary(self._tokenizer, self._vocab_size, self._end_ids)
            return self._vocabulary


_NAMES = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "Lark grammar"}


def _source(spec: GrammarSpec) -> str:
    from llguidance import LLMatcher

    if spec.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(spec.text, overrides=JSON_STYLE)  # type: ignore[arg-type]
    if spec.kind == "regex":
        return LLMatcher.grammar_from_regex(spec.text)
    return LLMatcher.grammar_from_lark(spec.text)


def _vocabulary(tokenizer: Tokenizer, vocab_size: int, end_ids: tuple[int, ...]) -> LLTokenizer:
    try:
        from llguidance import LLTokenizer
    except ImportError:
        raise RequestError(
            "grammars need the package llguidance: pip install 'wager[server]'", "grammar"
        ) from None
    try:
        return LLTokenizer(tokenizer.backend.to_str(), n_vocab=vocab_size, eos_token=list(end_ids))
    except Exception as error:  # the library has no specific error type for this
        raise RequestError(
            f"the model's tokenizer cannot follow a grammar ({short_reason(str(error))})", "grammar"
        ) from error
