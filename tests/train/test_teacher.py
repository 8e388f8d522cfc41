"""A target as training sees it: which token masks, what a teacher in few bits gives, what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers import models, processors

from tests.engine.conftest import add_tokenizer
from tests.nn.tiny import SHAPE, save_target
from wager.errors import ConfigError, InputError, ModelError
from wager.text.chat import ChatTemplate
from wager.text.tokenizer import Tokenizer
from wager.train.teacher import TargetFolder, load_teacher, open_target, pick_mask_token

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetFolder:
    folder = tmp_path_factory.mktemp("models") / "some-model"
    save_target(folder, "llama", vocab_size=360)
    add_tokenizer(folder)
    return open_target(folder)


def with_words(target: TargetFolder, words: list[str], specials: list[str], **named: str) -> TargetFolder:
    """The target with a tokenizer of exactly as many words as it has scores."""
    vocab = {word: i for i, word in enumerate([*specials, *words])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=words[0]))
    backend.add_special_tokens(specials)
    return replace(
        target,
        tokenizer=Tokenizer(backend, named, [0]),
        spec=replace(target.spec, vocab_size=len(vocab)),
    )


def test_the_mask_token_is_the_best_there_is(target: TargetFolder) -> None:
    assert pick_mask_token(target, 17) == (17, "asked for")
    unused = target.tokenizer.vocab_size
    assert unused < 360
    assert pick_mask_token(target) == (unused, "an id that the tokenizer does not use")
    named = with_words(target, ["a"], ["<end>", "<m>"], mask_token="<m>")
    assert pick_mask_token(named) == (1, "the tokenizer's mask token")
    padded = with_words(target, ["a", "b"], ["<end>", "<unk>", "<PAD>", "<|reserved_3|>"])
    assert pick_mask_token(padded).token_id == 3 and "<|reserved_3|>" in pick_mask_token(padded).reason
    assert pick_mask_token(with_words(target, ["a"], ["<end>", "<unk>", "<PAD>"])).token_id == 2
    chat = with_words(target, ["a"], ["<end>", "<user>", "<repo>", "<file>"])
    spare = pick_mask_token(replace(chat, template=ChatTemplate("{{ '<user>' + messages[0]['content'] }}")))
    assert spare == (2, "the special token <repo>, which the chat template does not use")
    with pytest.raises(InputError, match="has no mask token"):
        pick_mask_token(chat)


def test_no_mask_token_at_all_names_the_flag(target: TargetFolder) -> None:
    bare = with_words(target, ["a", "b"], ["<end>", "<s>"], bos_token="<s>")
    with pytest.raises(InputError, match=r"tokenizer: has no mask token and no unused id.*--mask-token-id"):
        pick_mask_token(bare)
    assert pick_mask_token(bare, 2).token_id == 2
    with pytest.raises(ConfigError, match="mask_token_id = 4: expected an id below the target's 4"):
        pick_mask_token(bare, 4)


def test_what_stands_around_a_text(target: TargetFolder) -> None:
    assert target.begin_id is None and target.end_id == target.tokenizer.token_id("<|end|>")
    begun = with_words(target, ["a"], ["<end>", "<s>"], bos_token="<s>")
    begun.tokenizer.backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    assert begun.begin_id == 1 and begun.end_id == 0
    begun.tokenizer.backend.post_processor = processors.TemplateProcessing(
        single="$A <end>", special_tokens=[("<end>", 0)]
    )
    assert begun.begin_id is None


def test_a_mark_tells_targets_apart(target: TargetFolder, tmp_path: Path) -> None:
    assert target.mark.startswith("llama 3x48 ") and target.name == "some-model"
    save_target(tmp_path, "llama", vocab_size=361)
    add_tokenizer(tmp_path)
    other = open_target(tmp_path, "demo")
    assert other.name == "demo" and other.mark != target.mark
    assert open_target(target.folder).mark == target.mark


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_the_drafter_sees_wide_numbers(target: TargetFolder, dtype: str) -> None:
    teacher = load_teacher(target, (0, 2), CPU, dtype)
    stored = torch.float32 if dtype == "auto" else torch.bfloat16
    assert next(teacher.model.parameters()).dtype == stored
    tokens = torch.arange(12).view(2, 6)
    features, hidden = teacher.observe(tokens)
    assert features.shape == (2, 6, 2 * SHAPE["hidden_size"]) and features.dtype == torch.float32
    assert torch.equal(teacher.head(hidden), teacher.model(tokens).logits) and not features.requires_grad
    embedded = teacher.embed(tokens)
    assert embedded.dtype == torch.float32
    assert teacher.head(embedded).shape == (2, 6, 360)


def test_what_cannot_be_trained_for_is_refused(target: TargetFolder, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        open_target(tmp_path / "nothing")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}), encoding="utf-8")
    with pytest.raises(ModelError, match="model_type 'gpt2' is not supported"):
        open_target(tmp_path)
    broken = replace(target, folder=tmp_path)
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_teacher(broken, (0,), CPU)
