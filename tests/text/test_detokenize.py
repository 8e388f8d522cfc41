"""Streaming equals the full decode, in any chunks, and never shows half a character."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wager.text.detokenize import REPLACEMENT, Detokenizer

EMOJI_AND_CJK = st.text(st.sampled_from("ab .'\n小読语😀👨‍👧🇨é\ufffd"), max_size=25)


class CountingTokenizer:
    """Passes on to a tokenizer and counts the ids it is asked to decode; `joins`: as one that joins bytes."""

    def __init__(self, tokenizer, joins) -> None:
        self._tokenizer = tokenizer
        self.special_ids, self.joins_bytes = tokenizer.special_ids, joins
        self.num_decoded = 0

    def visible(self, token_ids, skip_special=True, shown_ids=()):
        return self._tokenizer.visible(token_ids, skip_special, shown_ids)

    def decode_visible(self, token_ids):
        self.num_decoded += len(token_ids)
        return self._tokenizer.decode_visible(token_ids)

    def text_of(self, token_id):
        return self.decode_visible([token_id])


def split(items, cuts):
    """`items` in chunks that end at `cuts`."""
    edges = [0, *sorted(cut % (len(items) + 1) for cut in cuts), len(items)]
    return [items[a:b] for a, b in pairwise(edges)]


def stream(tokenizer, ids, **options):
    detokenizer = Detokenizer(tokenizer, **options)
    return "".join(detokenizer.feed([token_id]) for token_id in ids) + detokenizer.flush()


@settings(deadline=None, max_examples=150)
@given(text=st.one_of(st.text(max_size=25), EMOJI_AND_CJK), cuts=st.lists(st.integers(0, 100), max_size=6))
def test_chunks_of_a_text_join_to_the_text(byte_level, text, cuts):
    detokenizer = Detokenizer(byte_level)
    parts = [detokenizer.feed(chunk) for chunk in split(byte_level.encode(text), cuts)]
    assert "".join(parts) + detokenizer.flush() == text
    if REPLACEMENT not in text:
        assert REPLACEMENT not in "".join(parts)


@settings(deadline=None, max_examples=300)
@given(ids=st.lists(st.integers(0, 335), max_size=40), skip_special=st.booleans())
def test_any_ids_join_to_their_full_decode(byte_level, ids, skip_special):
    assert stream(byte_level, ids, skip_special=skip_special) == byte_level.decode(ids, skip_special)


@settings(deadline=None, max_examples=300)
@given(ids=st.lists(st.integers(0, 340), max_size=40), shown=st.lists(st.integers(0, 10), max_size=2))
def test_whole_characters_are_joined_as_they_are_decoded(byte_level, ids, shown):
    joined, decoded = (
        Detokenizer(CountingTokenizer(byte_level, joins), shown_ids=shown).feed_each(ids)
        for joins in (True, False)
    )
    assert joined == decoded
    assert byte_level.joins_bytes


@settings(deadline=None, max_examples=200)
@given(
    data=st.lists(
        st.sampled_from([0x80, 0xBF, 0xC3, 0xE4, 0xBD, 0xF0, 0x9F, 0x98, 0xFF]), min_size=9, max_size=40
    )
)
def test_bytes_that_are_no_characters_join_to_their_full_decode(byte_level, data):
    alphabet = byte_alphabet()
    ids = [byte_level.token_id(alphabet[byte]) for byte in data]
    assert stream(byte_level, ids) == byte_level.decode(ids)


def byte_alphabet():
    """How byte-level vocabularies spell each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(rest)}


@settings(deadline=None, max_examples=200)
@given(
    pieces=st.lists(
        st.sampled_from(["▁", "▁the", "▁a", "b", ".", "▁▁▁", "<s>", "小", "😀", "é"]), max_size=20
    ),
    num_prompt=st.integers(0, 20),
)
@example(pieces=["é", "小", "é"], num_prompt=2)
def test_prefix_spaces_and_byte_fallback_join_to_the_full_decode(byte_fallback, pieces, num_prompt):
    prompt, ids = (
        [token_id for piece in part for token_id in ids_of(byte_fallback, piece)]
        for part in (pieces[:num_prompt], pieces[num_prompt:])
    )
    told = byte_fallback.decode(prompt)
    assert told + stream(byte_fallback, ids, after=prompt) == byte_fallback.decode(prompt + ids)


def ids_of(tokenizer, piece):
    """A piece's own id, or the ids of its bytes."""
    own = tokenizer.token_id(piece)
    return [own] if own is not None else [tokenizer.token_id(f"<0x{byte:02X}>") for byte in piece.encode()]


@settings(deadline=None, max_examples=100)
@given(ids=st.lists(st.integers(1, 5), max_size=12))
def test_metaspace_joins_to_the_full_decode(metaspaced, ids):
    assert stream(metaspaced, ids) == metaspaced.decode(ids)


def test_a_stray_byte_does_not_take_back_a_character(byte_fallback):
    ids = [*ids_of(byte_fallback, "小"), byte_fallback.token_id("<0x80>"), *ids_of(byte_fallback, "▁a")]
    assert stream(byte_fallback, ids) == "小\ufffd a"


def test_a_first_token_keeps_its_space_behind_a_prompt(byte_fallback):
    prompt, ids = [*ids_of(byte_fallback, "▁a"), 0], ids_of(byte_fallback, "▁the")
    assert stream(byte_fallback, ids) == "the"
    assert stream(byte_fallback, ids, after=prompt) == " the"


def test_each_token_gets_the_text_it_finishes(byte_level):
    ids = [byte_level.token_id(byte_alphabet()[byte]) for byte in "a😀b".encode()]
    assert Detokenizer(byte_level).feed_each(ids) == ["a", "", "", "", "😀", "b"]


def test_flush_gives_out_an_unfinished_character_once(byte_level):
    detokenizer = Detokenizer(byte_level)
    ids = [byte_level.token_id(byte_alphabet()[byte]) for byte in "a😀".encode()[:-1]]
    assert detokenizer.feed(ids) == "a"
    assert (detokenizer.flush(), detokenizer.flush()) == ("\ufffd", "")


@pytest.mark.parametrize("data", [b"\x80", b"\xf0\x9f\x98", b"\xe4\xbd", b"a", "小".encode()])
@pytest.mark.parametrize("joins", [True, False])
def test_the_cost_per_token_does_not_grow(byte_level, data, joins):
    ids = [byte_level.token_id(byte_alphabet()[byte]) for byte in data * 200]
    counting = CountingTokenizer(byte_level, joins)
    assert stream(counting, ids) == byte_level.decode(ids)
    assert counting.num_decoded / len(ids) < 100


def test_special_tokens_that_are_asked_for_are_shown(byte_level):
    start, end = byte_level.token_id("<|start|>"), byte_level.token_id("<|end|>")
    ids = [start, *byte_level.encode("fox", add_special=False), end]
    assert Detokenizer(byte_level).feed(ids) == "fox"
    assert Detokenizer(byte_level, shown_ids=[end]).feed(ids) == "fox<|end|>"
