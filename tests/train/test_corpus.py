"""Reading documents, counting kinds, packing rows: nothing lost, nothing invented, faults named."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from wager.errors import InputError
from wager.train.corpus import Record, TokenCorpus, read_records, tokenize

END = 9


def words() -> tokenizers.Tokenizer:
    vocab = {word: i for i, word in enumerate("abcde")}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.mark.parametrize("packed", [False, True])
def test_json_lines_are_read_with_their_kinds(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("corpus.jsonl.xz" if packed else "corpus.jsonl")
    lines = [
        {"text": "a b", "kind": "code", "licence": "MIT", "source": "here"},
        {"text": "c", "category": "chat"},
        {"text": "d"},
    ]
    text = "\n\n".join(json.dumps(line) for line in lines)
    opener = lzma.open if packed else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(text)
    assert list(read_records(path)) == [
        Record("a b", "code", "MIT", "here"),
        Record("c", "chat"),
        Record("d", "text"),
    ]


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("first\nsecond", encoding="utf-8")
    assert list(read_records(path)) == [Record("first\nsecond")]


@pytest.mark.parametrize("line", ["{", "[1]", '{"kind": "code"}', '{"text": 3}'])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "fine"}\n' + line, encoding="utf-8")
    with pytest.raises(InputError, match=r"corpus\.jsonl, line 2"):
        list(read_records(path))


def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        list(read_records(tmp_path / "nothing.jsonl"))
    broken = tmp_path / "broken.jsonl.xz"
    broken.write_bytes(b"not xz at all")
    with pytest.raises(InputError, match="cannot be read"):
        list(read_records(broken))
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"text": "é"}'.encode("latin-1"))
    with pytest.raises(InputError, match="cannot be read"):
        list(read_records(latin))


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_documents_are_closed_and_sorted_by_kind(batch: int) -> None:
    records = [Record("a b", "x"), Record("c", "y"), Record("d e", "x")]
    corpus = tokenize(records, words(), END, batch)
    found = {kind: [doc.tolist() for doc in docs] for kind, docs in corpus.documents.items()}
    assert found == {"x": [[0, 1, END], [3, 4, END]], "y": [[2, END]]}
    assert corpus.num_tokens == 8


def numbered(**counts: int) -> TokenCorpus:
    """Documents of four equal tokens, each document with a number of its own."""
    number, documents = 0, {}
    for kind, count in counts.items():
        documents[kind] = [np.full(4, number + i, np.int32) for i in range(count)]
        number += count
    return TokenCorpus(documents)


def test_packing_keeps_every_document_whole() -> None:
    rows = numbered(x=6, y=4).packed(8, seed=1)
    assert rows.shape == (5, 8)
    assert sorted(rows.flatten().tolist()) == sorted(list(range(10)) * 4)
    assert all(len(set(piece)) == 1 for piece in rows.reshape(-1, 4).tolist())


def test_packing_is_a_function_of_the_seed() -> None:
    corpus = numbered(x=30)
    assert np.array_equal(corpus.packed(8, seed=1), corpus.packed(8, seed=1))
    assert not np.array_equal(corpus.packed(8, seed=1), corpus.packed(8, seed=2))


def test_kinds_are_repeated_as_asked() -> None:
    rows = numbered(x=10, y=10, z=10).packed(4, 0, {"x": 2.5, "y": 0.0})
    counts = np.bincount(rows[:, 0], minlength=30)
    assert sorted(counts[:10]) == [2] * 5 + [3] * 5
    assert counts[10:20].sum() == 0 and (counts[20:] == 1).all()


def test_what_does_not_fill_a_row_is_left_out() -> None:
    assert numbered(x=5).packed(6, seed=0).shape == (3, 6)


def test_too_little_text_is_refused() -> None:
    with pytest.raises(InputError, match="no text"):
        tokenize([Record("")], words(), None)
    with pytest.raises(InputError, match="no text"):
        TokenCorpus().packed(4, 0)
    with pytest.raises(InputError, match="holds 8 tokens, less than one row of 9"):
        numbered(x=2).packed(9, 0)
