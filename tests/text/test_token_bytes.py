"""The bytes of tokens, put together, are the bytes of the text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.conftest import train_byte_level
from wager.text.token_bytes import TokenBytes
from wager.text.tokenizer import Tokenizer

BYTE_LEVEL = Tokenizer(train_byte_level(), {"eos_token": "<|end|>"})


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=30))
def test_bytes_join_to_the_text(text: str) -> None:
    known = TokenBytes(BYTE_LEVEL)
    ids = BYTE_LEVEL.encode(text, add_special=False)
    assert b"".join(map(known.bytes, ids)) == text.encode()


def test_special_tokens_and_unknown_ids() -> None:
    known = TokenBytes(BYTE_LEVEL)
    end = BYTE_LEVEL.token_id("<|end|>")
    assert end is not None
    assert known.bytes(end) == b"<|end|>" and known.text(end) == "<|end|>"
    assert known.bytes(10**6) == b"" and known.text(10**6) == ""


@pytest.mark.parametrize("byte", [0x00, 0x41, 0xE2, 0xFF])
def test_bytes_without_a_character(byte_fallback: Tokenizer, byte: int) -> None:
    token_id = byte_fallback.token_id(f"<0x{byte:02X}>")
    assert token_id is not None
    assert TokenBytes(byte_fallback).bytes(token_id) == bytes([byte])
