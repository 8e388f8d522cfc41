"""Reading documents, counting kinds, packing rows: nothing lost, nothing invented, faults named."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from wager.errors import InputError
from wager.text.chat import ChatTemplate
from wager.train.corpus import (
    Record,
    TokenCorpus,
    read_corpus,
    read_records,
    split_heldout,
    split_long_text,
    tokenize,
)

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


@pytest.mark.parametrize("name", ["book.txt", "page.md", "code.py", "book.txt.xz"])
def test_a_text_file_is_one_document(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    opener = lzma.open if name.endswith(".xz") else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.write("first\nsecond")
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
    latin.rename(tmp_path / "latin.txt")
    with pytest.raises(InputError, match="cannot be read"):
        list(read_records(tmp_path / "latin.txt"))
    half = tmp_path / "half.jsonl"
    half.write_text('{"text": "\\ud83d"}', encoding="utf-8")
    with pytest.raises(InputError, match="line 1: not valid Unicode"):
        list(read_records(half))


TEMPLATE = ChatTemplate(
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_a_chat_is_rendered_whole_and_up_to_its_answer(tmp_path: Path) -> None:
    asked, answered = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}
    path = tmp_path / "chats.jsonl"
    chats = [[asked, answered], [asked], [answered]]
    lines = [json.dumps({"messages": chat, "license": "MIT"}) for chat in chats]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert list(read_records(path, TEMPLATE)) == [
        Record("[user]hi[assistant]yes", "chat", "MIT", prompt="[user]hi[assistant]"),
        Record("[user]hi", "chat", "MIT", prompt="[user]hi[assistant]"),
        Record("[assistant]yes", "chat", "MIT"),
    ]
    with pytest.raises(InputError, match=r"chats\.jsonl, line 1: this is a chat, but the model has no"):
        list(read_records(path))


@pytest.mark.parametrize("messages", ["hi", [], [{"content": "hi"}], [3]])
def test_a_malformed_chat_is_named(tmp_path: Path, messages: object) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": messages}), encoding="utf-8")
    with pytest.raises(InputError, match=r"chats\.jsonl, line 1: messages"):
        list(read_records(path, TEMPLATE))


def test_files_are_read_together_with_their_licences(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.txt"
    lines = [{"text": "a b", "licence": "MIT"}, {"text": "c", "licence": "MIT"}, {"text": "d"}]
    first.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    second.write_text("e e", encoding="utf-8")
    corpus = read_corpus([first, second])
    assert [record.text for record in corpus.records] == ["a b", "c", "d", "e e"]
    assert [(file.name, file.num_records, file.num_characters) for file in corpus.files] == [
        ("a.jsonl", 3, 5),
        ("b.txt", 1, 3),
    ]
    assert corpus.files[0].licences == {"": 1, "MIT": 2}
    marks = [file.mark for file in corpus.files]
    first.write_text("\n".join(json.dumps(line) for line in lines[::-1]), encoding="utf-8")
    again = read_corpus([first, second], limit=1)
    assert [record.text for record in again.records] == ["d", "e e"]
    assert again.files[0].mark != marks[0] and again.files[1].mark == marks[1]
    second.write_text(" \n", encoding="utf-8")
    with pytest.raises(InputError, match="corpus: holds no text"):
        read_corpus([second])


def test_long_texts_are_cut_at_line_ends() -> None:
    text = "one\ntwo two\n" + "x" * 25 + "\nend"
    found = list(split_long_text(Record(text, "k", "MIT"), 10))
    assert "".join(piece.text for piece in found) == text
    assert [piece.text for piece in found][:3] == ["one\n", "two two\n", "x" * 10]
    assert all(len(piece.text) <= 10 and piece.licence == "MIT" for piece in found)
    assert [piece.is_whole for piece in found] == [False] * (len(found) - 1) + [True]
    chat = Record(text, prompt="p")
    assert list(split_long_text(chat, 10)) == [chat]


@given(text=st.text(alphabet="ab \n", max_size=80), most=st.integers(1, 20))
@settings(deadline=None, max_examples=100)
def test_pieces_are_the_text(text: str, most: int) -> None:
    found = list(split_long_text(Record(text), most))
    assert "".join(piece.text for piece in found) == text
    assert all(len(piece.text) <= most for piece in found)
    assert all(piece.text for piece in found) or not text


def test_a_part_of_every_kind_is_held_out() -> None:
    records = [Record(f"{kind} {i}", kind) for kind, count in (("x", 40), ("y", 3)) for i in range(count)]
    split = split_heldout([*records, Record("  ", "z")], 0.1, seed=1)
    assert sorted(record.kind for record in split.heldout) == ["x"] * 4 + ["y"]
    assert sorted([*split.training, *split.heldout], key=str) == sorted(records, key=str)
    assert split_heldout(records, 0.1, seed=1) == split
    assert split_heldout(records, 0.1, seed=2).heldout != split.heldout
    alone = split_heldout([*records, Record("only", "w")], 0.1, seed=1)
    assert Record("only", "w") in alone.training
    with pytest.raises(InputError, match="too short for training"):
        split_heldout(records[:1], 0.5, 1)
    with pytest.raises(InputError, match="holds no text"):
        split_heldout([Record("")], 0.5, 1)


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_documents_are_closed_and_sorted_by_kind(batch: int) -> None:
    records = [Record("a b", "x"), Record("c", "y"), Record("d e", "x")]
    corpus = tokenize(records, words(), END, batch)
    found = {kind: [doc.tolist() for doc in docs] for kind, docs in corpus.documents.items()}
    assert found == {"x": [[0, 1, END], [3, 4, END]], "y": [[2, END]]}
    assert corpus.num_tokens == 8
    begun = tokenize([Record("a b"), Record("c", is_whole=False)], words(), END, begin_id=0)
    assert [doc.tolist() for doc in begun.documents["text"]] == [[0, 1, END], [0, 2]]


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
