"""`wager convert`: both directions, the vocabulary of the target, and what is refused."""

from pathlib import Path

import gguf
import pytest

from tests.gguf.drafters import SIZES, save_drafter_gguf
from tests.gguf.files import save_gguf
from tests.nn.tiny import save_drafter
from tests.text.test_gguf_tokenizer import TEMPLATE, byte_level, save_words
from wager.cli import main
from wager.gguf.header import read_header
from wager.nn.models.dflash import load_drafter
from wager.pairs import DEMO_FOLDER
from wager.text.chat import ChatTemplate
from wager.text.gguf_tokenizer import name_of_split
from wager.text.tokenizer import Tokenizer


def test_a_folder_becomes_a_file_and_a_folder_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_drafter(tmp_path / "drafter", **SIZES)
    assert (
        main.exit_status(["convert", str(tmp_path / "drafter"), str(tmp_path / "a.gguf"), "--form", "f16"])
        == 0
    )
    out, err = capsys.readouterr()
    assert "25 tensors" in out and "has no vocabulary" in err
    assert main.exit_status(["convert", str(tmp_path / "a.gguf"), str(tmp_path / "new" / "back")]) == 0
    assert [one.name for one in (tmp_path / "new").iterdir()] == ["back"]
    assert load_drafter(tmp_path / "new" / "back").spec.block_size == 8
    assert (tmp_path / "new" / "back" / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_the_vocabulary_is_copied_from_the_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = save_words(
        tmp_path / "t.gguf",
        byte_level("qwen2"),
        "gpt2",
        "qwen2",
        add_chat_template=TEMPLATE,
        add_add_bos_token=False,
    )
    size = len(read_header(target).metadata["tokenizer.ggml.tokens"])
    save_drafter(tmp_path / "drafter", **SIZES, vocab_size=size)
    command = ["convert", str(tmp_path / "drafter"), str(tmp_path / "a.gguf"), "--target", str(target)]
    assert main.exit_status(command) == 0
    own = {name: one.contents() for name, one in gguf.GGUFReader(tmp_path / "a.gguf").fields.items()}
    theirs = {name: one.contents() for name, one in gguf.GGUFReader(target).fields.items()}
    words = {name: value for name, value in theirs.items() if name.startswith("tokenizer.")}
    assert words and {name: own[name] for name in words} == words
    assert own["tokenizer.ggml.mask_token_id"] == 96
    assert "vocabulary" not in capsys.readouterr().err


def test_the_vocabulary_of_a_folder_is_written(tmp_path: Path) -> None:
    demo = DEMO_FOLDER / "target"
    command = ["convert", "demo/drafter", str(tmp_path / "a.gguf"), "--target", "demo"]
    assert main.exit_status(command) == 0
    found, wanted = Tokenizer.from_folder(tmp_path / "a.gguf"), Tokenizer.from_folder(demo)
    for text in ("The fox, 12345 it's naïve 日本\n\n", "<|user|>Hi<|end|><think>", "def f(x):\n    return x"):
        assert found.encode(text) == wanted.encode(text)
    template = ChatTemplate.from_folder(tmp_path / "a.gguf")
    own = ChatTemplate.from_folder(demo)
    assert template is not None and own is not None and template.sources == own.sources
    fields = {name: one.contents() for name, one in gguf.GGUFReader(tmp_path / "a.gguf").fields.items()}
    assert fields["tokenizer.ggml.pre"] == "smollm" and fields["tokenizer.ggml.mask_token_id"] == 8


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "llama-bpe"])
def test_a_split_keeps_its_name(pre: str) -> None:
    assert name_of_split(byte_level(pre)) == pre


def copy_words(path: Path, writer: object) -> None:
    """Adds the vocabulary of another file."""
    kinds = {str: "add_string", bool: "add_bool", int: "add_uint32", list: "add_array"}
    for name, value in read_header(path).metadata.items():
        if name.startswith("tokenizer."):
            getattr(writer, kinds[type(value)])(name, value)


def test_a_target_brings_its_tokenizer(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    made = byte_level("smollm")

    def change(writer: object) -> None:
        other = tmp_path / "words.gguf"
        save_words(other, made, "gpt2", "smollm", add_chat_template=TEMPLATE, add_add_bos_token=False)
        copy_words(other, writer)

    save_gguf(tmp_path / "a.gguf", "llama", "Q4_0", change, vocab_size=made.get_vocab_size() + 1)
    assert main.exit_status(["convert", str(tmp_path / "a.gguf"), str(tmp_path / "out")]) == 0
    file, folder = (Tokenizer.from_folder(tmp_path / name) for name in ("a.gguf", "out"))
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in ("The fox, 12345 it's", "<|im_start|>Hi<|im_end|>"):
        assert file.encode(text) == folder.encode(text) == theirs.encode(text)
    assert file.eos_ids == folder.eos_ids == (2, 0)
    chat = [{"role": "user", "content": "Hi"}]
    templates = [ChatTemplate.from_folder(tmp_path / name) for name in ("a.gguf", "out")]
    assert all(one is not None for one in templates)
    assert len({one.render(chat) for one in templates if one is not None}) == 1


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_drafter(tmp_path / "drafter", **SIZES)
    save_drafter_gguf(tmp_path / "a.gguf")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("", encoding="utf-8")
    drafter, file = str(tmp_path / "drafter"), str(tmp_path / "a.gguf")
    for command, words in (
        ([drafter, file], "exists already"),
        ([drafter, str(tmp_path / "b.bin")], "must end in .gguf"),
        (
            [drafter, str(tmp_path / "b.gguf"), "--form", "q4_0"],
            "form = 'q4_0': expected one of bf16, f16, q8_0",
        ),
        ([drafter, str(tmp_path / "b.gguf"), "--target", drafter], "has no vocabulary that could be copied"),
        ([drafter, str(tmp_path / "b.gguf"), "--target", file], "has no vocabulary that could be copied"),
        ([file, str(tmp_path / "full")], "exists already and is not an empty folder"),
        ([file, str(tmp_path / "out"), "--form", "bf16"], "form: applies to GGUF files that are written"),
        ([str(tmp_path / "nowhere"), file], "no such model folder or GGUF file"),
    ):
        assert main.exit_status(["convert", *command]) == 2
        assert words in capsys.readouterr().err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a-folder", "a.gguf", "drafter", "full"]


def test_a_failed_conversion_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_drafter_gguf(tmp_path / "a.gguf")
    whole = (tmp_path / "a.gguf").read_bytes()
    entry = read_header(tmp_path / "a.gguf").tensors["fc.weight"]
    (tmp_path / "a.gguf").write_bytes(whole[: entry.start + 8])
    assert main.exit_status(["convert", str(tmp_path / "a.gguf"), str(tmp_path / "out")]) == 2
    assert "truncated" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "user"),
    [
        (["train", "--model", "{}", "--corpus", "{}", "--out", "{}-out"], "training"),
        (["grow", "{}-out", "--model", "{}"], "growing"),
        (
            ["bench", "--model", "{}", "--peers", "transformers", "--limit", "1", "--max-tokens", "2"],
            "transformers",
        ),
    ],
)
def test_what_reads_folders_only_names_the_conversion(
    command: list[str], user: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "words.gguf"
    made = byte_level("smollm")

    def change(writer: object) -> None:
        save_words(tmp_path / "w.gguf", made, "gpt2", "smollm", add_add_bos_token=False)
        copy_words(tmp_path / "w.gguf", writer)

    save_gguf(path, "llama", "Q4_0", change, vocab_size=made.get_vocab_size() + 1)
    assert main.exit_status([word.format(path) for word in command]) == 2
    assert f"{user} needs a model folder: `wager convert {path} FOLDER` makes one" in capsys.readouterr().err
