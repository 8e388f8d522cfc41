"""The folder a training run writes to: the finished model at its top, work in progress in `training/`.

It is looked at before any work begins, so that hours are not spent on a folder that cannot be written or that
holds another model. Knows no networks; the courses of drafter and target use it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from wager.errors import InputError


class OutFolder:
    """Where everything of one run lies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / "training"

    @property
    def checkpoint(self) -> Path:
        return self.work / "checkpoint.pt"

    def prepare(self, *, resume: bool | None) -> None:
        """Make the folder, and see what is to be gone on from. Raises InputError naming what is wrong.

        `resume`: True demands a checkpoint, False puts one away, None takes what there is.
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
        """Raise InputError where the folder holds a model of the other sort, which would be overwritten."""
        path = self.path / "config.json"
        if not path.exists():
            return
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}", field="out") from error
        if ("dflash_config" in values) != drafter:
            kind = "a drafter" if drafter else "a target"
            raise InputError(f"{self.path} holds a model that is not {kind}", field="out")

    def note(self, name: str, values: Mapping[str, object]) -> None:
        """Keep figures beside the work, for machines."""
        (self.work / name).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
