"""Reads text and returns packed token sequences.

It reads JSON lines (`{"text", "kind", ...}` or `{"messages", ...}`, plain or .xz) and plain text files,
splits off a part, tokenises, and packs documents into rows of one length. A kind may be repeated to give
scarce kinds more weight. This module knows no models; the given template renders chats.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers

from wager.errors import InputError, RequestError
from wager.text.chat import ChatTemplate

_LINES = {".jsonl", ".ndjson", ".json"}

TokenArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Record:
    """One document."""

    text: str
    kind: str = "text"
    licence: str = ""
    source: str = ""
    prompt: str = ""
    """For a chat: everything before the answer that a model would have to write."""
    is_whole: bool = True
    """Whether the text ends here; False if it continues in another record."""


def read_records(path: Path, template: ChatTemplate | None = None) -> Iterator[Record]:
    """Yields the documents of a file: JSON lines by its name, else one text; both may be compressed (.xz).

    `template` renders chats. Raises InputError that names file and line.
    """
    if not path.is_file():
        raise InputError(f"no such file: {path}", field="corpus")
    opener = lzma.open if path.suffix == ".xz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            if not _LINES & set(path.suffixes):
                yield Record(lines.read())
                return
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _record(line, f"{path}, line {number}", template)
    except (lzma.LZMAError, EOFError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}", field="corpus") from error


def _record(line: str, where: str, template: ChatTemplate | None) -> Record:
    try:
        data = json.loads(line)
    except ValueError:
        data = None
    text = data.get("text") if isinstance(data, dict) else None
    if isinstance(data, dict) and text is None and "messages" in data:
        rendered = _rendered(data, where, template)
    elif isinstance(text, str):
        rendered = Record(text)
    else:
        raise InputError(f"{where}: expected an object with a text or with messages", field="corpus")
    try:
        rendered.text.encode()
    except UnicodeEncodeError as error:  # JSON may contain half a character, which is not valid text
        raise InputError(f"{where}: not valid Unicode text", field="corpus") from error
    return replace(
        rendered,
        kind=str(data.get("kind") or data.get("category") or rendered.kind),
        licence=str(data.get("licence") or data.get("license") or ""),
        source=str(data.get("source", "")),
    )


def _rendered(data: dict[str, Any], where: str, template: ChatTemplate | None) -> Record:
    """Returns a chat as text, and as the prompt of its last answer."""
    if template is None:
        raise InputError(f"{where}: this is a chat, but the model has no chat template", field="corpus")
    messages, tools = data["messages"], data.get("tools")
    try:
        text = template.render(messages, tools=tools, add_generation_prompt=False)
        asked = messages[:-1] if messages[-1]["role"] == "assistant" else messages
        prompt = template.render(asked, tools=tools) if asked else ""
    except RequestError as error:
        raise InputError(f"{where}: {error}", field="corpus") from error
    return Record(text, "chat", prompt=prompt)


@dataclass(frozen=True)
class DataFile:
    """Contents of a corpus file, for the model card."""

    name: str
    mark: str
    """Fingerprint that distinguishes files with the same name."""
    num_records: int
    num_characters: int
    licences: dict[str, int]
    """Number of records by licence; the empty name stands for no licence."""


class Corpus(NamedTuple):
    """All records and files."""

    records: list[Record]
    files: list[DataFile]


def read_corpus(paths: Iterable[Path], template: ChatTemplate | None = None, limit: int = 0) -> Corpus:
    """Reads all documents of several files, or the first `limit` of each."""
    corpus = Corpus([], [])
    for path in paths:
        own = list(islice(read_records(path, template), limit or None))
        licences = dict(sorted(Counter(record.licence for record in own).items()))
        characters = sum(len(record.text) for record in own)
        corpus.files.append(DataFile(path.name, _mark(path), len(own), characters, licences))
        corpus.records.extend(own)
    if not any(record.text.strip() for record in corpus.records):
        raise InputError("holds no text", field="corpus")
    return corpus


def _mark(path: Path) -> str:
    """Returns a short fingerprint of a file, from its size and its first and last megabyte."""
    size = path.stat().st_size
    with path.open("rb") as file:
        found = hashlib.sha256(f"{size}".encode() + file.read(1 << 20))
        file.seek(max(size - (1 << 20), 0))
        found.update(file.read())
    return found.hexdigest()[:8]


def split_long_text(record: Record, most: int) -> Iterator[Record]:
    """Yields a text of more than `most` characters in parts, cut at line feeds if there are any; chats stay
    whole.
    """
    text, start = record.text, 0
    if record.prompt:
        most = len(text)
    while len(text) - start > most:
        stop = text.rfind("\n", start, start + most) + 1 or start + most
        yield replace(record, text=text[start:stop], is_whole=False)
        start = stop
    yield replace(record, text=text[start:])


class Split(NamedTuple):
    """Records for training, and records for evaluation."""

    training: list[Record]
    heldout: list[Record]


def split_heldout(records: Iterable[Record], share: float, seed: int) -> Split:
    """Holds out a share of every kind, chosen by the seed: at least one record in all, and never all of a
    kind.
    """
    by_kind: dict[str, list[Record]] = {}
    for record in records:
        if record.text.strip():
            by_kind.setdefault(record.kind, []).append(record)
    if not by_kind:
        raise InputError("holds no text", field="corpus")
    split = Split([], [])
    for kind, own in sorted(by_kind.items()):
        random.Random(f"{seed} {kind}").shuffle(own)
        count = min(max(1, round(share * len(own))), len(own) - 1)
        split.heldout.extend(own[:count])
        split.training.extend(own[count:])
    if not split.heldout:
        raise InputError("is too short for training on one part and evaluation on another", field="corpus")
    return split


@dataclass
class TokenCorpus:
    """Tokenised documents by kind."""

    documents: dict[str, list[TokenArray]] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(len(doc) for docs in self.documents.values() for doc in docs)

    def packed(
        self, length: int, seed: int, repeats: Mapping[str, float] | None = None
    ) -> npt.NDArray[np.int32]:
        """Returns [rows, length]: shuffled, concatenated documents; `repeats` is how often each kind
        occurs.
        """
        shuffler = random.Random(seed)
        chosen: list[TokenArray] = []
        for kind, docs in sorted(self.documents.items()):
            times = (repeats or {}).get(kind, 1.0)
            whole, part = int(times), times - int(times)
            chosen += docs * whole + shuffler.sample(docs, round(part * len(docs)))
        shuffler.shuffle(chosen)
        if not chosen:
            raise InputError("holds no text", field="corpus")
        stream = np.concatenate(chosen)
        rows = len(stream) // length
        if rows == 0:
            raise InputError(f"holds {len(stream)} tokens, less than one row of {length}", field="corpus")
        return stream[: rows * length].reshape(rows, length)


def tokenize(
    records: Iterable[Record],
    tokenizer: tokenizers.Tokenizer,
    end_id: int | None,
    batch: int = 512,
    begin_id: int | None = None,
) -> TokenCorpus:
    """Returns all documents as token ids; `begin_id` opens each one, and `end_id` closes whole ones."""
    corpus = TokenCorpus()
    waiting: list[Record] = []

    def flush() -> None:
        encoded = tokenizer.encode_batch([record.text for record in waiting], add_special_tokens=False)
        for record, one in zip(waiting, encoded, strict=True):
            ids = one.ids if end_id is None or not record.is_whole else [*one.ids, end_id]
            if begin_id is not None and ids[:1] != [begin_id]:
                ids = [begin_id, *ids]
            if ids:
                corpus.documents.setdefault(record.kind, []).append(np.array(ids, np.int32))
        waiting.clear()

    for record in records:
        waiting.append(record)
        if len(waiting) >= batch:
            flush()
    if waiting:
        flush()
    if corpus.num_tokens == 0:
        raise InputError("holds no text", field="corpus")
    return corpus
