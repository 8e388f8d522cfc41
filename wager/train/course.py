"""A drafter's way from a corpus to a folder: texts, updates, export, card.

The stages of `wager train`, each leaving its result in the out folder so that a run that was interrupted goes
on where it stood. Who writes the target's own text, and who watches, are handed in. Read drafter.py for what
is learned and loop.py for how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wager.errors import ConfigError, InputError
from wager.nn.models.dflash_net import DFlashNet
from wager.train.card import Card, card_text
from wager.train.corpus import Corpus, Split, pieces, read_corpus, split_heldout, tokenize
from wager.train.drafter import (
    DrafterShape,
    GraphedTeacher,
    Lesson,
    Teacher,
    block_loss,
    build_drafter,
    drafter_config,
    save_drafter,
    spread_layers,
)
from wager.train.loop import Progress, TrainConfig, Trainer, read_checkpoint
from wager.train.outfolder import OutFolder
from wager.train.settings import DrafterSettings, TargetSettings, lasting, read_taps
from wager.train.teacher import FolderTeacher, MaskToken, TargetFolder, load_teacher, pick_mask_token
from wager.train.texts import Beginnings, Manner, Text, TextOrder, TextStore, Writer, pack_texts, write_texts
from wager.train.trial import Measured, measure

CARD_TEMPERATURE = 0.8
_CHARACTERS_PER_TOKEN = 8
"""Of the pieces that long texts are cut into, for each token of a row: a few rows to a piece."""
_SMALL_TARGET = 1024
_OWN_TEXT, _HELDOUT = "own_text", "heldout"
_TEXT_SETTINGS = ("greedy_share", "min_temperature", "max_temperature", "max_prompt", "row_len")
_SOURCE_SETTINGS = ("heldout_share", "documents", "seed")


class Watcher(Protocol):
    """Hears how training goes."""

    def say(self, text: str) -> None:
        """A stage begins or something was decided, in one line."""
        ...

    def wrote(self, what: str, done: int, count: int) -> None:
        """So many texts of so many are written."""
        ...

    def updated(self, progress: Progress) -> None: ...


@dataclass(frozen=True)
class Trained:
    """What came of it."""

    folder: Path
    loss: float
    measured: list[Measured]
    num_parameters: int


def pick_device(name: str) -> torch.device:
    """Raises ConfigError where the device is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device", name, "cpu: no CUDA device is present")
    return torch.device(name)


def train_config(settings: DrafterSettings | TargetSettings) -> TrainConfig:
    """The loop's part of the settings."""
    return TrainConfig(
        updates=settings.updates,
        batch_rows=settings.batch_rows,
        lr=settings.lr,
        warm_up=settings.warm_up,
        end_lr=settings.end_lr,
        weight_decay=settings.weight_decay,
        clip=settings.clip,
        seed=settings.seed,
        checkpoint_every=settings.checkpoint_every,
        report_every=settings.report_every,
        evaluate_every=settings.evaluate_every,
        mixed_precision=settings.mixed_precision,
        optimizer=settings.optimizer,
    )


def drafter_shape(settings: DrafterSettings, target: TargetFolder) -> DrafterShape:
    """The drafter's sizes, where not given those of its target. Raises ConfigError naming a wrong one."""
    spec = target.spec
    count = spec.num_layers
    taps = read_taps(settings.taps) or tuple(i for i in spread_layers(count) if i < count) or (count - 1,)
    if sorted(set(taps)) != list(taps) or taps[-1] >= count:
        raise ConfigError("taps", settings.taps, f"rising layers from 0 to {count - 1}")
    shape = DrafterShape(
        num_layers=settings.layers,
        intermediate_size=settings.intermediate_size or spec.intermediate_size,
        num_heads=settings.heads or spec.num_heads,
        num_kv_heads=settings.kv_heads or spec.num_kv_heads,
        head_dim=settings.head_dim or spec.head_dim,
        block_size=settings.block_size,
        layer_ids=taps,
    )
    if shape.num_heads % shape.num_kv_heads:
        raise ConfigError("kv_heads", shape.num_kv_heads, f"a divisor of heads ({shape.num_heads})")
    if shape.head_dim % 2:
        raise ConfigError("head_dim", shape.head_dim, "an even number")
    return shape


def lesson_of(settings: DrafterSettings) -> Lesson:
    """How blocks are cut; what a short block has no room for is left out."""
    return Lesson(
        anchors=settings.anchors,
        shortest=min(settings.shortest_block, settings.block_size),
        full_share=settings.full_share,
        most_known=min(settings.most_known, settings.block_size - 1),
        one_known_share=settings.one_known_share,
        fade=settings.fade,
        soft=settings.soft_share,
    )


@contextmanager
def way_out() -> Iterator[None]:
    """Say, with every complaint about what an earlier run left, how to do without it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{error.message} (--no-resume begins anew)", error.field) from error


class Course:
    """One run of drafter training."""

    def __init__(
        self,
        target: TargetFolder,
        files: Sequence[Path],
        out: Path,
        settings: DrafterSettings,
        watcher: Watcher,
    ) -> None:
        """Checks what can be checked before work begins. Raises ConfigError or InputError."""
        self.target, self.files, self.settings, self.watcher = target, files, settings, watcher
        self.out = OutFolder(out)
        self.device = pick_device(settings.device)
        self.shape, self.lesson = drafter_shape(settings, target), lesson_of(settings)
        self.mask: MaskToken = pick_mask_token(target, settings.mask_token_id)
        longest = max(settings.row_len, self._max_prompt + settings.heldout_tokens)
        if longest > target.spec.max_position:
            field = "row_len" if settings.row_len == longest else "heldout_tokens"
            allowed = f"rows within the target's context of {target.spec.max_position}"
            raise ConfigError(field, getattr(settings, field), allowed)

    @property
    def _max_prompt(self) -> int:
        return min(self.settings.max_prompt, self.settings.row_len // 2)

    def prepare(self, resume: bool | None = None) -> None:
        """Read the corpus and look at what an earlier run left. Raises InputError naming what is wrong."""
        self.out.refuse_other(drafter=True)
        self.out.prepare(resume=resume)
        self._anew = resume is False
        self.corpus: Corpus = read_corpus(self.files, self.target.template, self.settings.documents)
        most = _CHARACTERS_PER_TOKEN * self.settings.row_len
        cut = (piece for record in self.corpus.records for piece in pieces(record, most))
        self.split: Split = split_heldout(cut, self.settings.heldout_share, self.settings.seed)
        if self.out.checkpoint.exists():
            with way_out():  # now rather than when the texts are written
                state = read_checkpoint(self.out.checkpoint, self.lasting, torch.device("cpu"))
            self.watcher.say(f"{self.out.checkpoint}: goes on from update {state['standing']['update']}")
        characters = sum(file.num_characters for file in self.corpus.files)
        self.watcher.say(f"target: {self.target.name} ({self.target.mark})")
        self.watcher.say(
            f"corpus: {len(self.corpus.records):,} documents, {characters:,} characters; "
            f"{len(self.split.training):,} parts to learn from, {len(self.split.heldout):,} to judge by"
        )

    @property
    def source(self) -> dict[str, object]:
        """What every text depends on."""
        files = " ".join(f"{file.name} {file.mark}" for file in self.corpus.files)
        return {"target": self.target.mark, "corpus": files}

    @property
    def lasting(self) -> dict[str, object]:
        """What the weights depend on."""
        return {**self.source, **lasting(self.settings), "mask_token_id": self.mask.token_id}

    @property
    def effective(self) -> dict[str, object]:
        """The settings with what was left open decided, as the card shows them."""
        shape, lesson = self.shape, self.lesson
        decided = {
            "taps": "-".join(str(i) for i in shape.layer_ids),
            "heads": shape.num_heads,
            "kv_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "intermediate_size": shape.intermediate_size,
            "mask_token_id": self.mask.token_id,
            "shortest_block": lesson.shortest,
            "most_known": lesson.most_known,
            "max_prompt": self._max_prompt,
            "device": self.device.type,
        }
        return asdict(self.settings) | decided

    def rows(self, write: Writer) -> npt.NDArray[np.int32]:
        """What is learned from: the target's own text, or the corpus where none is wanted."""
        settings = self.settings
        if not settings.own_text:
            tokens = tokenize(
                self.split.training,
                self.target.tokenizer.backend,
                self.target.end_id,
                begin_id=self.target.begin_id,
            )
            return tokens.packed(settings.row_len, settings.seed)
        temperatures = (settings.min_temperature, settings.max_temperature)
        manner = Manner(
            settings.row_len, self._max_prompt, settings.greedy_share, temperatures, settings.seed
        )
        beginnings = Beginnings(self.split.training, self.target, manner)
        names = (*_TEXT_SETTINGS, *_SOURCE_SETTINGS)
        texts = self._written(_OWN_TEXT, names, beginnings.at, settings.own_text, write)
        return pack_texts(texts, settings.row_len, settings.seed)

    def heldout(self, write: Writer) -> list[Text]:
        """Texts to judge by: every held-out beginning continued greedily and at the card's temperature."""
        settings = self.settings
        manner = Manner(settings.row_len, self._max_prompt, seed=settings.seed + 1)
        beginnings = Beginnings(self.split.heldout, self.target, manner)

        def order(number: int) -> TextOrder:
            begun = beginnings.at(number // 2)
            temperature = CARD_TEMPERATURE if number % 2 else 0.0
            room = self.target.spec.max_position - len(begun.prompt_ids)
            return begun._replace(num_output=min(settings.heldout_tokens, room), temperature=temperature)

        names = ("heldout_tokens", "max_prompt", "row_len", *_SOURCE_SETTINGS)
        return self._written(_HELDOUT, names, order, 2 * settings.heldout_texts, write)

    def _written(
        self, name: str, depends: Sequence[str], order: Callable[[int], TextOrder], count: int, write: Writer
    ) -> list[Text]:
        values = {key: getattr(self.settings, key) for key in depends}
        # What is only judged by may be written anew without a word.
        replace = self._anew or name == _HELDOUT
        store = TextStore(self.out.work / f"{name}.npz", {**self.source, **values}, replace=replace)
        # Several at a time behind those that run, so that no place stays empty for long.
        batch = 4 * self.settings.write_rows
        with way_out():
            store.load()
        return write_texts(
            store, order, count, write, batch, lambda done, all: self.watcher.wrote(name, done, all)
        )

    def learn(
        self, rows: npt.NDArray[np.int32], heldout: Sequence[Text], stop: Callable[[], bool] | None = None
    ) -> Trained:
        """Train, export, judge, and write the card. KeyboardInterrupt where `stop` said so."""
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        config, teacher = self._teacher()
        net = build_drafter(config, self.settings.seed).to(self.device)
        num_parameters = sum(weight.numel() for weight in net.parameters())
        self.watcher.say(
            f"drafter: {num_parameters:,} parameters, layers: {self.shape.num_layers} over the target's "
            f"{list(teacher.layer_ids)}, mask token {self.mask.token_id} ({self.mask.reason}); "
            f"{len(rows):,} rows of {rows.shape[1]} tokens; {self.device}"
        )
        greedy = [text for text in heldout if text.temperature == 0.0]

        quick = self._quick(teacher)

        def loss(tokens: Tensor, generator: torch.Generator) -> Tensor:
            return block_loss(net, quick, tokens, self.lesson, generator)

        def evaluate() -> dict[str, float]:
            return _as_figures(measure(net, teacher, greedy, self.device))

        last = Trainer(
            net,
            loss,
            rows,
            train_config(self.settings),
            self.device,
            self.watcher.updated,
            evaluate,
            self.out.checkpoint,
            self.lasting,
            stop,
        ).run()
        save_drafter(net, config, self.out.path)
        measured = measure(_as_saved(net), teacher, heldout, self.device)
        trained = Trained(self.out.path, last, measured, num_parameters)
        self._write_card(trained)
        return trained

    def _teacher(self) -> tuple[dict[str, Any], FolderTeacher]:
        teacher = load_teacher(self.target, self.shape.layer_ids, self.device, self.settings.dtype)
        return drafter_config(self.shape, teacher.model.config, self.mask.token_id, self.lesson), teacher

    def _quick(self, teacher: FolderTeacher) -> Teacher:
        """A small target's pass on a GPU is mostly launches: there it is captured once and replayed."""
        spec = self.target.spec
        is_small = spec.hidden_size <= _SMALL_TARGET and not any(spec.windows)
        return GraphedTeacher(teacher) if self.device.type == "cuda" and is_small else teacher

    def _write_card(self, trained: Trained) -> None:
        card = Card(
            name=self.out.path.resolve().name,
            target=self.target.name,
            target_mark=self.target.mark,
            num_parameters=trained.num_parameters,
            data=self.corpus.files,
            own_text=self.settings.own_text,
            settings=self.effective,
            measured=trained.measured,
            mask=f"{self.mask.token_id}, {self.mask.reason}",
            loss=trained.loss,
        )
        (self.out.path / "README.md").write_text(card_text(card), encoding="utf-8")
        self.out.note(
            "figures.json", {"loss": trained.loss, "measured": [asdict(own) for own in trained.measured]}
        )


def _as_saved(net: DFlashNet) -> DFlashNet:
    """The drafter with its weights as they are rounded in the folder."""
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(weight.bfloat16())
    return net


def _as_figures(measured: Sequence[Measured]) -> dict[str, float]:
    """For progress: tokens per step, then the acceptance at each depth."""
    if not measured:
        return {}
    own = measured[0]
    depths = {f"depth {depth}": rate for depth, rate in enumerate(own.by_depth, 1)}
    return {"tokens per step": own.tokens_per_step, **depths}
