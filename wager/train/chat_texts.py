"""The texts that a chat model writes for its drafter: answers, invented questions, and further turns.

First the target invents questions, then it answers these and those of the corpus, and finished chats get a
further question and answer. Every stage has a share of one time limit, and what a stage does not need is left
to the next ones. This module knows prompts and orders, not how the writer works.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from wager.errors import InputError
from wager.train.chat_turns import ChatTurns
from wager.train.questions import BEGINNINGS, Question
from wager.train.settings import ChatSettings, DrafterSettings
from wager.train.stream_writer import StreamWriter
from wager.train.texts import Text, TextOrder

INVENTED, FURTHER = "invented", "further turn"
"""Kinds of texts whose questions are the target's own."""
_LEAST_OUTPUT = 4
_LEAST_ROOM = 8
_SHARES = {"invented questions": 0.15, "answers": 0.8, "further questions": 0.88, "further answers": 1.0}
"""The share of the time limit that is over at the end of each stage."""
_TELL_EVERY_S = 10.0

Say = Callable[..., None]


class ChatText(NamedTuple):
    """A text with the kind of its question."""

    kind: str
    text: Text


class ChatTexts:
    """Writes the texts of one run."""

    def __init__(
        self, writer: StreamWriter, turns: ChatTurns, settings: DrafterSettings, chat: ChatSettings, say: Say
    ) -> None:
        self.writer, self.turns, self.settings, self.chat, self.say = writer, turns, settings, chat, say
        self._chance = random.Random(f"{settings.seed} texts")
        self._began = time.perf_counter()

    def held_out(self, questions: Sequence[Question]) -> list[Text]:
        """Returns the greedy answers to all questions, without a time limit."""
        tokens = self.settings.heldout_tokens
        orders = [self._order(question.prompt_ids, 0.0, tokens) for question in questions]
        return self._written("held-out answers", orders)

    def own_texts(self, questions: Sequence[Question]) -> list[ChatText]:
        """Returns answers to these questions and to invented ones, and further turns. Raises InputError if
        the time does not suffice for a single text.
        """
        self._began = time.perf_counter()
        asked = [(question.kind, question.prompt_ids) for question in questions]
        asked += [(INVENTED, ids) for ids in self._invented()]
        self._chance.shuffle(asked)
        texts = self._answered("answers", asked)
        further = [(FURTHER, ids) for ids in self._further(texts)]
        texts += self._answered("further answers", further)
        if not texts:
            raise InputError("leaves no time for a text", field="write_seconds")
        counts = Counter[str]()
        for kind, text in texts:
            counts[kind] += len(text.output_ids)
        self.say("tokens of the target by kind:", dict(sorted(counts.items())))
        return texts

    def _invented(self) -> list[list[int]]:
        """Returns the prompts of questions that the target invents as the first of a chat."""
        count = round(self.settings.own_text * self.chat.invented_share)
        if not self.turns.question_ends:
            self.say("no invented questions: the chat template does not end a turn with a special token")
            return []
        tokens = min(self.chat.question_tokens, self.settings.row_len - len(self.turns.opening))
        orders = [self.turns.invention(tokens, self._seed()) for _ in range(count)]
        return self._questions("invented questions", orders)

    def _further(self, texts: Sequence[ChatText]) -> list[list[int]]:
        """Returns the prompts of further questions in finished chats, which leave room for an answer."""
        if not self.turns.question_ends:
            return []
        row_len = self.settings.row_len
        finished = [
            text
            for kind, text in texts
            if kind != BEGINNINGS and self.turns.is_finished(text) and len(text.token_ids) < row_len * 2 // 3
        ]
        self._chance.shuffle(finished)
        count = round(self.settings.own_text * self.chat.follow_up_share)
        tokens = min(self.chat.question_tokens, row_len // 8)
        orders = [self.turns.invention(tokens, self._seed(), text) for text in finished[:count]]
        return self._questions("further questions", orders)

    def _questions(self, stage: str, orders: Sequence[TextOrder]) -> list[list[int]]:
        outputs = self._outputs(stage, orders, self.turns.question_ends)
        found = [
            self.turns.question_prompt(order, output) for order, output in zip(orders, outputs, strict=True)
        ]
        return [ids for ids in found if ids is not None]

    def _answered(self, stage: str, asked: Sequence[tuple[str, list[int]]]) -> list[ChatText]:
        """Returns the texts of a stage, some greedy and some sampled; texts that just began are dropped.

        No prompt is answered greedily twice.
        """
        settings, chance = self.settings, self._chance
        fitting = [(kind, ids) for kind, ids in asked if len(ids) <= settings.row_len - _LEAST_ROOM]
        orders, greedy = [], set[tuple[int, ...]]()
        for _, ids in fitting:
            is_greedy = chance.random() < settings.greedy_share and tuple(ids) not in greedy
            if is_greedy:
                greedy.add(tuple(ids))
            heat = round(chance.uniform(settings.min_temperature, settings.max_temperature), 2)
            orders.append(self._order(ids, 0.0 if is_greedy else heat, settings.row_len))
        texts = self._written(stage, orders)
        kinds = [kind for kind, _ in fitting]
        return [
            ChatText(kind, text)
            for kind, text in zip(kinds, texts, strict=True)
            if len(text.output_ids) >= _LEAST_OUTPUT
        ]

    def _order(self, prompt_ids: list[int], temperature: float, most: int) -> TextOrder:
        room = self.writer.decoder.length - len(prompt_ids)
        return TextOrder(prompt_ids, min(most, room), temperature, self._seed())

    def _seed(self) -> int:
        return self._chance.getrandbits(31)

    def _written(self, stage: str, orders: Sequence[TextOrder]) -> list[Text]:
        outputs = self._outputs(stage, orders, self.turns.answer_ends)
        return [
            Text(order.prompt_ids, output, order.temperature, order.seed)
            for order, output in zip(orders, outputs, strict=True)
        ]

    def _outputs(self, stage: str, orders: Sequence[TextOrder], end_ids: frozenset[int]) -> list[list[int]]:
        """Writes a stage until its share of the time is over, and reports its speed."""
        if not orders:
            return []
        began = told = time.perf_counter()

        def tell(texts: int, tokens: int) -> None:
            nonlocal told
            now = time.perf_counter()
            if now - told >= _TELL_EVERY_S or texts == len(orders):
                told = now
                rate = tokens / max(now - began, 1e-9)
                self.say(f"{stage}: {texts:,} of {len(orders):,}, {tokens:,} tokens, {rate:,.0f} tokens/s")

        limit = float("inf")
        if stage in _SHARES:
            limit = max(self._began + _SHARES[stage] * self.chat.write_seconds - began, 0.0)
        outputs = self.writer.write(orders, limit, end_ids, tell)
        num_tokens = sum(map(len, outputs))
        self.say(f"{stage}: {num_tokens:,} tokens in {time.perf_counter() - began:.0f} s")
        return outputs
