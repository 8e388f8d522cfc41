"""The tokens between the turns of a chat, taken from a model's own chat template.

A text of the target can be continued with a new question, and the target can invent the questions: it writes
a user's turn if its prompt ends where one begins. The tokens around the turns are found by rendering a chat
with known words, so nothing here depends on one model. questions.py has questions from a corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wager.errors import ModelError
from wager.text.chat import ChatTemplate
from wager.text.tokenizer import Tokenizer
from wager.train.texts import Text, TextOrder

_FIRST, _ANSWER, _SECOND = "FIRST-QUESTION", "ITS-ANSWER", "SECOND-QUESTION"
_LEAST_QUESTION = 4
"""Shorter inventions are dropped: they are rarely questions."""


@dataclass(frozen=True)
class ChatTurns:
    """The tokens before a first question, before its answer, and before a further question."""

    opening: list[int]
    answering: list[int]
    asking: list[int]
    """They begin with the end of the answer."""
    question_ends: frozenset[int]
    """Tokens that end a question; empty if a question's end cannot be recognised by one token."""
    answer_ends: frozenset[int]

    def invention(self, num_output: int, seed: int, answered: Text | None = None) -> TextOrder:
        """Returns an order for a question: the first of a chat, or one after an answered text.

        Precondition: `is_finished(answered)`.
        """
        prompt_ids = self.opening if answered is None else answered.token_ids[:-1] + self.asking
        return TextOrder(prompt_ids, num_output, 1.0, seed)

    def is_finished(self, text: Text) -> bool:
        """Whether the target ended this answer itself."""
        return bool(text.output_ids) and text.output_ids[-1] in self.answer_ends

    def question_prompt(self, order: TextOrder, output_ids: Sequence[int]) -> list[int] | None:
        """Returns the prompt for the answer to an invented question; None if the question has no end or is
        too short.
        """
        if not output_ids or output_ids[-1] not in self.question_ends or len(output_ids) <= _LEAST_QUESTION:
            return None
        question_ids = list(output_ids[:-1])
        # The target may have written what the template puts between a question and its end, such as a space.
        between = next(
            place for place, token_id in enumerate(self.answering) if token_id in self.question_ends
        )
        if between and question_ids[-between:] == self.answering[:between]:
            del question_ids[-between:]
        return order.prompt_ids + question_ids + self.answering


def read_turns(template: ChatTemplate, tokenizer: Tokenizer) -> ChatTurns:
    """Finds the tokens around the turns. Raises ModelError if the template does not show its messages."""
    messages = [
        {"role": "user", "content": _FIRST},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": _SECOND},
    ]
    whole = template.render(messages)
    parts = []
    for word in (_FIRST, _ANSWER, _SECOND):
        before, found, whole = whole.partition(word)
        if not found:
            raise ModelError("the chat template does not show the messages of a chat")
        parts.append(tokenizer.encode(before, add_special=False))
    opening, _, asking = parts
    answering = tokenizer.encode(whole, add_special=False)
    answer_ends = frozenset(tokenizer.eos_ids)
    marks = tokenizer.special_ids | answer_ends
    closing = frozenset([token_id for token_id in answering if token_id in marks][:1])
    return ChatTurns(opening, answering, asking, closing | answer_ends if closing else closing, answer_ends)
