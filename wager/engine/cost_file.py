"""Stores measured times for the next start: one file for each machine, model and way of running passes.

A file is named after a digest of its key, which lists everything that the times depend on, and it is only
used if its key is exactly the same. If a file is missing, broken or cannot be written, the times are measured
again. Needs no torch. calibrate.py writes and uses calibrations, and `wager doctor` shows them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wager.costs import DraftTime, PassTime

log = logging.getLogger("wager.engine")

Key = Mapping[str, object]
_FORMAT = 1


@dataclass(frozen=True)
class Calibration:
    """The measured times of one kind of engine on one machine."""

    key: Key
    passes: tuple[PassTime, ...]
    drafts: tuple[DraftTime, ...]
    made_s: float
    """When they were measured, in seconds since 1970."""

    @property
    def summary(self) -> str:
        return f"{len(self.passes)} passes, {len(self.drafts)} drafts"

    @property
    def age(self) -> str:
        return format_duration(time.time() - self.made_s)


def folder() -> Path | None:
    """Returns the folder of the calibrations in the user's cache, or None if the user has no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "wager" / "costs"
    except RuntimeError:  # no home
        return None


def digest(value: object) -> str:
    """Returns sixteen hexadecimal digits for any record."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read(key: Key) -> Calibration | None:
    """Returns the calibration of exactly this key, if there is one."""
    place = _path(key)
    found = None if place is None else _load(place)
    return found if found is not None and digest(found.key) == digest(key) else None


def stored() -> list[Calibration]:
    """Returns every calibration that can be read, the latest first."""
    place = folder()
    files = sorted(place.glob("*.json")) if place is not None and place.is_dir() else []
    found = [one for one in map(_load, files) if one is not None]
    return sorted(found, key=lambda one: -one.made_s)


def write(calibration: Calibration) -> None:
    """Stores a calibration atomically, because another process may read or write the same file."""
    place = _path(calibration.key)
    if place is None:
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False, encoding="utf-8") as file:
            json.dump(_as_json(calibration), file, indent=1)
        os.replace(file.name, place)
    except OSError as error:
        log.warning("the calibration cannot be stored: %s", error)


def format_duration(seconds: float) -> str:
    """Returns a time span in its largest unit."""
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} seconds"


def _path(key: Key) -> Path | None:
    place = folder()
    return None if place is None else place / f"{digest(key)}.json"


def _as_json(calibration: Calibration) -> dict[str, object]:
    return {
        "format": _FORMAT,
        "key": dict(calibration.key),
        "made_s": calibration.made_s,
        "passes": [list(one) for one in calibration.passes],
        "drafts": [list(one) for one in calibration.drafts],
    }


def _load(place: Path) -> Calibration | None:
    try:
        values = json.loads(place.read_text(encoding="utf-8"))
        if values["format"] != _FORMAT:
            return None
        passes = [
            PassTime(int(tokens), int(rows), int(context_len), _time(ms))
            for tokens, rows, context_len, ms in values["passes"]
        ]
        drafts = [
            DraftTime(str(name), int(rows), int(depth), _time(ms))
            for name, rows, depth, ms in values["drafts"]
        ]
        return Calibration(dict(values["key"]), tuple(passes), tuple(drafts), float(values["made_s"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.debug("%s is not a calibration: %s", place, error)
        return None


def _time(value: object) -> float:
    time_ms = float(str(value))
    if not (math.isfinite(time_ms) and time_ms > 0.0):
        raise ValueError(f"{value} is not a time")
    return time_ms
