"""Where times measured once are kept for the next start: a file for each machine, model and way of passes.

A file is named after its key, all that the times hang on, and believed only where that is the same to the
letter. A file that is missing, broken or cannot be written costs a measurement, never a start. Knows no
torch; calibrate.py makes and uses calibrations, `wager doctor` shows them.
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

from wager.policy import DraftTime, PassTime

log = logging.getLogger("wager.engine")

Key = Mapping[str, object]
_FORMAT = 1


@dataclass(frozen=True)
class Calibration:
    """Times of one kind of engine on one machine, and when they were taken."""

    key: Key
    passes: tuple[PassTime, ...]
    drafts: tuple[DraftTime, ...]
    made_s: float
    """Seconds since 1970."""

    @property
    def summary(self) -> str:
        return f"{len(self.passes)} passes, {len(self.drafts)} drafts"

    @property
    def age(self) -> str:
        return spoken(time.time() - self.made_s)


def folder() -> Path | None:
    """Where calibrations are kept: the user's cache; None where there is no such place."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "wager" / "costs"
    except RuntimeError:  # no home
        return None


def digest(value: object) -> str:
    """Any record in sixteen letters."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read(key: Key) -> Calibration | None:
    """The calibration of exactly this key, if there is one."""
    place = _path(key)
    found = None if place is None else _load(place)
    return found if found is not None and digest(found.key) == digest(key) else None


def stored() -> list[Calibration]:
    """Every calibration that can be read, the latest first."""
    place = folder()
    files = sorted(place.glob("*.json")) if place is not None and place.is_dir() else []
    found = [one for one in map(_load, files) if one is not None]
    return sorted(found, key=lambda one: -one.made_s)


def write(calibration: Calibration) -> None:
    """Keep it for the next start, in one stroke: another process may read or write the same file."""
    place = _path(calibration.key)
    if place is None:
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False, encoding="utf-8") as file:
            json.dump(_as_json(calibration), file, indent=1)
        os.replace(file.name, place)
    except OSError as error:
        log.warning("the calibration is not kept: %s", error)


def spoken(seconds: float) -> str:
    """A span of time in its largest unit."""
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
        log.debug("%s is no calibration: %s", place, error)
        return None


def _time(value: object) -> float:
    time_ms = float(str(value))
    if not (math.isfinite(time_ms) and time_ms > 0.0):
        raise ValueError(f"{value} is no time")
    return time_ms
