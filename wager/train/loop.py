"""The training loop that target and drafter share: optimiser, schedule, checkpoints, resume, progress.

It knows only a source of batches and a loss function of a batch. Every random choice depends on the seed and
the number of the update, so a resumed run continues like an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wager.errors import InputError, one_line
from wager.nn.saving import save_state
from wager.train.muon import StackedMuon


@dataclass(frozen=True)
class TrainConfig:
    """The length and the speed of training."""

    updates: int = 1000
    batch_rows: int = 32
    lr: float = 2e-3
    warm_up: int = 50
    end_lr: float = 0.05
    """The last learning rate as a fraction of `lr`."""
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    checkpoint_every: int = 0
    report_every: int = 50
    evaluate_every: int = 0
    mixed_precision: bool = True
    optimizer: str = "adamw"
    max_seconds: float = 0.0
    """Time limit; with a limit the learning rate falls by elapsed time instead of updates."""


@dataclass(frozen=True)
class Progress:
    """The state of training, for reports."""

    update: int
    updates: int
    loss: float
    lr: float
    rows_per_s: float
    elapsed_s: float
    evaluation: dict[str, float] | None = None


@dataclass
class RunState:
    """What a checkpoint stores of a run besides weights and optimisers."""

    update: int = 0
    elapsed_s: float = 0.0
    smoothed: float = math.nan
    losses: list[float] = field(default_factory=list)
    """Losses since the last report."""


Report = Callable[[Progress], None]
Batch = TypeVar("Batch")
Found = TypeVar("Found", covariant=True)


class BatchSource(Protocol[Found]):
    """Where the batches of a run come from."""

    def at(self, update: int) -> Found:
        """Returns the batch of an update, on the device of the training; a pure function of the update."""
        ...


class PackedBatches:
    """Rows of a packed corpus, as tokens [rows, length], in an order that depends on the seed."""

    def __init__(self, rows: npt.NDArray[np.int32], batch_rows: int, seed: int, device: torch.device) -> None:
        if len(rows) == 0:
            raise InputError("has no rows for training", field="corpus")
        self.rows, self.device = rows, device
        self.batch_rows = min(batch_rows, len(rows))
        self.seed = seed
        self._epoch = -1
        self._order: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def at(self, update: int) -> Tensor:
        per_epoch = len(self.rows) // self.batch_rows
        epoch, place = divmod(update, per_epoch)
        if epoch != self._epoch:
            self._order = np.random.default_rng((self.seed, epoch)).permutation(len(self.rows))
            self._epoch = epoch
        rows = self.rows[self._order[place * self.batch_rows : (place + 1) * self.batch_rows]]
        return torch.from_numpy(rows.astype(np.int64)).to(self.device, non_blocking=True)


class Optimizers:
    """AdamW for all parameters, or Muon for the matrices of the layers and AdamW for the others."""

    def __init__(self, module: nn.Module, config: TrainConfig) -> None:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        matrices = [p for name, p in named if p.ndim == 2 and "layers." in name]
        others = [p for name, p in named if not (p.ndim == 2 and "layers." in name)]
        betas = (0.9, 0.95)
        if config.optimizer == "muon":
            muon = StackedMuon(matrices, config.lr, config.weight_decay)
            self.all = [muon, torch.optim.AdamW(others, lr=config.lr, betas=betas, weight_decay=0.0)]
        else:
            groups = [
                {"params": matrices, "weight_decay": config.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ]
            self.all = [torch.optim.AdamW(groups, lr=config.lr, betas=betas)]

    def step(self, lr: float) -> None:
        for optimizer in self.all:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, object]]:
        return [optimizer.state_dict() for optimizer in self.all]

    def load(self, states: list[dict[str, object]]) -> None:
        for optimizer, state in zip(self.all, states, strict=True):
            optimizer.load_state_dict(state)


@dataclass
class Trainer(Generic[Batch]):
    """Runs updates on one module."""

    module: nn.Module
    loss: Callable[[Batch, torch.Generator], Tensor]
    batches: BatchSource[Batch]
    config: TrainConfig
    device: torch.device
    report: Report | None = None
    evaluate: Callable[[], dict[str, float]] | None = None
    checkpoint: Path | None = None
    settings: Mapping[str, object] | None = None
    """The settings that the weights depend on; a checkpoint with other settings is refused."""
    stop: Callable[[], bool] | None = None
    """Called after every update; if it returns True, a checkpoint is saved and KeyboardInterrupt raised."""

    def run(self) -> float:
        """Trains to the end, from a checkpoint if there is one; returns the last smoothed loss."""
        config = self.config
        optimizers = Optimizers(self.module, config)
        standing = self._resume(optimizers)
        first, before_s, began = standing.update, standing.elapsed_s, time.perf_counter()
        losses = [torch.tensor(loss, device=self.device) for loss in standing.losses]
        for update in range(first, config.updates):
            share = self._share(update, before_s + time.perf_counter() - began)
            if share >= 1.0:
                break
            lr = config.lr * _schedule(update, share, config)
            losses.append(self._update(self.batches.at(update), update, optimizers, lr))
            done = update + 1
            if done % config.report_every == 0 or done == config.updates or self._is_evaluation(done):
                standing.smoothed = _mean(losses, done)
                losses.clear()
                self._report(done, standing.smoothed, lr, time.perf_counter() - began, done - first)
            stopped = self.stop is not None and self.stop()
            if stopped or self._is_checkpoint(done):
                elapsed_s = before_s + time.perf_counter() - began
                self._save(
                    RunState(done, elapsed_s, standing.smoothed, [float(x) for x in losses]), optimizers
                )
            if stopped:
                raise KeyboardInterrupt
        return standing.smoothed if not losses else _mean(losses, config.updates)

    def _is_checkpoint(self, done: int) -> bool:
        every = self.config.checkpoint_every
        return every > 0 and (done % every == 0 or done == self.config.updates)

    def _share(self, update: int, elapsed_s: float) -> float:
        """Returns the finished share of the schedule: by updates, or by time if that is further."""
        share = update / self.config.updates
        return max(share, elapsed_s / self.config.max_seconds) if self.config.max_seconds else share

    def _update(self, batch: Batch, update: int, optimizers: Optimizers, lr: float) -> Tensor:
        config = self.config
        generator = torch.Generator().manual_seed((config.seed * 1_000_003 + update) & 0x7FFFFFFF)
        kind = self.device.type
        enabled = config.mixed_precision and kind == "cuda"
        with torch.autocast(kind, torch.bfloat16, enabled=enabled):
            loss = self.loss(batch, generator)
        loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), config.clip)
        optimizers.step(lr)
        return loss.detach()

    def _is_evaluation(self, done: int) -> bool:
        every = self.config.evaluate_every
        return self.evaluate is not None and every > 0 and (done % every == 0 or done == self.config.updates)

    def _report(self, done: int, loss: float, lr: float, elapsed: float, count: int) -> None:
        found = None
        if self.evaluate is not None and self._is_evaluation(done):
            found = self.evaluate()
        if self.report is not None:
            speed = count * self.config.batch_rows / max(elapsed, 1e-9)
            self.report(Progress(done, self.config.updates, loss, lr, speed, elapsed, found))

    def _save(self, standing: RunState, optimizers: Optimizers) -> None:
        if self.checkpoint is None:
            return
        state = {
            "standing": asdict(standing),
            "module": self.module.state_dict(),
            "optimizers": optimizers.state(),
            "settings": dict(self.settings or {}),
        }
        save_state(state, self.checkpoint)

    def _resume(self, optimizers: Optimizers) -> RunState:
        if self.checkpoint is None or not self.checkpoint.exists():
            return RunState()
        state = read_checkpoint(self.checkpoint, self.settings or {}, self.device)
        try:
            self.module.load_state_dict(state["module"])
            optimizers.load(state["optimizers"])
            return RunState(**state["standing"])
        except Exception as error:
            raise _not_ours(self.checkpoint, error) from error


def read_checkpoint(path: Path, settings: Mapping[str, object], device: torch.device) -> dict[str, Any]:
    """Returns the stored state of a run. Raises InputError if it is damaged or has other settings."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        other = differences(state.get("settings", {}), settings)
        RunState(**state["standing"])  # raises if a field is missing
    except Exception as error:
        raise _not_ours(path, error) from error
    if other:
        raise InputError(f"{path} has other settings: {other}", field="checkpoint")
    return state


def _not_ours(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} is not a checkpoint of this run: {one_line(error)}", field="checkpoint")


def differences(stored: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    """Returns a description of the differences between two sets of settings; empty if they agree."""
    names = [name for name in {**stored, **wanted} if stored.get(name) != wanted.get(name)]
    return ", ".join(
        f"{name} was {stored.get(name, 'unset')}, now {wanted.get(name, 'unset')}" for name in names
    )


def _mean(losses: Sequence[Tensor], update: int) -> float:
    """Returns the mean loss. Raises InputError if it is not finite."""
    mean = float(torch.stack(list(losses)).mean())
    if not math.isfinite(mean):
        raise InputError(f"the loss became {mean} at update {update}", field="lr")
    return mean


def _schedule(update: int, share: float, config: TrainConfig) -> float:
    """Linear warm-up, then a cosine down to `end_lr`."""
    if update < config.warm_up:
        return (update + 1) / config.warm_up
    return config.end_lr + (1.0 - config.end_lr) * 0.5 * (1.0 + math.cos(math.pi * share))


def progress_lines(progress: Progress) -> Iterator[str]:
    """Yields a report as text."""
    yield (
        f"update {progress.update}/{progress.updates}  loss {progress.loss:.4f}  lr {progress.lr:.2e}  "
        f"{progress.rows_per_s:.0f} rows/s  {progress.elapsed_s:.0f} s"
    )
    if progress.evaluation:
        yield "  " + "  ".join(f"{name} {value:.3f}" for name, value in progress.evaluation.items())
