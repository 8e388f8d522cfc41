"""One kind of drafter as the registry lists it: how it is made, its memory, and its checks before it is
loaded.

`DRAFTERS` in `__init__.py` is the registry. Every entry is a `DrafterKind`; only `make` is required.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wager.draft.base import Drafter, PoolShape, TargetInterface
from wager.errors import DrafterError
from wager.nn.models.decoder import DecoderSpec
from wager.nn.native.loader import PassOptions


@dataclass(frozen=True)
class DraftSource:
    """Where a drafter comes from and how it is set up; None means the drafter's own default."""

    folder: Path | None = None
    """The model folder, for kinds that have one."""
    dtype: torch.dtype | str = "auto"
    device: torch.device | str = "cpu"
    layout: str = "auto"
    options: PassOptions | None = None
    """What the drafter's network is asked for: native passes, narrow weights, kernels."""
    kernels: str = "auto"
    """The config field of that name: how passes run on a CUDA device."""
    depth: int | None = None
    """The most guesses of one proposal."""
    ranks: int | None = None
    """The most candidates at each depth."""
    min_match: int | None = None
    """The shortest tail that `lookup` looks for."""
    max_match: int | None = None
    """The longest tail that `lookup` looks for."""
    known_tokens: int | None = None
    """The most pending tokens that a block drafter was trained with, if its folder does not say."""
    block_lengths: tuple[int, ...] | None = None
    """The shorter blocks that a block drafter was trained with, if its folder does not say."""

    def given(self, *names: str) -> dict[str, Any]:
        """Returns those of the named fields that have a value."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def model_folder(self) -> Path:
        """The folder of a kind that needs one; raises DrafterError where none was named."""
        if self.folder is None:
            raise DrafterError("this kind of drafter is loaded from a model folder: give its path")
        return self.folder


class ConfigCheck(NamedTuple):
    """One line of `wager doctor` about a drafter's config.json."""

    name: str
    status: str
    """One of "ok", "warn" and "fail"."""
    detail: str


def keeps_no_pages(values: Mapping[str, Any], page_size: int, dtype: torch.dtype) -> int:
    """The `page_bytes` of a drafter without a K/V pool."""
    return 0


def has_no_folder(values: Mapping[str, Any]) -> bool:
    """The `reads` of a drafter that is not loaded from a model folder."""
    return False


def checks_nothing(values: Mapping[str, Any], target: DecoderSpec | None) -> Iterator[ConfigCheck]:
    """The `check` of a drafter without a config."""
    return iter(())


class DrafterKind(NamedTuple):
    """An entry of the registry. `values` are always those of the drafter's config.json."""

    make: Callable[[TargetInterface, PoolShape, DraftSource], Drafter]
    """Builds the drafter; raises ModelError where it does not fit the target."""
    page_bytes: Callable[[Mapping[str, Any], int, torch.dtype], int] = keeps_no_pages
    """The bytes it will keep per page of this size, before it is built: memory is divided first."""
    reads: Callable[[Mapping[str, Any]], bool] = has_no_folder
    """Whether a model folder with this config is of this kind."""
    check: Callable[[Mapping[str, Any], DecoderSpec | None], Iterator[ConfigCheck]] = checks_nothing
    """What `wager doctor` shows of a folder's config, next to the target it is meant for."""


def compare(name: str, drafter_value: float, target_value: float, if_different: str = "fail") -> ConfigCheck:
    """A check that a value of the drafter's config is that of the target."""
    if drafter_value == target_value:
        shown = f"{drafter_value:g}" if isinstance(drafter_value, float) else str(drafter_value)
        return ConfigCheck(name, "ok", shown)
    return ConfigCheck(name, if_different, f"{drafter_value:g}, but the target has {target_value:g}")
