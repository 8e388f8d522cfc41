"""Text in, packed token sequences out.

Reads JSON lines (`{"kind", "text", ...}`, plain or .xz) and plain text files; tokenises, and packs documents
end to end into rows of one length. A kind may be repeated, so that scarce ones count. Knows no models.
"""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers

from wager.errors import InputError

TokenArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Record:
    """One document."""

    text: str
    kind: str = "text"
    licence: str = ""
    source: str = ""


def read_records(path: Path) -> Iterator[Record]:
    """Documents of a .jsonl, .jsonl.xz or .txt file. Raises InputError naming file and line."""
    if not path.is_file():
        raise InputError(f"no such file: {path}", field="corpus")
    if path.suffix == ".txt":
        yield Record(path.read_text(encoding="utf-8"))
        return
    opener = lzma.open if path.suffix == ".xz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _record(line, path, number)
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}", field="corpus") from error


def _record(line: str, path: Path, number: int) -> Record:
    try:
        data = json.loads(line)
        text = data["text"] if isinstance(data, dict) else None
    except (ValueError, KeyError):
        text = None
    if not isinstance(text, str):
        raise InputError(f"{path}, line {number}: expected an object with a text", field="corpus")
    return Record(
        text,
        str(data.get("kind") or data.get("category") or "text"),
        str(data.get("licence", "")),
        str(data.get("source", "")),
    )


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
        """[rows, length]: documents shuffled and laid end to end; `repeats` says how often a kind comes."""
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
    records: Iterable[Record], tokenizer: tokenizers.Tokenizer, end_id: int | None, batch: int = 512
) -> TokenCorpus:
    """All documents as token ids, each closed by `end_id`."""
    corpus = TokenCorpus()
    waiting: list[Record] = []

    def flush() -> None:
        encoded = tokenizer.encode_batch([record.text for record in waiting], add_special_tokens=False)
        for record, one in zip(waiting, encoded, strict=True):
            ids = one.ids if end_id is None else [*one.ids, end_id]
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
