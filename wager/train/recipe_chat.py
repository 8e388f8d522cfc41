"""The recipe of a block drafter for a chat model: questions, the target's own texts, training, figures.

    python -m wager.train.recipe_chat --model FOLDER --corpus corpus.jsonl.xz --out build/drafter

Writing and training have time limits. It is meant for one GPU and some minutes; `--tiny` runs all stages at a
small size on a CPU. The texts are stored, so the same command continues after them, and after the last
checkpoint. All settings of `wager train` are flags; the defaults are those of SmolLM2's drafter.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wager.config import settings_of
from wager.errors import ConfigError, InputError
from wager.nn.models.dflash_net import DFlashNet
from wager.nn.models.hf_config import pick_dtype
from wager.train.card import Card, card_text
from wager.train.chat_texts import ChatTexts
from wager.train.chat_turns import read_turns
from wager.train.corpus import Corpus, Record, read_corpus, split_heldout
from wager.train.drafter import block_loss, build_drafter, drafter_config, save_drafter
from wager.train.drafter_quality import Measured, measure
from wager.train.drafter_training import (
    as_saved,
    block_sampling_of,
    drafter_shape,
    pick_device,
    suggest_no_resume,
    train_config,
)
from wager.train.loop import Trainer, read_checkpoint
from wager.train.outfolder import OutFolder
from wager.train.questions import Question, QuestionOptions, QuestionSource, mixed
from wager.train.recipe_output import num_parameters, run_recipe, say, show
from wager.train.settings import ChatSettings, DrafterSettings, lasting
from wager.train.slot_decoder import load_slot_decoder
from wager.train.stream_writer import StreamWriter, release_memory
from wager.train.teacher import FolderTeacher, TargetFolder, load_teacher, open_target, pick_mask_token
from wager.train.text_batches import BatchOptions, TextBatches, TextRows
from wager.train.texts import Text, TextStore

DEFAULTS: dict[str, Any] = {
    "layers": 4,
    "block_size": 12,
    "shortest_block": 3,
    "one_known_share": 0.85,
    "anchors": 32,
    "fade": 5.0,
    "own_text": 60_000,
    "greedy_share": 0.5,
    "min_temperature": 0.4,
    "max_prompt": 420,
    "row_len": 768,
    "heldout_share": 0.02,
    "heldout_texts": 24,
    "heldout_tokens": 256,
    "updates": 1_000_000,
    "batch_rows": 32,
    "warm_up": 100,
    "report_every": 200,
    "evaluate_every": 1500,
    "checkpoint_every": 1000,
    "write_rows": 4096,
}
TINY: dict[str, Any] = {
    "layers": 1,
    "block_size": 4,
    "anchors": 4,
    "own_text": 24,
    "max_prompt": 256,
    "row_len": 384,
    "heldout_share": 0.2,
    "heldout_texts": 2,
    "heldout_tokens": 12,
    "updates": 6,
    "batch_rows": 4,
    "warm_up": 2,
    "report_every": 2,
    "evaluate_every": 3,
    "checkpoint_every": 5,
    "write_rows": 8,
    "question_tokens": 16,
    "long_every": 3,
}
_TEXT_SETTINGS = (
    "own_text",
    "greedy_share",
    "min_temperature",
    "max_temperature",
    "max_prompt",
    "row_len",
    "documents",
    "heldout_share",
    "heldout_texts",
    "heldout_tokens",
    "invented_share",
    "follow_up_share",
    "question_tokens",
    "write_seconds",
    "seed",
)
_QUICK_TEXTS = 4
"""Number of held-out texts of each kind during training."""


@dataclass(frozen=True)
class RecipeOptions:
    """What the command line gives."""

    model: Path
    corpus: list[Path]
    out: Path
    settings: DrafterSettings
    chat: ChatSettings
    resume: bool = True


class Texts(NamedTuple):
    """The texts for training, and the held-out answers by kind."""

    own: list[Text]
    heldout: dict[str, list[Text]]


class ChatRecipe:
    """The stages over one output folder."""

    def __init__(self, options: RecipeOptions) -> None:
        """Checks the arguments before any work begins. Raises ConfigError, InputError or ModelError."""
        self.options, self.settings, self.chat = options, options.settings, options.chat
        self.target: TargetFolder = open_target(options.model)
        if self.target.template is None:
            raise InputError(f"{options.model} has no chat template", field="model")
        if self.settings.row_len > self.target.spec.max_position:
            allowed = f"at most the target's context of {self.target.spec.max_position}"
            raise ConfigError("row_len", self.settings.row_len, allowed)
        self.turns = read_turns(self.target.template, self.target.tokenizer)
        self.device = pick_device(self.settings.device)
        self.dtype = pick_dtype(_dtype_of(self.settings, self.device), self.target.values, str(self.device))
        self.mask = pick_mask_token(self.target, self.settings.mask_token_id)
        self.shape = drafter_shape(self.settings, self.target)
        self.sampling = block_sampling_of(self.settings)
        self.out = OutFolder(options.out)
        self.out.refuse_other(drafter=True)
        self.out.prepare(resume=None if options.resume else False)
        self.corpus: Corpus = read_corpus(options.corpus, self.target.template, self.settings.documents)

    def run(self) -> None:
        """Runs all stages and writes the folder. Raises InputError if an earlier run had other settings."""
        if self.out.checkpoint.exists():
            with suggest_no_resume():  # this must fail now, not after the texts are written
                read_checkpoint(self.out.checkpoint, self._lasting, torch.device("cpu"))
        texts = self.texts()
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        teacher = load_teacher(self.target, self.shape.layer_ids, self.device, str(self.dtype))
        config = drafter_config(self.shape, teacher.model.config, self.mask.token_id, self.sampling)
        net = build_drafter(config, self.settings.seed).to(self.device)
        say(f"drafter: {num_parameters(net):,} parameters over the target's layers {teacher.layer_ids}")
        loss = self.train(net, teacher, texts)
        save_drafter(net, config, self.out.path)
        measured = self.evaluate(as_saved(net), teacher, texts.heldout)
        self.report(net, loss, measured, texts)

    def questions(self) -> tuple[list[Question], list[Question]]:
        """Returns the questions for training and the held-out ones, which occur nowhere in the training."""
        settings = self.settings
        split = split_heldout(self.corpus.records, settings.heldout_share, settings.seed)
        heldout = self._questions_of(split.heldout)
        chosen = [
            question
            for kind in sorted({question.kind for question in heldout})
            for question in mixed(
                [own for own in heldout if own.kind == kind],
                settings.heldout_texts,
                random.Random(f"{settings.seed} {kind}"),
                most_repeats=1,
            )
        ]
        known = {tuple(question.prompt_ids) for question in chosen}
        training = [own for own in self._questions_of(split.training) if tuple(own.prompt_ids) not in known]
        count = settings.own_text - round(settings.own_text * self.chat.invented_share)
        return mixed(training, count, random.Random(f"{settings.seed} mix")), chosen

    def _questions_of(self, records: Sequence[Record]) -> list[Question]:
        assert self.target.template is not None
        settings = self.settings
        most = min(settings.max_prompt, settings.row_len * 2 // 3)
        source = QuestionSource(self.target.template, self.target.tokenizer, QuestionOptions(most))
        chance = random.Random(f"{settings.seed} questions")
        # A source never needs more than this (see `mixed`), and making questions takes time.
        num_kinds = len({record.kind for record in records})
        return list(source.of(records, chance, 2 * -(-settings.own_text // num_kinds)))

    @property
    def _text_settings(self) -> dict[str, object]:
        """Returns the settings that the texts depend on."""
        values = {**asdict(self.settings), **asdict(self.chat)}
        files = " ".join(f"{file.name} {file.mark}" for file in self.corpus.files)
        return {
            "target": self.target.mark,
            "corpus": files,
            "dtype": str(self.dtype),
            **{name: values[name] for name in _TEXT_SETTINGS},
        }

    @property
    def _lasting(self) -> dict[str, object]:
        """Returns the settings that the weights depend on."""
        own = {"mask_token_id": self.mask.token_id}
        return {**lasting(self.settings), **lasting(self.chat), **self._text_settings, **own}

    def texts(self) -> Texts:
        """Returns the stored texts, or writes them. Raises InputError if the stored ones do not fit."""
        training, heldout = self.questions()
        counts = Counter(question.kind for question in training)
        say("questions:", dict(sorted(counts.items())), "held out:", len(heldout))
        anew = not self.options.resume
        own_store = TextStore(self.out.work / "own_text.npz", self._text_settings, replace=anew)
        heldout_store = TextStore(self.out.work / "heldout.npz", self._text_settings, replace=anew)
        with suggest_no_resume():
            own, answers = own_store.load(), heldout_store.load()
        if not own or len(answers) != len(heldout):
            own, answers = self._write(training, heldout)
            own_store.save(own)
            heldout_store.save(answers)
        by_kind: dict[str, list[Text]] = {}
        for question, answer in zip(heldout, answers, strict=True):
            by_kind.setdefault(question.kind, []).append(answer)
        return Texts(own, by_kind)

    def _write(
        self, training: Sequence[Question], heldout: Sequence[Question]
    ) -> tuple[list[Text], list[Text]]:
        """Returns the target's own texts, and its answers to the held-out questions."""
        settings = self.settings
        decoder = load_slot_decoder(
            self.target.folder, self.dtype, self.device, settings.write_rows, settings.row_len
        )
        say(f"{decoder.num_slots:,} slots of {decoder.length} tokens, {self.dtype}, {self.device}")
        writer = StreamWriter(decoder, self.target.tokenizer.eos_ids)
        stage = ChatTexts(writer, self.turns, settings, self.chat, say)
        answers = stage.held_out(heldout)
        own = [text for _, text in stage.own_texts(training)]
        del decoder, writer, stage
        release_memory()
        return own, answers

    def train(self, net: DFlashNet, teacher: FolderTeacher, texts: Texts) -> float:
        """Trains until the time limit or the number of updates, and returns the last smoothed loss."""
        settings, chat = self.settings, self.chat
        longest = min(chat.longest_row, self.target.spec.max_position)
        options = BatchOptions(
            settings.batch_rows,
            settings.anchors,
            chat.long_every,
            longest_row=longest,
            seed=settings.seed,
        )
        batches = TextBatches(texts.own, options, self.device)
        say(f"{len(batches.texts):,} texts, {batches.num_updates:,} updates per epoch")

        def loss(rows: TextRows, generator: torch.Generator) -> Tensor:
            sampling = replace(self.sampling, anchors=rows.anchors)
            return block_loss(net, teacher, rows.tokens, sampling, generator, rows.stops)

        def evaluate() -> dict[str, float]:
            found = self.evaluate(net, teacher, texts.heldout, _QUICK_TEXTS)
            return {own.kind: own.tokens_per_step for own in found}

        config = replace(train_config(settings), max_seconds=chat.train_seconds)
        checkpoint = self.out.checkpoint
        return Trainer(
            net, loss, batches, config, self.device, show, evaluate, checkpoint, self._lasting
        ).run()

    def evaluate(
        self, net: DFlashNet, teacher: FolderTeacher, heldout: dict[str, list[Text]], most: int | None = None
    ) -> list[Measured]:
        """Returns the greedy figures of every kind."""
        return [
            replace(own, kind=kind)
            for kind, texts in sorted(heldout.items())
            for own in measure(net, teacher, texts[:most], self.device)
        ]

    def report(self, net: DFlashNet, loss: float, measured: Sequence[Measured], texts: Texts) -> None:
        """Writes the figures and the card, and prints the tokens per step."""
        settings = {**asdict(self.settings), **asdict(self.chat)}
        taps = "-".join(str(layer) for layer in self.shape.layer_ids)
        settings |= {"taps": taps, "mask_token_id": self.mask.token_id, "device": self.device.type}
        card = Card(
            name=self.out.path.resolve().name,
            target=self.target.name,
            target_mark=self.target.mark,
            num_parameters=num_parameters(net),
            data=self.corpus.files,
            own_text=len(texts.own),
            settings=settings,
            measured=measured,
            mask=f"{self.mask.token_id}, {self.mask.reason}",
            loss=loss,
        )
        (self.out.path / "README.md").write_text(card_text(card), encoding="utf-8")
        num_tokens = sum(len(text.output_ids) for text in texts.own)
        found = [asdict(own) for own in measured]
        self.out.note(
            "figures.json",
            {"measured": found, "loss": loss, "texts": len(texts.own), "tokens": num_tokens},
        )
        say("tokens per step:", {own.kind: round(own.tokens_per_step, 2) for own in measured})


def _dtype_of(settings: DrafterSettings, device: torch.device) -> str:
    """Returns the dtype of the target: on a CUDA device bfloat16 unless another one is asked for."""
    return "bfloat16" if settings.dtype == "auto" and device.type == "cuda" else settings.dtype


def read_options(arguments: Sequence[str] | None = None) -> RecipeOptions:
    """Reads the command line. Raises ConfigError that names a wrong value."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m wager.train.recipe_chat",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--model", required=True, type=Path, help="folder of the chat model")
    parser.add_argument(
        "--corpus", required=True, type=Path, nargs="+", help="files of texts and chats, as for `wager train`"
    )
    parser.add_argument("--out", required=True, type=Path, help="folder for the drafter")
    parser.add_argument("--no-resume", action="store_true", help="start from the beginning")
    parser.add_argument("--tiny", action="store_true", help="run all stages at a small size")
    flags = [*settings_of(ChatSettings), *settings_of(DrafterSettings)]
    for setting in flags:
        default = DEFAULTS.get(setting.name, setting.default)
        parser.add_argument(
            setting.flag, metavar="VALUE", help=f"{setting.help} [{default}]".replace("%", "%%")
        )
    found = vars(parser.parse_args(arguments))
    values = DEFAULTS | TINY if found["tiny"] else dict(DEFAULTS)
    values |= {one.name: one.allowed.read(found[one.name]) for one in flags if found[one.name] is not None}
    own = {one.name for one in settings_of(ChatSettings)}
    return RecipeOptions(
        found["model"],
        found["corpus"],
        found["out"],
        DrafterSettings(**{name: value for name, value in values.items() if name not in own}),
        ChatSettings(**{name: value for name, value in values.items() if name in own}),
        not found["no_resume"],
    )


if __name__ == "__main__":
    run_recipe(lambda: ChatRecipe(read_options()).run())
