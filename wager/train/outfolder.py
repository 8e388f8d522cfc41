"""The folder of a training run: the finished model at its top, work in progress in `training/`.

It is checked before any work begins, so that no hours are lost on a folder that cannot be written or that has
another model. This module knows no networks; the training of drafters and targets uses it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from wager.errors import InputError


class OutFolder:
    """The paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / "training"

    @property
    def checkpoint(self) -> Path:
        return self.work / "checkpoint.pt"

    def prepare(self, *, resume: bool | None) -> None:
        """Creates the folder and determines whether a run is continued. Raises InputError.

        `resume` True requires a checkpoint, False moves one away, and None continues if there is one.
        """
        try:
            self.work.mkdir(parents=True, exist_ok=True)
            if resume is False:
                self.checkpoint.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror or error}", field="out") from error
        if not os.access(self.work, os.W_OK):
            raise InputError(f"cannot write {self.work}", field="out")
        if resume and not self.checkpoint.exists():
            raise InputError(f"there is no checkpoint in {self.work}", field="resume")

    def refuse_other(self, *, drafter: bool) -> None:
        """Raises InputError if the folder has a model of the other kind, which would be overwritten."""
        path = self.path / "config.json"
        if not path.exists():
            return
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}", field="out") from error
        if ("dflash_config" in values) != drafter:
            kind = "a drafter" if drafter else "a target"
            raise InputError(f"{self.path} has a model that is not {kind}", field="out")

    def note(self, name: str, values: Mapping[str, object]) -> None:
        """Stores figures as JSON in the work folder."""
        (self.work / name).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
