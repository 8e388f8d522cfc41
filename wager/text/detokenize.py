"""Turns token ids into text as they arrive; text that was returned is final and ends with a whole character.

Only the last few ids are decoded again for each new one, so the cost per token does not grow with the text.
This module does not know stop strings. The engine has one detokenizer per sequence and feeds it every token.
"""

from collections.abc import Iterable, Sequence

from wager.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
# An unfinished character is at most three bytes, and decoders show it as one to three replacement characters.
MAX_UNFINISHED = 3
# If more ids than this do not complete a character, they are not part of one.
MAX_FRESH = 8
# Number of earlier ids that the decoder receives before the first new one.
NUM_BEFORE = 4


class Detokenizer:
    """Text increments of one sequence; together they equal `tokenizer.decode` of all ids.

    `after` are the ids before the first one, usually the prompt. With them a first token keeps the space that
    it has in running text. Special tokens are omitted, except those in `shown_ids`. NOTE: If a byte-fallback
    vocabulary emits stray bytes directly after a whole character, a full decode would lose that character
    too; here it was already returned and stays.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special: bool = True,
        after: Sequence[int] = (),
        shown_ids: Iterable[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._shown_ids = frozenset(shown_ids)
        self._hidden_ids = tokenizer.special_ids - self._shown_ids if skip_special else frozenset()
        self._context = self._whole_tail(tokenizer.visible(after[-4 * NUM_BEFORE :], skip_special))
        self._context_text = self._decode(self._context)
        self._fresh: list[int] = []
        """Ids whose text is not final yet."""
        self._num_sent = 0

    def feed(self, token_ids: Iterable[int]) -> str:
        """Takes ids and returns the text that they complete, which may be empty."""
        return "".join(self.feed_each(token_ids))

    def feed_each(self, token_ids: Iterable[int]) -> list[str]:
        """Takes ids and returns the text that each of them completes."""
        return [self._feed_one(token_id) for token_id in token_ids]

    def flush(self) -> str:
        """Returns the text that was held back, at the end of the sequence."""
        text = self._fresh_text()[self._num_sent :]
        self._settle(len(self._fresh))
        return text

    def _feed_one(self, token_id: int) -> str:
        if self._tokenizer.joins_bytes and not self._fresh and token_id not in self._hidden_ids:
            text = self._tokenizer.text_of(token_id)
            if text and REPLACEMENT not in text:  # whole characters follow whole characters
                self._context, self._context_text = [token_id], text
                return text
        return self._feed_any(token_id)

    def _feed_any(self, token_id: int) -> str:
        shown = self._tokenizer.visible((token_id,), self._skip_special, self._shown_ids)
        if not shown:
            return ""
        self._fresh += shown
        text = self._fresh_text()
        num_ready = len(text) - num_unfinished(text)
        ready = text[self._num_sent : num_ready]
        self._num_sent = max(self._num_sent, num_ready)
        if num_ready == len(text):
            self._settle(len(self._fresh))
        elif len(self._fresh) > MAX_FRESH:
            self._settle_some(text)
        return ready

    def _whole_tail(self, token_ids: list[int]) -> list[int]:
        """Returns the last ids, starting at a whole character, because half a character would change the next
        bytes.
        """
        tails = (token_ids[-num:] for num in range(NUM_BEFORE, len(token_ids) + 1))
        whole = (tail for tail in tails if not self._decode(tail).startswith(REPLACEMENT))
        return next(whole, token_ids[-NUM_BEFORE:])

    def _fresh_text(self) -> str:
        """Returns the text of the fresh ids after their context."""
        whole = self._decode(self._context + self._fresh)
        if whole.startswith(self._context_text):
            return whole[len(self._context_text) :]
        return self._decode(self._fresh)

    def _settle(self, num_ids: int) -> None:
        """Makes the first fresh ids the context of the others. Precondition: their text has been returned."""
        if num_ids:
            self._context, self._fresh = self._fresh[:num_ids], self._fresh[num_ids:]
            self._context_text = self._text_of(self._context)
            self._num_sent = 0

    def _settle_some(self, text: str) -> None:
        """Limits the fresh ids: cuts them near the end, where both parts decode to the same text as the
        whole.
        """
        for num_kept in range(MAX_UNFINISHED, len(self._fresh)):
            cut = len(self._fresh) - num_kept
            left, right = self._decode(self._fresh[:cut]), self._decode(self._fresh[cut:])
            num_sent = self._num_sent - len(left)
            if left + right == text and num_sent >= 0:
                self._settle(cut)
                self._num_sent = num_sent
                return

    def _text_of(self, token_ids: list[int]) -> str:
        """Decodes ids; a single id comes from the tokenizer's cache."""
        return self._tokenizer.text_of(token_ids[0]) if len(token_ids) == 1 else self._decode(token_ids)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode_visible(token_ids) if token_ids else ""


def num_unfinished(text: str) -> int:
    """Returns the number of characters at the end that may still change."""
    num = 0
    while num < min(MAX_UNFINISHED, len(text)) and text[-1 - num] == REPLACEMENT:
        num += 1
    return num
