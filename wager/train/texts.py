"""Texts to learn from and to judge by: beginnings out of the corpus, continued by the target itself.

A text's beginning, temperature and seed are functions of (seed, number), so that writing can end at any
number and go on from there. Who writes is handed in: this file does not know the engine. What is written is
stored at once, with what it depends on.
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
    """A text to be written; it may end earlier, at the target's own end."""

    prompt_ids: list[int]
    num_output: int
    temperature: float
    seed: int


class Text(NamedTuple):
    """A text: its beginning from the corpus, and what the target wrote behind it."""

    prompt_ids: list[int]
    output_ids: list[int]
    temperature: float
    seed: int

    @property
    def token_ids(self) -> list[int]:
        return [*self.prompt_ids, *self.output_ids]


Writer = Callable[[Sequence[TextOrder]], Sequence[Sequence[int]]]
"""Continues every order; outputs in the order asked for."""


@dataclass(frozen=True)
class Manner:
    """How texts begin and how freely they are written."""

    text_len: int
    max_prompt: int
    greedy_share: float = 1.0
    temperatures: tuple[float, float] = (0.5, 1.0)
    seed: int = 0


class Beginnings:
    """What to write, by number: the kinds in turn, chats from their last answer, other texts from a piece."""

    def __init__(self, records: Sequence[Record], target: TargetFolder, manner: Manner) -> None:
        self.target, self.manner = target, manner
        self._by_kind: dict[str, list[Record]] = {}
        for record in records:
            self._by_kind.setdefault(record.kind, []).append(record)
        self._kinds = sorted(self._by_kind)

    def at(self, number: int) -> TextOrder:
        """Raises InputError where the corpus has nothing to begin with."""
        manner = self.manner
        chance = random.Random(f"{manner.seed} {number}")
        prompt_ids = self._prompt(number, chance)
        is_greedy = chance.random() < manner.greedy_share
        temperature = 0.0 if is_greedy else round(chance.uniform(*manner.temperatures), 2)
        return TextOrder(prompt_ids, manner.text_len - len(prompt_ids), temperature, chance.getrandbits(31))

    def _prompt(self, number: int, chance: random.Random) -> list[int]:
        for attempt in range(_TRIES):
            # Another kind at every try: all texts of one may be too short.
            own = self._by_kind[self._kinds[(number + attempt) % len(self._kinds)]]
            record = chance.choice(own)
            found = self._asked(record) if record.prompt else self._piece(record, chance)
            if found is not None:
                return found
        raise InputError(
            f"holds no beginning of {_LEAST_PROMPT} to {self.manner.max_prompt} tokens", field="corpus"
        )

    def _asked(self, record: Record) -> list[int] | None:
        """A chat up to the answer; None where it leaves too little room for one."""
        ids = self.target.tokenizer.encode(record.prompt, add_special=False)
        return ids if 0 < len(ids) <= self.manner.text_len - _LEAST_PROMPT else None

    def _piece(self, record: Record, chance: random.Random) -> list[int] | None:
        """A piece of a text, every second time its beginning; short ones as often as long ones."""
        ids = self.target.tokenizer.encode(record.text, add_special=False)
        if len(ids) < _LEAST_PROMPT:
            return None
        low, high = math.log(_LEAST_PROMPT), math.log(self.manner.max_prompt)
        size = min(round(math.exp(chance.uniform(low, high))), len(ids))
        start = 0 if chance.random() < 0.5 else chance.randrange(len(ids) - size + 1)
        begin = self.target.begin_id
        cut = ids[start : start + size]
        return cut if begin is None or cut[0] == begin else [begin, *cut[: self.manner.max_prompt - 1]]


class TextStore:
    """A file of texts that knows what they depend on.

    Texts of other settings, or a damaged file, are refused; with `replace` they are put away.
    """

    def __init__(self, path: Path, settings: Mapping[str, object], *, replace: bool = False) -> None:
        self.path, self.settings, self.replace = path, dict(settings), replace

    def load(self) -> list[Text]:
        """What is stored; nothing where there is no file. Raises InputError."""
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
        except Exception as error:  # a torn archive fails in as many ways as it has parts
            raise InputError(f"{self.path} is not a file of texts: {error}", field=name) from error
        if other:
            raise InputError(f"{self.path} is of other settings: {other}", field=name)
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
    """The first `count` texts: those in the store, and the others written now, stored even if interrupted."""
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
    """[rows, row_len]: long texts alone, short ones end to end; each row starts where a text starts.

    The last text of a row is cut: a beginning without its end is still what the target wrote.
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
