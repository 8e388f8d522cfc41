"""Texts for training and evaluation: prompts from the corpus, continued by the target itself.

A text's prompt, temperature and seed are functions of (seed, number), so that writing can stop at any number
and continue from there. The caller provides the writer: this module does not know the engine. Written texts
are stored at once, with the settings they depend on.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wager.errors import InputError
from wager.train.corpus import Record
from wager.train.loop import differences
from wager.train.teacher import TargetFolder

_LEAST_PROMPT = 4
_TRIES = 200
_SAVE_EVERY_S = 30.0


class TextOrder(NamedTuple):
    """A text to write; it may end earlier, at the target's end token."""

    prompt_ids: list[int]
    num_output: int
    temperature: float
    seed: int


class Text(NamedTuple):
    """A prompt from the corpus, and the text that the target wrote after it."""

    prompt_ids: list[int]
    output_ids: list[int]
    temperature: float
    seed: int

    @property
    def token_ids(self) -> list[int]:
        return [*self.prompt_ids, *self.output_ids]


Writer = Callable[[Sequence[TextOrder]], Sequence[Sequence[int]]]
"""Continues every order and returns the outputs in the same order."""


@dataclass(frozen=True)
class TextOptions:
    """The lengths and temperatures of texts."""

    text_len: int
    max_prompt: int
    greedy_share: float = 1.0
    temperatures: tuple[float, float] = (0.5, 1.0)
    seed: int = 0


class PromptSource:
    """The texts to write, by number: the kinds alternate; chats are cut before their last answer."""

    def __init__(self, records: Sequence[Record], target: TargetFolder, options: TextOptions) -> None:
        self.target, self.options = target, options
        self._by_kind: dict[str, list[Record]] = {}
        for record in records:
            self._by_kind.setdefault(record.kind, []).append(record)
        self._kinds = sorted(self._by_kind)

    def at(self, number: int) -> TextOrder:
        """Returns the order of this number. Raises InputError if the corpus has no suitable prompt."""
        options = self.options
        chance = random.Random(f"{options.seed} {number}")
        prompt_ids = self._prompt(number, chance)
        is_greedy = chance.random() < options.greedy_share
        temperature = 0.0 if is_greedy else round(chance.uniform(*options.temperatures), 2)
        return TextOrder(prompt_ids, options.text_len - len(prompt_ids), temperature, chance.getrandbits(31))

    def _prompt(self, number: int, chance: random.Random) -> list[int]:
        for attempt in range(_TRIES):
            # Every attempt uses another kind, because all texts of one kind may be too short.
            own = self._by_kind[self._kinds[(number + attempt) % len(self._kinds)]]
            record = chance.choice(own)
            found = self._chat_prompt(record) if record.prompt else self._piece(record, chance)
            if found is not None:
                return found
        raise InputError(
            f"has no prompt of {_LEAST_PROMPT} to {self.options.max_prompt} tokens", field="corpus"
        )

    def _chat_prompt(self, record: Record) -> list[int] | None:
        """Returns a chat up to its last answer; None if it leaves too little room for one."""
        ids = self.target.tokenizer.encode(record.prompt, add_special=False)
        return ids if 0 < len(ids) <= self.options.text_len - _LEAST_PROMPT else None

    def _piece(self, record: Record, chance: random.Random) -> list[int] | None:
        """Returns a part of a text, in half of the cases its beginning; its length is log-uniform."""
        ids = self.target.tokenizer.encode(record.text, add_special=False)
        if len(ids) < _LEAST_PROMPT:
            return None
        low, high = math.log(_LEAST_PROMPT), math.log(self.options.max_prompt)
        size = min(round(math.exp(chance.uniform(low, high))), len(ids))
        start = 0 if chance.random() < 0.5 else chance.randrange(len(ids) - size + 1)
        begin = self.target.begin_id
        cut = ids[start : start + size]
        return cut if begin is None or cut[0] == begin else [begin, *cut[: self.options.max_prompt - 1]]


class TextStore:
    """A file of texts, with the settings that they depend on.

    A file with other settings or a damaged one is refused; with `replace` it is moved away.
    """

    def __init__(self, path: Path, settings: Mapping[str, object], *, replace: bool = False) -> None:
        self.path, self.settings, self.replace = path, dict(settings), replace

    def load(self) -> list[Text]:
        """Returns the stored texts; none if there is no file. Raises InputError."""
        if not self.path.exists():
            return []
        try:
            return self._load()
        except InputError:
            if self.replace:
                return []
            raise

    def _load(self) -> list[Text]:
        name = self.path.stem
        try:
            with np.load(self.path, allow_pickle=False) as found:
                stored = json.loads(str(found["settings"]))
                other = differences(stored, self.settings)
                texts = [] if other else _texts_of(found)
        except Exception as error:  # a damaged archive fails in many ways
            raise InputError(f"{self.path} is not a file of texts: {error}", field=name) from error
        if other:
            raise InputError(f"{self.path} has other settings: {other}", field=name)
        return texts

    def save(self, texts: Sequence[Text]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        waiting = self.path.with_suffix(".tmp")
        with waiting.open("wb") as file:
            np.savez(
                file,
                settings=np.array(json.dumps(self.settings)),
                tokens=np.array([i for text in texts for i in text.token_ids], np.int32),
                lengths=np.array([(len(one.prompt_ids), len(one.output_ids)) for one in texts], np.int32),
                temperatures=np.array([text.temperature for text in texts], np.float64),
                seeds=np.array([text.seed for text in texts], np.int64),
            )
        waiting.replace(self.path)


def _texts_of(found: Mapping[str, npt.NDArray[np.generic]]) -> list[Text]:
    tokens, start, texts = found["tokens"].tolist(), 0, []
    numbers = zip(found["temperatures"].tolist(), found["seeds"].tolist(), strict=True)
    for (num_prompt, num_output), (temperature, seed) in zip(found["lengths"].tolist(), numbers, strict=True):
        middle, stop = start + num_prompt, start + num_prompt + num_output
        texts.append(Text(tokens[start:middle], tokens[middle:stop], temperature, seed))
        start = stop
    if start != len(tokens):
        raise ValueError(f"{len(tokens)} tokens, {start} of them in texts")
    return texts


def write_texts(
    store: TextStore,
    orders: Callable[[int], TextOrder],
    count: int,
    write: Writer,
    batch: int,
    tell: Callable[[int, int], None] = lambda _done, _count: None,
) -> list[Text]:
    """Returns the first `count` texts: the stored ones, and others that are written now and stored even if
    interrupted.
    """
    texts = store.load()
    if len(texts) >= count:
        return texts[:count]
    tell(len(texts), count)
    saved_at = time.monotonic()
    try:
        while len(texts) < count:
            asked = [orders(number) for number in range(len(texts), min(count, len(texts) + batch))]
            outputs = write(asked)
            for order, output in zip(asked, outputs, strict=True):
                texts.append(Text(order.prompt_ids, list(output), order.temperature, order.seed))
            tell(len(texts), count)
            if time.monotonic() - saved_at > _SAVE_EVERY_S:
                store.save(texts)
                saved_at = time.monotonic()
    finally:
        store.save(texts)
    return texts


def pack_texts(texts: Sequence[Text], row_len: int, seed: int) -> npt.NDArray[np.int32]:
    """Returns [rows, row_len]: long texts alone, short ones concatenated; each row starts at the start of a
    text.

    The last text of a row is cut, because the beginning of a text is still text of the target.
    """
    rows = [text.token_ids[:row_len] for text in texts if len(text.token_ids) >= row_len]
    short = [text.token_ids for text in texts if len(text.token_ids) < row_len]
    random.Random(seed).shuffle(short)
    row: list[int] = []
    for ids in short:
        row += ids
        if len(row) >= row_len:
            rows.append(row[:row_len])
            row = []
    if not rows:
        raise InputError(f"{len(row)} tokens in all, less than one row of {row_len}", field="own_text")
    return np.array(rows, np.int32)
