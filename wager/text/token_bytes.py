"""The bytes of a single token, for every way in which vocabularies write them.

Byte-level vocabularies write every byte as one printable character; others have `<0xE2>` for bytes without a
character of their own. A token may be a part of a character, so text is not enough. This module does not
stream; the server uses it for log-probabilities.
"""

from __future__ import annotations

import re

from wager.text.tokenizer import Tokenizer

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Bytes and text of single tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._letters = _byte_letters() if _is_byte_level(tokenizer) else {}

    def text(self, token_id: int) -> str:
        """Returns the text of one token; special tokens show their name."""
        return self._tokenizer.decode([token_id], skip_special=False)

    def bytes(self, token_id: int) -> bytes:
        spelt = self._tokenizer.token(token_id)
        if spelt is None:
            return b""
        found = _FALLBACK.fullmatch(spelt)
        if found:
            return bytes([int(found[1], 16)])
        if token_id not in self._tokenizer.special_ids and all(letter in self._letters for letter in spelt):
            return bytes(self._letters[letter] for letter in spelt)
        return self.text(token_id).encode()


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    return "ByteLevel" in str(tokenizer.backend.decoder)


def _byte_letters() -> dict[str, int]:
    """Returns the byte of each character of byte-level vocabularies: printable bytes are themselves, others
    from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return letters | {chr(256 + i): byte for i, byte in enumerate(rest)}
