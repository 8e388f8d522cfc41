"""Grammars: masks along trees, bent drafts, ends, thinking in front of a grammar; compiled once."""

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.grammars import SPECS, allowed, begin, bits, follow, make_grammars
from wager.records import GrammarSpec, SamplingParams, ThinkingLimit
from wager.text.constraint import Constraint
from wager.text.grammar import MAX_KNOWN, Grammars
from wager.text.tokenizer import Tokenizer


def write(constraint: Constraint, rng: random.Random, end: int, most: int = 400) -> list[int]:
    """A text drawn from the masks alone."""
    tokens: list[int] = []
    while len(tokens) < most:
        tokens.append(rng.choice(sorted(allowed(constraint))))
        follow(constraint, tokens)
        if tokens[-1] == end:
            break
    return tokens


def end_of(tokenizer: Tokenizer) -> int:
    (end,) = tokenizer.eos_ids
    return end


# -- texts


@pytest.mark.parametrize("seed", range(12))
def test_every_text_the_masks_allow_fits_the_schema(
    grammars: Grammars, byte_level: Tokenizer, seed: int
) -> None:
    tokens = write(begin(grammars, SPECS["object"]), random.Random(seed), end_of(byte_level))
    assert tokens[-1] == end_of(byte_level)
    value = json.loads(byte_level.decode(tokens))
    assert set(value) <= {"name", "age", "tags"} and {"name", "age"} <= set(value)
    assert len(value["name"]) <= 5 and 0 <= value["age"] <= 120
    assert set(value.get("tags", ())) <= {"a", "ab", "b"} and len(value.get("tags", ())) <= 3


def test_blanks_cannot_go_on_for_ever(grammars: Grammars, byte_level: Tokenizer) -> None:
    constraint = begin(grammars, SPECS["object"])
    tokens = byte_level.encode("{", add_special=False)
    follow(constraint, tokens)
    blanks = {i for i in range(byte_level.vocab_size) if not byte_level.decode([i]).strip()}
    for _ in range(40):
        found = sorted(allowed(constraint) & blanks - {end_of(byte_level)})
        if not found:
            return
        tokens.append(found[0])
        follow(constraint, tokens)
    raise AssertionError("blanks are allowed without end")


def test_a_recursive_schema_is_followed(grammars: Grammars, byte_level: Tokenizer) -> None:
    constraint = begin(grammars, SPECS["recursive"])
    text = '{"next": {"next": {"next": null}}}'
    follow(constraint, byte_level.encode(text, add_special=False))
    assert constraint.problem is None
    assert allowed(constraint) == {end_of(byte_level)}


def test_only_the_end_follows_the_end_of_the_grammar(grammars: Grammars, byte_level: Tokenizer) -> None:
    constraint = begin(grammars, SPECS["regex"])
    tokens = byte_level.encode("no way", add_special=False)
    follow(constraint, tokens)
    assert end_of(byte_level) not in allowed(constraint)
    tokens += byte_level.encode(".", add_special=False)
    follow(constraint, tokens)
    assert allowed(constraint) == {end_of(byte_level)}
    assert constraint.permitted([end_of(byte_level), tokens[0], tokens[0]], [-1, 0, -1]) == [
        True,
        False,
        False,
    ]


def test_tokens_the_model_has_and_the_tokenizer_has_not_are_not_allowed(
    grammars: Grammars, byte_level: Tokenizer
) -> None:
    found = allowed(begin(grammars, GrammarSpec("regex", "(?s:.*)")))
    assert max(found) < byte_level.vocab_size
    assert byte_level.token_id("<|start|>") not in found


def test_a_text_that_leaves_the_grammar_is_a_problem(grammars: Grammars, byte_level: Tokenizer) -> None:
    constraint = begin(grammars, SPECS["object"])
    follow(constraint, byte_level.encode("hello", add_special=False))
    assert constraint.problem is not None and "grammar" in constraint.problem
    constraint.masks([1], [-1])  # and nothing raises later


# -- trees


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[float]]:
    """Parents, and for every node where to draw its token from."""
    count = draw(st.integers(1, 10))
    parents = [draw(st.integers(-1, i - 1)) for i in range(count)]
    return parents, [draw(st.floats(0, 1)) for _ in range(count)]


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(SPECS)), seed=st.integers(0, 10**6), tree=trees(), length=st.integers(0, 30)
)
def test_each_node_is_masked_for_its_own_path(
    byte_level: Tokenizer, name: str, seed: int, tree: tuple[list[int], list[float]], length: int
) -> None:
    """Against a constraint of its own that follows the whole path from the beginning."""
    end, rng = end_of(byte_level), random.Random(seed)
    grammars = _grammars_of(byte_level)
    constraint = begin(grammars, SPECS[name])
    text = write(constraint, rng, end, length)
    text = text[:-1] if text and text[-1] == end else text
    constraint = begin(grammars, SPECS[name])
    follow(constraint, text)
    parents, draws = tree
    tokens: list[int] = []
    paths: list[list[int]] = []
    wanted: list[bool] = []
    for parent, where in zip(parents, draws, strict=True):
        before = paths[parent] if parent >= 0 else []
        usual = sorted(_mask_behind(grammars, name, [*text, *before], end))
        # Every fourth or so is any token at all.
        token = usual[int(where * 1.3 * len(usual))] if usual and where < 0.76 else rng.randrange(320)
        tokens.append(token)
        paths.append([*before, token])
        wanted.append((parent < 0 or wanted[parent]) and token in usual)
    found = constraint.permitted(tokens, parents)
    masks = constraint.masks(tokens, parents)
    assert [a or not b for a, b in zip(found, wanted, strict=True)] == [True] * len(tokens)
    assert bits(masks[0]) == _mask_behind(grammars, name, text, end)
    for node, path in enumerate(paths):
        if wanted[node] and path[-1] != end:
            assert bits(masks[node + 1]) == _mask_behind(grammars, name, [*text, *path], end)
    # The walk left no trace.
    assert bits(constraint.masks([], [])[0]) == bits(masks[0])
    assert constraint.problem is None


def _mask_behind(grammars: Grammars, name: str, tokens: list[int], end: int) -> set[int]:
    if end in tokens:
        return set()
    fresh = begin(grammars, SPECS[name])
    for i in range(len(tokens)):
        follow(fresh, tokens[: i + 1])
    return set() if fresh.problem else allowed(fresh)


_made: dict[int, Grammars] = {}


def _grammars_of(tokenizer: Tokenizer) -> Grammars:
    return _made.setdefault(id(tokenizer), make_grammars(tokenizer))


def test_a_long_chain_is_walked(grammars: Grammars, byte_level: Tokenizer) -> None:
    constraint = begin(grammars, GrammarSpec("regex", "[a-z]*"))
    (letter,) = byte_level.encode("q", add_special=False)
    count = 1500
    assert all(constraint.permitted([letter] * count, list(range(-1, count - 1))))


# -- drafts


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(SPECS)),
    seed=st.integers(0, 10**6),
    length=st.integers(0, 20),
    depths=st.integers(1, 8),
    ranks=st.integers(1, 4),
)
def test_a_draft_is_bent_to_the_grammar(
    byte_level: Tokenizer, name: str, seed: int, length: int, depths: int, ranks: int
) -> None:
    end, rng = end_of(byte_level), np.random.default_rng(seed)
    grammars = _grammars_of(byte_level)
    constraint = begin(grammars, SPECS[name])
    text = write(constraint, random.Random(seed), end, length)
    text = text[:-1] if text and text[-1] == end else text
    constraint = begin(grammars, SPECS[name])
    follow(constraint, text)
    before = allowed(constraint)
    tokens = np.stack([rng.choice(byte_level.vocab_size, ranks, replace=False) for _ in range(depths)])
    logprobs = np.log(rng.dirichlet(np.ones(ranks + 1), depths)[:, :ranks]).astype(np.float32)
    logprobs = -np.sort(-logprobs, axis=1)
    given_tokens, given_logprobs = tokens.copy(), logprobs.copy()

    steered = constraint.steer(tokens, logprobs)
    assert np.array_equal(tokens, given_tokens) and np.array_equal(logprobs, given_logprobs)
    assert allowed(constraint) == before and constraint.problem is None
    assert steered.logprobs is not None and 1 <= len(steered.token_ids) <= depths
    assert steered.logprobs.max() <= 0.0 and not np.isnan(steered.logprobs).any()
    path: list[int] = []
    for depth, row in enumerate(steered.token_ids.tolist()):
        possible = _mask_behind(grammars, name, [*text, *path], end)
        chances = np.exp(steered.logprobs[depth])
        if row[0] not in possible:
            # Only where nothing at all was permitted at the first depth.
            assert depth == 0 and len(steered.token_ids) == 1 and not possible & set(tokens[0].tolist())
            return
        assert {token for token, chance in zip(row, chances, strict=True) if chance > 0} <= possible
        assert chances.sum() <= 1.0 + 1e-5
        if len(possible) == 1:
            assert (row[0], chances[0]) == (possible.pop(), 1.0)
        else:
            assert set(row) == set(tokens[depth].tolist())
            assert chances[0] >= np.exp(logprobs[depth][tokens[depth].tolist().index(row[0])]) - 1e-5
        path.append(row[0])
    if len(steered.token_ids) < depths and path[-1] != end:
        assert not _mask_behind(grammars, name, [*text, *path], end) & set(tokens[len(path)].tolist())


def test_a_chain_without_probabilities_goes_as_far_as_it_is_permitted(
    grammars: Grammars, byte_level: Tokenizer
) -> None:
    constraint = begin(grammars, GrammarSpec("regex", "ab[cd]{3}(yy|z)"))
    a, b, c, y, q = (byte_level.encode(letter, add_special=False)[0] for letter in "abcyq")
    chain = np.array([[q], [q], [c], [c], [c], [y], [q], [c], [c]])
    steered = constraint.steer(chain, None)
    assert steered.logprobs is None
    # a, b, the second y and the end are all there can be.
    assert steered.token_ids[:, 0].tolist() == [a, b, c, c, c, y, y, end_of(byte_level)]


def test_a_draft_in_the_thinking_is_left_alone_up_to_the_close(
    grammars: Grammars, byte_level: Tokenizer
) -> None:
    constraint = begin(grammars, SPECS["object"], thinking(starts_open=True))
    chain = np.array([[50], [30], [31], [50], [50]])
    (brace,) = byte_level.encode("{", add_special=False)  # the only token an object can begin with here
    assert constraint.steer(chain, None).token_ids[:, 0].tolist() == [50, 30, 31, brace]
    assert constraint.steer(np.array([[50], [end_of(byte_level)]]), None).token_ids.tolist() == [[50]]


# -- thinking


def thinking(**values: Any) -> ThinkingLimit:
    return ThinkingLimit(**{"budget": None, "open_ids": (20, 21), "close_ids": (30, 31), **values})


def test_the_grammar_begins_behind_the_thinking(grammars: Grammars, byte_level: Tokenizer) -> None:
    constraint = begin(grammars, SPECS["object"], thinking(starts_open=True))
    free = set(range(byte_level.vocab_size + 10)) - {end_of(byte_level)}
    assert allowed(constraint) == free
    follow(constraint, [50, 30, 50, 30])
    assert allowed(constraint) == free
    (brace,) = byte_level.encode("{", add_special=False)
    tokens, parents = [31, brace, 50, 50], [-1, 0, 0, -1]
    assert constraint.permitted(tokens, parents) == [True, True, False, True]
    masks = constraint.masks(tokens, parents)
    start = allowed(begin(grammars, SPECS["object"]))
    assert bits(masks[0]) == bits(masks[4]) == free and bits(masks[1]) == start
    follow(constraint, [50, 30, 50, 30, 31])
    assert allowed(constraint) == start
    assert end_of(byte_level) not in start


def test_no_end_inside_the_thinking(grammars: Grammars, byte_level: Tokenizer) -> None:
    constraint = begin(grammars, SPECS["object"], thinking(starts_open=True))
    assert constraint.permitted([50, end_of(byte_level)], [-1, 0]) == [True, False]


def test_thinking_may_be_opened_at_the_beginning_alone(grammars: Grammars, byte_level: Tokenizer) -> None:
    constraint = begin(grammars, SPECS["object"], thinking())
    start = allowed(begin(grammars, SPECS["object"]))
    assert allowed(constraint) == start | {20}
    brace = min(start)
    assert constraint.permitted([20, 21, 50, brace, 20], [-1, 0, 1, -1, 3]) == [True, True, True, True, False]
    masks = constraint.masks([20, 21], [-1, 0])
    assert bits(masks[1]) == {21}
    assert end_of(byte_level) not in bits(masks[2]) and 50 in bits(masks[2])
    follow(constraint, [20, 21, 50, 30, 31, brace])
    assert constraint.problem is None


def test_an_open_mark_that_does_not_come_belongs_to_the_grammar(
    grammars: Grammars, byte_level: Tokenizer
) -> None:
    """Where the mark's first tokens are text of the grammar too."""
    ids = byte_level.encode("<think>", add_special=False)
    assert len(ids) > 2
    any_text = GrammarSpec("regex", "[<a-z ]+")
    constraint = begin(grammars, any_text, thinking(open_ids=tuple(ids)))
    follow(constraint, ids[:2])
    plain = begin(grammars, any_text)
    follow(plain, ids[:2])
    assert allowed(constraint) == allowed(plain) | {ids[2]}
    (other,) = byte_level.encode("q", add_special=False)
    follow(constraint, [*ids[:2], other])
    follow(plain, [*ids[:2], other])
    assert allowed(constraint) == allowed(plain)
    assert constraint.problem is None
    again = begin(grammars, any_text, thinking(open_ids=tuple(ids)))
    assert again.permitted([ids[0], end_of(byte_level)], [-1, 0]) == [True, True]


def test_a_forced_close_is_no_part_of_the_grammar(grammars: Grammars, byte_level: Tokenizer) -> None:
    limit = thinking(starts_open=True, close_ids=(40, 30, 31, 41), natural_ids=(30, 31))
    constraint = begin(grammars, SPECS["object"], limit)
    follow(constraint, [50, 51, 40, 30, 31, 41], forced=(2, 3, 4, 5))
    assert constraint.problem is None
    assert allowed(constraint) == allowed(begin(grammars, SPECS["object"]))


# -- remembering


def test_a_grammar_is_compiled_once(byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = make_grammars(byte_level)
    compiled: list[GrammarSpec] = []
    compile_one = grammars._compile
    monkeypatch.setattr(grammars, "_compile", lambda spec: compiled.append(spec) or compile_one(spec))
    for _ in range(3):
        grammars.check(SPECS["regex"])
        begin(grammars, GrammarSpec("regex", SPECS["regex"].text))
    assert compiled == [SPECS["regex"]]
    for i in range(MAX_KNOWN):
        grammars.check(GrammarSpec("regex", f"a{i}"))
    grammars.check(SPECS["regex"])
    assert compiled[-1] == SPECS["regex"] and len(compiled) == MAX_KNOWN + 2


def test_sequences_do_not_share_their_place(grammars: Grammars, byte_level: Tokenizer) -> None:
    first, second = begin(grammars, SPECS["regex"]), begin(grammars, SPECS["regex"])
    start = allowed(second)
    follow(first, byte_level.encode("no", add_special=False))
    assert allowed(second) == start != allowed(first)


def test_without_a_grammar_there_is_no_constraint(grammars: Grammars) -> None:
    assert grammars.begin(SamplingParams()) is None
