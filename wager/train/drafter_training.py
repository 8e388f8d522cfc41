"""Trains a drafter from a corpus to a finished folder: texts, updates, export, card.

These are the stages of `wager train`. Each stage stores its result in the output folder, so that an
interrupted run continues there. The caller provides the writer of the target's texts and the listener. Read
drafter.py for the loss and loop.py for the updates.
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
from wager.train.corpus import Corpus, Split, read_corpus, split_heldout, split_long_text, tokenize
from wager.train.drafter import (
    BlockSampling,
    DrafterShape,
    GraphedTeacher,
    Teacher,
    block_loss,
    build_drafter,
    drafter_config,
    save_drafter,
    spread_layers,
)
from wager.train.drafter_quality import Measured, measure
from wager.train.loop import PackedBatches, Progress, TrainConfig, Trainer, read_checkpoint
from wager.train.outfolder import OutFolder
from wager.train.settings import DrafterSettings, TargetSettings, lasting, read_taps
from wager.train.teacher import FolderTeacher, MaskToken, TargetFolder, load_teacher, pick_mask_token
from wager.train.texts import (
    PromptSource,
    Text,
    TextOptions,
    TextOrder,
    TextStore,
    Writer,
    pack_texts,
    write_texts,
)

CARD_TEMPERATURE = 0.8
_CHARACTERS_PER_TOKEN = 8
"""Of the pieces that long texts are cut into, for each token of a row: a few rows to a piece."""
_SMALL_TARGET = 1024
_OWN_TEXT, _HELDOUT = "own_text", "heldout"
_TEXT_SETTINGS = ("greedy_share", "min_temperature", "max_temperature", "max_prompt", "row_len")
_SOURCE_SETTINGS = ("heldout_share", "documents", "seed")


class TrainingListener(Protocol):
    """Receives reports on the progress of training."""

    def message(self, text: str) -> None:
        """Receives one line about a stage or a decision."""
        ...

    def texts_written(self, what: str, done: int, count: int) -> None:
        """Receives the number of written texts."""
        ...

    def updated(self, progress: Progress) -> None: ...


@dataclass(frozen=True)
class Trained:
    """The result of a training run."""

    folder: Path
    loss: float
    measured: list[Measured]
    num_parameters: int


def pick_device(name: str) -> torch.device:
    """Returns the device of this name. Raises ConfigError if it does not exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device", name, "cpu: no CUDA device is present")
    return torch.device(name)


def train_config(settings: DrafterSettings | TargetSettings) -> TrainConfig:
    """Returns the settings of the training loop."""
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
    """Returns the drafter's sizes; sizes that are not set are the target's. Raises ConfigError."""
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


def block_sampling_of(settings: DrafterSettings) -> BlockSampling:
    """Returns how blocks are sampled, limited to what a short block can hold."""
    return BlockSampling(
        anchors=settings.anchors,
        shortest=min(settings.shortest_block, settings.block_size),
        full_share=settings.full_share,
        most_known=min(settings.most_known, settings.block_size - 1),
        one_known_share=settings.one_known_share,
        fade=settings.fade,
        soft=settings.soft_share,
    )


@contextmanager
def suggest_no_resume() -> Iterator[None]:
    """Adds a hint at --no-resume to every error about the state of an earlier run."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{error.message} (--no-resume starts from the beginning)", error.field) from error


class DrafterTraining:
    """One run of drafter training."""

    def __init__(
        self,
        target: TargetFolder,
        files: Sequence[Path],
        out: Path,
        settings: DrafterSettings,
        listener: TrainingListener,
    ) -> None:
        """Checks the arguments before any work begins. Raises ConfigError or InputError."""
        self.target, self.files, self.settings, self.listener = target, files, settings, listener
        self.out = OutFolder(out)
        self.device = pick_device(settings.device)
        self.shape, self.sampling = drafter_shape(settings, target), block_sampling_of(settings)
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
        """Reads the corpus and the state of an earlier run. Raises InputError."""
        self.out.refuse_other(drafter=True)
        self.out.prepare(resume=resume)
        self._anew = resume is False
        self.corpus: Corpus = read_corpus(self.files, self.target.template, self.settings.documents)
        most = _CHARACTERS_PER_TOKEN * self.settings.row_len
        cut = (piece for record in self.corpus.records for piece in split_long_text(record, most))
        self.split: Split = split_heldout(cut, self.settings.heldout_share, self.settings.seed)
        if self.out.checkpoint.exists():
            with suggest_no_resume():  # this must fail now, not when the texts are written
                state = read_checkpoint(self.out.checkpoint, self.lasting, torch.device("cpu"))
            self.listener.message(
                f"{self.out.checkpoint}: continues from update {state['standing']['update']}"
            )
        characters = sum(file.num_characters for file in self.corpus.files)
        self.listener.message(f"target: {self.target.name} ({self.target.mark})")
        self.listener.message(
            f"corpus: {len(self.corpus.records):,} documents, {characters:,} characters; "
            f"{len(self.split.training):,} parts for training, {len(self.split.heldout):,} held out"
        )

    @property
    def source(self) -> dict[str, object]:
        """Returns the settings that every text depends on."""
        files = " ".join(f"{file.name} {file.mark}" for file in self.corpus.files)
        return {"target": self.target.mark, "corpus": files}

    @property
    def lasting(self) -> dict[str, object]:
        """Returns the settings that the weights depend on."""
        return {**self.source, **lasting(self.settings), "mask_token_id": self.mask.token_id}

    @property
    def effective(self) -> dict[str, object]:
        """Returns the settings with every default resolved, as the card shows them."""
        shape, sampling = self.shape, self.sampling
        decided = {
            "taps": "-".join(str(i) for i in shape.layer_ids),
            "heads": shape.num_heads,
            "kv_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "intermediate_size": shape.intermediate_size,
            "mask_token_id": self.mask.token_id,
            "shortest_block": sampling.shortest,
            "most_known": sampling.most_known,
            "max_prompt": self._max_prompt,
            "device": self.device.type,
        }
        return asdict(self.settings) | decided

    def rows(self, write: Writer) -> npt.NDArray[np.int32]:
        """Returns the rows for training: the target's own texts, or the corpus if no texts are wanted."""
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
        options = TextOptions(
            settings.row_len, self._max_prompt, settings.greedy_share, temperatures, settings.seed
        )
        prompts = PromptSource(self.split.training, self.target, options)
        names = (*_TEXT_SETTINGS, *_SOURCE_SETTINGS)
        texts = self._written(_OWN_TEXT, names, prompts.at, settings.own_text, write)
        return pack_texts(texts, settings.row_len, settings.seed)

    def heldout(self, write: Writer) -> list[Text]:
        """Returns the held-out prompts continued by the target, greedily and at the temperature of
        the card.
        """
        settings = self.settings
        options = TextOptions(settings.row_len, self._max_prompt, seed=settings.seed + 1)
        prompts = PromptSource(self.split.heldout, self.target, options)

        def order(number: int) -> TextOrder:
            begun = prompts.at(number // 2)
            temperature = CARD_TEMPERATURE if number % 2 else 0.0
            room = self.target.spec.max_position - len(begun.prompt_ids)
            return begun._replace(num_output=min(settings.heldout_tokens, room), temperature=temperature)

        names = ("heldout_tokens", "max_prompt", "row_len", *_SOURCE_SETTINGS)
        return self._written(_HELDOUT, names, order, 2 * settings.heldout_texts, write)

    def _written(
        self, name: str, depends: Sequence[str], order: Callable[[int], TextOrder], count: int, write: Writer
    ) -> list[Text]:
        values = {key: getattr(self.settings, key) for key in depends}
        # Texts for evaluation only may be written again without a message.
        replace = self._anew or name == _HELDOUT
        store = TextStore(self.out.work / f"{name}.npz", {**self.source, **values}, replace=replace)
        # More texts than run at once are queued, so that no row of the engine stays empty.
        batch = 4 * self.settings.write_rows
        with suggest_no_resume():
            store.load()
        return write_texts(
            store, order, count, write, batch, lambda done, all: self.listener.texts_written(name, done, all)
        )

    def learn(
        self, rows: npt.NDArray[np.int32], heldout: Sequence[Text], stop: Callable[[], bool] | None = None
    ) -> Trained:
        """Trains, exports and evaluates the drafter, and writes the card. Raises KeyboardInterrupt if `stop`
        asks for it.
        """
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        config, teacher = self._teacher()
        net = build_drafter(config, self.settings.seed).to(self.device)
        num_parameters = sum(weight.numel() for weight in net.parameters())
        self.listener.message(
            f"drafter: {num_parameters:,} parameters, layers: {self.shape.num_layers} over the target's "
            f"{list(teacher.layer_ids)}, mask token {self.mask.token_id} ({self.mask.reason}); "
            f"{len(rows):,} rows of {rows.shape[1]} tokens; {self.device}"
        )
        greedy = [text for text in heldout if text.temperature == 0.0]

        quick = self._fast_teacher(teacher)

        def loss(tokens: Tensor, generator: torch.Generator) -> Tensor:
            return block_loss(net, quick, tokens, self.sampling, generator)

        def evaluate() -> dict[str, float]:
            return _as_figures(measure(net, teacher, greedy, self.device))

        settings = train_config(self.settings)
        last = Trainer(
            net,
            loss,
            PackedBatches(rows, settings.batch_rows, settings.seed, self.device),
            settings,
            self.device,
            self.listener.updated,
            evaluate,
            self.out.checkpoint,
            self.lasting,
            stop,
        ).run()
        save_drafter(net, config, self.out.path)
        measured = measure(as_saved(net), teacher, heldout, self.device)
        trained = Trained(self.out.path, last, measured, num_parameters)
        self._write_card(trained)
        return trained

    def _teacher(self) -> tuple[dict[str, Any], FolderTeacher]:
        teacher = load_teacher(self.target, self.shape.layer_ids, self.device, self.settings.dtype)
        return drafter_config(self.shape, teacher.model.config, self.mask.token_id, self.sampling), teacher

    def _fast_teacher(self, teacher: FolderTeacher) -> Teacher:
        """Returns a teacher in a CUDA graph on a GPU, where the pass of a small target is mostly kernel
        launches.
        """
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


def as_saved(net: DFlashNet) -> DFlashNet:
    """Returns the drafter with its weights rounded as in the folder."""
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(weight.bfloat16())
    return net


def _as_figures(measured: Sequence[Measured]) -> dict[str, float]:
    """Returns tokens per step and the acceptance at each depth."""
    if not measured:
        return {}
    own = measured[0]
    depths = {f"depth {depth}": rate for depth, rate in enumerate(own.by_depth, 1)}
    return {"tokens per step": own.tokens_per_step, **depths}
